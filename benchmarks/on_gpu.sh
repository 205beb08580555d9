#!/usr/bin/env bash
# All that needs a GPU, in one go: the recordings, the cost of recording, the facts of the device, the example's
# results, what must hold under stress, programs, Triton, the tests. Needs torch, Triton, polars, nvcc, NVRTC and
# compute-sanitizer; warpscope, where it is installed, is one more rival. Where time is short, choose lines.
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
step python3 examples/rmsnorm/record.py --steps
step python3 benchmarks/rmsnorm/run.py -o benchmarks/results/rmsnorm.json
step python3 examples/rmsnorm/check.py --json benchmarks/results/rmsnorm_steps_float64.json
step python3 benchmarks/rmsnorm_overhead/run.py -o benchmarks/results/rmsnorm_overhead.json
step python3 benchmarks/marks_in_loops/run.py -o benchmarks/results/marks_in_loops.json
step python3 benchmarks/matmul/run.py -o benchmarks/results/matmul.json
step python3 benchmarks/stress.py -o benchmarks/results/stress.json
step python3 benchmarks/corrections.py -o benchmarks/results/corrections.json
step python3 benchmarks/record/run.py -o benchmarks/results/record.json
step python3 benchmarks/nvcc.py -o benchmarks/results/nvcc.json
for measured in triton_marks triton_record triton_proton; do
  step python3 benchmarks/$measured.py -o benchmarks/results/$measured.json
done
step python3 benchmarks/device_facts.py -o benchmarks/results/device_facts.json
for dtype in bfloat16 float16; do
  step python3 examples/rmsnorm/rmsnorm.py --rows 16 --dtype "$dtype" --json benchmarks/results/rmsnorm_float64.json
done
step python3 -m pytest -q -m gpu tests/gpu --tb=short --durations=5
exit $status
