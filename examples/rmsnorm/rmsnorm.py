"""RMSNorm forward on the GPU through `warplens.Kernel`, checked against float64.

In: arrays of torch, CuPy or numpy. Out: y and a trace; or, run as a program, the errors for every warp count of a
block. Refuses, before anything is launched, what the kernel of a step does not take. Never changes x or weight.

    python examples/rmsnorm/rmsnorm.py [--rows 64] [--dtype bfloat16|float16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from steps import CPP_TYPES, DOCUMENT, VECTOR, Launch, Step, check_capability, check_shape, launch_of

from warplens.errors import UsageError

EPS = 1e-6
ALIGNMENT_BYTES = 16
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a unit in the last place of 1
SMALLEST_SUBNORMAL = {"bfloat16": 2.0**-133, "float16": 2.0**-24}


@dataclass(frozen=True)
class Agreement:
    """How far y is from the float64 result.

    `worst_error` is the largest error of an element over what correct rounding to y's type may cost it:
    1 would be a perfect kernel, and sums in float add a little. `relative_error` is |y - expected| / |expected|
    in the Euclidean norm.
    """

    relative_error: float
    worst_error: float
    worst_index: tuple[int, ...]

    @property
    def good(self) -> bool:
        """Whether no element is further off than rounding and float sums explain."""
        return self.worst_error <= 1.02


def make_kernel(dtype: str, step: Step = DOCUMENT, hidden: int = VECTOR) -> Any:
    """The traced and the clean build of a step's kernel as a `warplens.Kernel`; needs a GPU and NVRTC.

    hidden: of the rows that it is for; only step `shaped` has more than one kernel. Raises UsageError for a GPU that is
    too old for the step.
    """
    import warplens

    check_capability(step, capability())

    traced, clean = (step.kernel_name(dtype, hidden, traced=traced) for traced in (True, False))
    return warplens.Kernel.from_file(step.path, traced, clean=clean)


def record(kernel: Any, x: Any, weight: Any, y: Any, *, eps: float = EPS, step: Step = DOCUMENT, **options: Any) -> Any:
    """Check the arguments, launch `kernel`, fill y; the `warplens.Trace`. `options` go to `Kernel.record`."""
    launch = plan(x, weight, y, step, sm_count=_sm_count())
    wanted = step.kernel_name(launch.dtype, x.shape[-1], traced=True)
    if kernel.name != wanted:
        raise UsageError(
            f"x holds rows of {x.shape[-1]} {launch.dtype}, for which {wanted} is the kernel; found {kernel.name}"
        )
    numbers = [np.uint32(number) for number in launch.numbers]
    options["shared_bytes"] = launch.shared_bytes
    return kernel.record(launch.grid, launch.block, x, weight, y, *numbers, np.float32(eps), **options)


def plan(x: Any, weight: Any, y: Any, step: Step = DOCUMENT, *, sm_count: int = 1) -> Launch:
    """Check the arguments of a step and return its launch on a GPU of `sm_count` SMs.

    x and y: bfloat16 or float16, shape (..., hidden), contiguous; weight: shape (hidden,), of the same type.
    Raises UsageError for a hidden size that is 0, above the step's or no multiple of 8, for no rows, other shapes,
    other or mixed types, non-contiguous arrays, and device pointers that are not aligned to 16 bytes.
    """
    shape = tuple(x.shape)
    if not shape:
        raise UsageError("x is a scalar; expected rows of `hidden` values, shape (..., hidden)")
    hidden, rows = shape[-1], math.prod(shape[:-1])
    check_shape(step, rows, hidden)
    dtype = _dtype(x)
    if dtype not in CPP_TYPES:
        raise UsageError(f"x holds {dtype}; expected bfloat16 or float16")
    for name, array, expected in (("x", x, shape), ("weight", weight, (hidden,)), ("y", y, shape)):
        if _dtype(array) != dtype:
            raise UsageError(f"{name} holds {_dtype(array)} and x holds {dtype}; expected one type for x, weight and y")
        if tuple(array.shape) != expected:
            raise UsageError(f"{name} has shape {tuple(array.shape)}; expected {expected}")
        if not _contiguous(array):
            raise UsageError(f"{name} is not contiguous; pass {name}.contiguous() or a copy in row order")
        offset_bytes = _device_address(array) % ALIGNMENT_BYTES
        if offset_bytes:
            raise UsageError(
                f"{name} lies {offset_bytes} bytes after a multiple of {ALIGNMENT_BYTES}; expected an aligned pointer: "
                "the kernel loads 128-bit vectors. Pass a copy, not a slice that begins inside of a vector"
            )
    return launch_of(step, rows, hidden, dtype, sm_count)


def expected(x: Any, weight: Any, eps: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """x / sqrt(mean(x^2) + eps) * weight in float64, shape of x."""
    values = _float64(x)
    scale = 1.0 / np.sqrt(np.mean(values**2, axis=-1, keepdims=True) + eps)
    return np.asarray(values * scale * _float64(weight))


def compare(y: Any, reference: np.ndarray[Any, np.dtype[np.float64]]) -> Agreement:
    """Errors of y against `reference` (float64, the same shape). A nan counts as an infinite error."""
    dtype = _dtype(y)
    error = np.abs(_float64(y) - reference)
    error[np.isnan(error)] = np.inf
    allowed = np.maximum(np.abs(reference) * UNIT_ROUNDOFF[dtype], SMALLEST_SUBNORMAL[dtype] / 2)
    ratio = error / allowed
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    norm = float(np.linalg.norm(reference))
    relative_error = float(np.linalg.norm(error)) / norm if norm else float(np.linalg.norm(error))
    return Agreement(relative_error, float(ratio[worst]), tuple(int(i) for i in worst))


def check_every_warp_count(rows: int, dtype: str, json_file: Path | None = None) -> int:
    """Compare with float64 for blocks of 1 to 32 warps, full and with a last warp that is not; count the failures.

    What is printed replaces what `json_file` holds about `dtype`; its worst errors count as in `Agreement`.
    """
    import torch

    kernel = make_kernel(dtype)
    generator = torch.Generator(device="cuda").manual_seed(1)
    failures, sizes = 0, []
    print(f"{'hidden':>6} {'warps':>5} {'relative error':>14} {'worst / rounding':>16}  worst element")
    for warps in range(1, 33):
        for hidden in (256 * warps - 248, 256 * warps):
            x, y = (torch.full((rows, hidden), torch.nan, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
            x.normal_(generator=generator)
            weight = torch.empty_like(x[0]).normal_(generator=generator)
            record(kernel, x, weight, y, rounds=1, warmup=0)
            found = compare(y, expected(x, weight, EPS))
            failures += not found.good
            sizes.append({"hidden": hidden, "warps": warps, **asdict(found)})
            verdict = "" if found.good else "  WRONG"
            print(
                f"{hidden:>6} {warps:>5} {found.relative_error:>14.2e} {found.worst_error:>16.4f}  "
                f"{found.worst_index}{verdict}"
            )
    if json_file is not None:
        facts = json.loads(json_file.read_text(encoding="utf-8")) if json_file.is_file() else {}
        about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": torch.cuda.get_device_name()}
        facts[dtype] = {**about, "rows": rows, "sizes": sizes}
        json_file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{failures} of 64 sizes are wrong" if failures else f"all 64 sizes agree with float64 ({dtype})")
    return failures


def main() -> int:
    """Run the check; 1 when a size is wrong."""
    parser = argparse.ArgumentParser(description="Check the RMSNorm kernel against float64 for every warp count.")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--dtype", choices=sorted(CPP_TYPES), default="bfloat16")
    parser.add_argument("--json", type=Path, help="also write the table to this file, one entry a dtype")
    options = parser.parse_args()
    return 1 if check_every_warp_count(options.rows, options.dtype, options.json) else 0


def capability() -> tuple[int, int]:
    """Compute capability of the current GPU."""
    from warplens.capture import driver

    device = driver.ensure_context()
    major, minor = (driver.attribute(device, f"COMPUTE_CAPABILITY_{name}") for name in ("MAJOR", "MINOR"))
    return major, minor


def _sm_count() -> int:
    from warplens.capture import driver

    return driver.attribute(driver.ensure_context(), "MULTIPROCESSOR_COUNT")


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _contiguous(array: Any) -> bool:
    if hasattr(array, "is_contiguous"):  # torch
        return bool(array.is_contiguous())
    return bool(array.flags.c_contiguous)


def _device_address(array: Any) -> int:
    """Address of the first element; 0 for an array in host memory, which is copied to an aligned place."""
    if hasattr(array, "data_ptr"):  # torch, whose bfloat16 has no array interface
        return int(array.data_ptr()) if array.is_cuda else 0
    interface = getattr(array, "__cuda_array_interface__", None)
    return int(interface["data"][0]) if interface else 0


def _float64(array: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if hasattr(array, "detach"):  # torch
        array = array.detach().double().cpu().numpy()
    elif hasattr(array, "get"):  # CuPy
        array = array.get()
    return np.asarray(array).astype(np.float64)


if __name__ == "__main__":
    sys.exit(main())
