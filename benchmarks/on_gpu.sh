#!/usr/bin/env bash
# All that needs a GPU, in one go: the recordings, the cost of recording, the tests. Needs torch, polars and NVRTC.
#     bash benchmarks/on_gpu.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
status=0
step() {
  printf '\n== %s\n' "$*"
  "$@" || status=1
}
step python3 examples/rmsnorm/record.py
step python3 benchmarks/rmsnorm_overhead/run.py -o benchmarks/results/rmsnorm_overhead.json
step python3 examples/rmsnorm/rmsnorm.py --rows 16 --dtype bfloat16
step python3 examples/rmsnorm/rmsnorm.py --rows 16 --dtype float16
step python3 -m pytest -q -m gpu tests/gpu --tb=short --durations=5
exit $status
