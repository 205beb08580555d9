"""What the RMSNorm example refuses before it launches anything, for every step, and how it judges a result. No GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warplens.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "rmsnorm"
MODULES = ("rmsnorm", "steps", "forward")
pytestmark = pytest.mark.skipif(not EXAMPLE.is_dir(), reason="not a checkout: examples/ is not installed")
STEPS = (
    "document",
    "weight_early",
    "one_barrier",
    "four_vectors",
    "ring",
    "bulk",
    "aligned",
    "overlap",
    "ahead",
    "direct",
    "shaped",
)
ONE_VECTOR = STEPS[:3]
FROM_HOPPER = STEPS[4:]


@pytest.fixture(scope="module")
def rmsnorm() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield importlib.import_module("rmsnorm")
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def steps(rmsnorm: ModuleType) -> ModuleType:
    del rmsnorm
    return importlib.import_module("steps")


class DeviceArray:
    """What the example asks of an array in device memory."""

    def __init__(self, shape: tuple[int, ...], address: int) -> None:
        self.shape, self.dtype = shape, np.dtype("float16")
        self.flags = np.zeros(1).flags
        self.__cuda_array_interface__ = {"data": (address, False)}


def arrays(hidden: int, rows: int = 3, dtype: Any = np.float16) -> tuple[Any, Any, Any]:
    return np.ones((rows, hidden), dtype), np.ones(hidden, dtype), np.empty((rows, hidden), dtype)


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        (0, r"empty \(hidden size 0\); expected a multiple of 8 from 8 to 8192"),
        (4, "hold 4 values.*The next that fits is 8"),
        (5121, "hold 5121 values.*The next that fits is 5128"),
        (8200, "hold 8200 values; expected a multiple of 8 from 8 to 8192"),
        (8199, "hold 8199 values.*at most 1024 threads"),
    ],
)
def test_a_hidden_size_that_no_block_fits_is_refused(rmsnorm: ModuleType, hidden: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rmsnorm.plan(*arrays(hidden))


@pytest.mark.parametrize(
    ("hidden", "threads"), [(8, 32), (256, 32), (264, 64), (5120, 640), (5376, 672), (8184, 1024), (8192, 1024)]
)
def test_a_block_has_a_thread_for_each_vector_in_whole_warps(rmsnorm: ModuleType, hidden: int, threads: int) -> None:
    launch = rmsnorm.plan(*arrays(hidden))
    assert launch.block == (threads, 1, 1)
    assert launch.grid == (3, 1, 1)
    assert launch.dtype == "float16"


def test_the_steps_are_those_that_these_tests_know(steps: ModuleType) -> None:
    assert tuple(step.name for step in steps.STEPS) == STEPS
    with pytest.raises(UsageError, match="no step is called 'fast': expected one of document, weight_early"):
        steps.step_named("fast")


@pytest.mark.parametrize("name", STEPS)
def test_every_step_refuses_what_its_kernel_does_not_take(rmsnorm: ModuleType, steps: ModuleType, name: str) -> None:
    step = steps.step_named(name)
    most = 8192 if name in ONE_VECTOR else 16384
    assert rmsnorm.plan(*arrays(most), step).dtype == "float16"
    x, weight, y = arrays(1024)
    refused = [
        (arrays(most + 8), f"hold {most + 8} values; expected a multiple of 8 from 8 to {most}"),
        (arrays(1028), "hold 1028 values.*The next that fits is 1032"),
        (arrays(1024, rows=0), "x has 0 rows"),
        (arrays(0), "hidden size 0"),
        ((x, weight.astype(np.float32), y), "weight holds float32 and x holds float16"),
        ((x[:, ::2], weight[:512], y[:, :512]), "x is not contiguous"),
        ((x, DeviceArray((1024,), (1 << 20) + 8), y), "weight lies 8 bytes after a multiple of 16"),
    ]
    for operands, message in refused:
        with pytest.raises(UsageError, match=message):
            rmsnorm.plan(*operands, step)


@pytest.mark.parametrize("name", STEPS)
def test_a_gpu_that_is_too_old_for_a_step_is_refused(steps: ModuleType, name: str) -> None:
    least, older = ((9, 0), (8, 9)) if name in FROM_HOPPER else ((8, 0), (7, 5))
    steps.check_capability(steps.step_named(name), least)
    with pytest.raises(
        UsageError, match=rf"compute capability {older[0]}\.{older[1]}; step {name} needs {least[0]}\.0"
    ):
        steps.check_capability(steps.step_named(name), older)


@pytest.mark.parametrize("way", ["recorded", "as a function"])
def test_a_gpu_that_is_too_old_is_refused_before_anything_is_compiled(
    rmsnorm: ModuleType, steps: ModuleType, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(rmsnorm, "capability", lambda: (8, 9))
    make = rmsnorm.make_kernel if way == "recorded" else lambda dtype, step: forward_class()(step, dtype)
    with pytest.raises(UsageError, match=r"compute capability 8\.9; step shaped needs 9\.0 or newer"):
        make("bfloat16", steps.step_named("shaped"))


@pytest.mark.parametrize(
    ("name", "grid", "threads", "numbers", "shared_bytes"),
    [
        ("one_barrier", 4096, 640, (5120,), 0),
        ("four_vectors", 4096, 160, (5120,), 0),
        ("bulk", 4096, 320, (5120,), 10_240),
        ("ring", 4 * 132, 160, (4096, 5120), 5 * 10_240),  # 227 kB hold four blocks of 52 kB
    ],
)
def test_a_step_is_launched_as_its_source_says(
    rmsnorm: ModuleType, steps: ModuleType, name: str, grid: int, threads: int, numbers: Any, shared_bytes: int
) -> None:
    launch = rmsnorm.plan(*arrays(5120, rows=4096), steps.step_named(name), sm_count=132)
    assert launch == steps.Launch((grid, 1, 1), (threads, 1, 1), numbers, "float16", shared_bytes)


@pytest.mark.parametrize(
    ("rows", "hidden", "grid", "block", "vectors"),
    [
        (33, 1024, 17, (64, 2, 1), 2),  # two short rows a block, one in the last
        (33, 1032, 33, (96, 1, 1), 2),
        (5, 512, 2, (32, 4, 1), 2),
        (4096, 5120, 4096, (320, 1, 1), 2),
        (7, 8192, 7, (512, 1, 1), 2),
        (7, 8200, 7, (288, 1, 1), 4),  # long rows: four vectors a thread
        (7, 16384, 7, (512, 1, 1), 4),
    ],
)
def test_the_last_step_shapes_its_blocks_by_the_row(
    rmsnorm: ModuleType, steps: ModuleType, rows: int, hidden: int, grid: int, block: Any, vectors: int
) -> None:
    step = steps.step_named("shaped")
    launch = rmsnorm.plan(*arrays(hidden, rows=rows), step)
    assert (launch.grid, launch.block, launch.numbers) == ((grid, 1, 1), block, (rows, hidden))
    assert launch.shared_bytes == -(-block[1] * hidden * 2 // 128) * 128
    assert step.kernel_name("float16", hidden, traced=False) == f"rmsnorm_fwd<__half, false, {vectors}>"
    assert step.kernel_name("float16", hidden, traced=False) in step.kernel_names("float16", traced=False)
    assert -(-hidden // (8 * vectors)) <= block[0] < -(-hidden // (8 * vectors)) + 32


def test_a_ring_has_no_more_blocks_than_rows_and_one_an_sm_where_rows_are_long(
    rmsnorm: ModuleType, steps: ModuleType
) -> None:
    ring = steps.step_named("ring")
    assert rmsnorm.plan(*arrays(1024, rows=7), ring, sm_count=132).grid == (7, 1, 1)
    assert rmsnorm.plan(*arrays(16384, rows=500), ring, sm_count=132).grid == (132, 1, 1)


class Tensor(DeviceArray):
    """What `Forward` asks of a tensor of torch: it also tells where it lies."""

    def __init__(self, shape: tuple[int, ...], *, cuda: bool = True, offset: int = 0, contiguous: bool = True) -> None:
        super().__init__(shape, 1 << 20)
        self.is_cuda, self.device = cuda, "cuda:0" if cuda else "cpu"
        self.data_ptr, self.is_contiguous = lambda: (1 << 20) + offset, lambda: contiguous


def forward_class() -> Any:
    return importlib.import_module("forward").Forward


def test_the_function_of_tensors_refuses_what_its_kernel_was_not_compiled_for(
    rmsnorm: ModuleType, steps: ModuleType
) -> None:
    del rmsnorm
    forward = forward_class().__new__(forward_class())
    forward.step, forward.dtype, forward._sm_count = steps.step_named("overlap"), "bfloat16", 132
    half, host = Tensor((3, 64)), Tensor((3, 64), cuda=False)
    with pytest.raises(UsageError, match="x holds float16; this kernel was compiled for bfloat16"):
        forward.plan(half, Tensor((64,)), half)
    with pytest.raises(UsageError, match=r"y lies on cpu; expected a tensor on a CUDA device \(y\.cuda\(\)\)"):
        forward.plan(half, Tensor((64,)), host)
    with pytest.raises(UsageError, match="weight lies on the host"):
        forward.plan(half, object(), half)
    forward.dtype = "float16"
    assert forward.plan(half, Tensor((64,)), half).grid == (3, 1, 1)
    with pytest.raises(UsageError, match="x lies 2 bytes after a multiple of 16"):
        forward.plan(Tensor((3, 64), offset=2), Tensor((64,)), half)
    with pytest.raises(UsageError, match=r"y is not contiguous; pass y\.contiguous\(\)"):
        forward.plan(half, Tensor((64,)), Tensor((3, 64), contiguous=False))
    with pytest.raises(UsageError, match="x has 0 rows"):
        forward.plan(Tensor((0, 64)), Tensor((64,)), Tensor((0, 64)))


def test_a_kernel_for_another_type_is_not_recorded(rmsnorm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmsnorm, "_sm_count", lambda: 132)
    kernel = SimpleNamespace(name="rmsnorm_fwd<__nv_bfloat16, true>")
    with pytest.raises(
        UsageError, match=r"x holds rows of 64 float16, for which rmsnorm_fwd<__half, true> is the kernel"
    ):
        rmsnorm.record(kernel, *arrays(64))


def test_a_kernel_for_other_rows_is_not_recorded(
    rmsnorm: ModuleType, steps: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rmsnorm, "_sm_count", lambda: 132)
    kernel = SimpleNamespace(name="rmsnorm_fwd<__half, true, 2>")
    with pytest.raises(UsageError, match=r"rows of 16384 float16, for which rmsnorm_fwd<__half, true, 4> is the kern"):
        rmsnorm.record(kernel, *arrays(16384), step=steps.step_named("shaped"))


def test_leading_dimensions_are_rows(rmsnorm: ModuleType) -> None:
    x = np.ones((2, 5, 64), np.float16)
    assert rmsnorm.plan(x, x[0, 0], x.copy()).grid == (10, 1, 1)


def test_no_rows_are_refused(rmsnorm: ModuleType) -> None:
    with pytest.raises(UsageError, match="x has 0 rows; expected 1 to"):
        rmsnorm.plan(*arrays(64, rows=0))


def test_a_scalar_is_refused(rmsnorm: ModuleType) -> None:
    x = np.float16(1)
    with pytest.raises(UsageError, match="x is a scalar"):
        rmsnorm.plan(x, x, x)


def test_a_type_without_a_kernel_is_refused(rmsnorm: ModuleType) -> None:
    with pytest.raises(UsageError, match="x holds float32; expected bfloat16 or float16"):
        rmsnorm.plan(*arrays(64, dtype=np.float32))


@pytest.mark.parametrize("position", [1, 2])
def test_mixed_types_are_refused(rmsnorm: ModuleType, position: int) -> None:
    operands = list(arrays(64))
    operands[position] = operands[position].astype(np.float32)
    with pytest.raises(UsageError, match=f"{'xwy'[position]}.* holds float32 and x holds float16"):
        rmsnorm.plan(*operands)


def test_a_weight_or_y_of_another_shape_is_refused(rmsnorm: ModuleType) -> None:
    x, weight, y = arrays(64)
    with pytest.raises(UsageError, match=r"weight has shape \(56,\); expected \(64,\)"):
        rmsnorm.plan(x, weight[:56], y)
    with pytest.raises(UsageError, match=r"y has shape \(2, 64\); expected \(3, 64\)"):
        rmsnorm.plan(x, weight, y[:2])


def test_rows_that_are_not_contiguous_are_refused(rmsnorm: ModuleType) -> None:
    x, weight, y = arrays(64)
    wide = np.ones((3, 128), np.float16)
    with pytest.raises(UsageError, match="x is not contiguous"):
        rmsnorm.plan(wide[:, :64], weight, y)
    with pytest.raises(UsageError, match="y is not contiguous"):
        rmsnorm.plan(x, weight, wide[:, ::2])


def test_a_device_pointer_inside_of_a_vector_is_refused(rmsnorm: ModuleType) -> None:
    x, weight, y = DeviceArray((3, 64), 1 << 20), DeviceArray((64,), 2 << 20), DeviceArray((3, 64), (3 << 20) + 2)
    with pytest.raises(UsageError, match="y lies 2 bytes after a multiple of 16"):
        rmsnorm.plan(x, weight, y)
    y.__cuda_array_interface__ = {"data": (3 << 20, False)}
    assert rmsnorm.plan(x, weight, y).block == (32, 1, 1)


def test_a_correctly_rounded_result_is_good_and_one_unit_off_is_not(rmsnorm: ModuleType) -> None:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((4, 264)).astype(np.float16)
    weight = generator.standard_normal(264).astype(np.float16)
    reference = rmsnorm.expected(x, weight, 1e-6)
    y = reference.astype(np.float16)
    agreement = rmsnorm.compare(y, reference)
    assert agreement.good
    assert agreement.worst_error <= 1.0
    y[2, 7] = np.nextafter(np.nextafter(y[2, 7], np.float16(9)), np.float16(9))
    agreement = rmsnorm.compare(y, reference)
    assert not agreement.good
    assert agreement.worst_index == (2, 7)


def test_an_element_that_was_never_written_is_the_worst(rmsnorm: ModuleType) -> None:
    reference = np.ones((2, 8))
    y = reference.astype(np.float16)
    y[1, 3] = np.nan
    agreement = rmsnorm.compare(y, reference)
    assert agreement.worst_error == np.inf
    assert agreement.worst_index == (1, 3)


def test_the_reference_is_that_of_the_formula(rmsnorm: ModuleType) -> None:
    # mean(x^2) = (9 + 16) / 2, eps 0: [3, 4] / sqrt(12.5) * [1, 2]
    found = rmsnorm.expected(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(found, [[0.8485281374238570, 2.2627416997969520]], rtol=1e-15)
