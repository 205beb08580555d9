"""What the RMSNorm example refuses before it launches anything, and how it judges a result. No GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from warplens.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "rmsnorm" / "rmsnorm.py"
pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="not a checkout: examples/ is not installed")


@pytest.fixture(scope="module")
def rmsnorm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rmsnorm_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


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
