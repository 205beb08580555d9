"""What `warplens audit` says of cubins: what their kernels take, as cuobjdump has it, beside a clean one. No GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.compile.test_instrument import CLUSTER, assembled
from tests.machine_code import resources
from warplens.capture.compile import compile_cubin
from warplens.capture.modules import Resources, resources_of
from warplens.cli import main
from warplens.instrument import instrument

pytestmark = pytest.mark.compile

SOURCE = """
__device__ __noinline__ float deep(float* p, int n) {
  float a[40], s = 0;
  for (int i = 0; i < 40; ++i) a[i] = p[i * n];
  for (int i = 0; i < n; ++i) s += a[(i * 7) % 40];
  return s;
}
extern "C" __global__ void __launch_bounds__(256) sized(float* p, int n) {
  __shared__ float t[64];
  t[threadIdx.x % 64] = p[threadIdx.x];
  __syncthreads();
  p[0] = t[n] + deep(p, n);
}
extern "C" __global__ void plain(float* p) { p[threadIdx.x] = 1; }
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_what_a_kernel_takes_is_read_as_cuobjdump_reads_it(arch: str, tmp_path: Path) -> None:
    cubin = compile_cubin(SOURCE, ["sized", "plain"], arch=arch, options=[], filename="k.cu").cubin
    number = int(arch.strip("sm_a"))
    system = 1024 if number >= 90 else 0
    for name in ("sized", "plain"):
        found, said = resources_of(cubin, name), resources(cubin, name, tmp_path)
        assert found.arch == number
        assert (found.registers, found.local_bytes) == (said["REG"], said["STACK"])
        assert found.shared_bytes == max(said["SHARED"] - system, 0) == (256 if name == "sized" else 0)
    assert resources_of(cubin, "sized").block == (256, 1, 1)
    assert resources_of(cubin, "sized").is_most
    assert resources_of(cubin, "plain").block is None


def test_marked_ptx_is_compared_with_the_clean_build_in_another_cubin(tmp_path: Path) -> None:
    text = CLUSTER.format(target="sm_90a", head=".reqntid 64, 2", before="")
    assembled(text, tmp_path, "clean")
    marked = assembled(instrument(text).text, tmp_path, "marked").cubin
    found = resources_of(marked, "k")
    assert found == Resources(90, found.registers, 0, 0, (64, 2, 1), is_most=False)
    paths = [tmp_path / f"{name}.cubin" for name in ("marked", "clean")]
    done = CliRunner().invoke(main, ["audit", str(paths[0]), "--clean-file", str(paths[1]), "--json"])
    assert done.exit_code == 0, done.output
    (kernel,) = json.loads(done.stdout)["kernels"]
    facts = kernel["facts"]
    assert facts["traced"]["registers"] == found.registers > facts["clean"]["registers"]
    assert facts["traced"]["resident_blocks"] == facts["clean"]["resident_blocks"] == 16  # 2048 threads
    itself = CliRunner().invoke(main, ["audit", str(paths[0]), "--clean", "k"])
    assert itself.exit_code == 2
    paths[0].write_bytes(marked[: len(marked) // 2])
    assert CliRunner().invoke(main, ["audit", str(paths[0])]).exit_code == 3
    assert CliRunner().invoke(main, ["audit", str(paths[1])]).exit_code == 3
