"""Every step against float64: hidden 1024 to 16384 in multiples of 8, rows 1 to 2^20, bfloat16 and float16.

In: a GPU with torch. Out: a table, and with --json the same as JSON, in place of what the file holds about the same
steps; exit code 1 when a step is wrong. The error of an
element is told in units in the last place of its float64 result: 0.5 is correct rounding, sums in float add little.

    python examples/rmsnorm/check.py [--steps NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rmsnorm
import torch
from forward import Forward
from steps import CPP_TYPES, STEPS, VECTOR, Step, step_named

ROWS_OF_EACH_HIDDEN = 3
HIDDEN = range(1024, 16384 + 1, VECTOR)
ROW_COUNTS = (1, 2, 131, 132, 133, 1000, 4096, 65536, 2**20)
HIDDEN_OF_ROW_COUNTS = 1024
LARGEST = (2**20, 5120)  # more values than 32 bits count
MOST_ULPS = 0.52
SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11}
LEAST_ULP = {"bfloat16": 2.0**-133, "float16": 2.0**-24}
VALUES_AT_ONCE = 1 << 26  # compared in float64: 0.5 GB a tensor
CHAIN = 20


def errors(y: Any, x: Any, weight: Any, dtype: str) -> Any:
    """Relative error in the Euclidean norm and the worst element in units in the last place, a tensor of the two on
    the GPU; nan is infinite."""
    squares = torch.zeros(2, device="cuda", dtype=torch.float64)
    worst = torch.zeros((), device="cuda", dtype=torch.float64)
    at_once = max(1, VALUES_AT_ONCE // x.shape[1])
    for begin in range(0, x.shape[0], at_once):
        values = x[begin : begin + at_once].double()
        scale = (values.square().mean(dim=1, keepdim=True) + rmsnorm.EPS).rsqrt()
        expected = values * scale * weight.double()
        error = (y[begin : begin + at_once].double() - expected).abs().nan_to_num(nan=torch.inf)
        exponent = torch.frexp(expected).exponent - SIGNIFICAND_BITS[dtype]
        ulp = torch.ldexp(torch.ones_like(expected), exponent).clamp(min=LEAST_ULP[dtype])
        worst = torch.maximum(worst, (error / ulp).max())
        squares += torch.stack([error.square().sum(), expected.square().sum()])
    return torch.stack([(squares[0] / squares[1]).sqrt(), worst])


def check(forward: Forward, rows: int, hidden: int, generator: Any) -> Any:
    """Errors of one launch on fresh values, into a y that was full of nan."""
    dtype = getattr(torch, forward.dtype)
    x = torch.empty(rows, hidden, device="cuda", dtype=dtype).normal_(generator=generator)
    weight = torch.empty(hidden, device="cuda", dtype=dtype).normal_(generator=generator)
    return errors(forward(x, weight, torch.full_like(x, torch.nan)), x, weight, forward.dtype)


def chain_is_exact(forward: Forward, plain: Forward) -> bool:
    """Whether launches that each read what the one before wrote give the same bits overlapping as one by one."""
    dtype = getattr(torch, forward.dtype)
    x = torch.randn(4096, 5120, device="cuda", dtype=dtype)
    weight = torch.ones(5120, device="cuda", dtype=dtype).add_(torch.randn(5120, device="cuda").to(dtype), alpha=0.1)
    ends = []
    for call in (forward, plain):
        buffers = [x, *(torch.full_like(x, torch.nan) for _ in range(CHAIN))]
        for source, target in itertools.pairwise(buffers):
            call(source, weight, target)
            if call is plain:
                torch.cuda.synchronize()
        ends.append(buffers[-1])
    return torch.equal(ends[0], ends[1]) and bool(torch.isfinite(ends[0]).all())


def check_step(step: Step, dtype: str) -> dict[str, Any]:
    """The worst errors of a step over all sizes that it takes."""
    forward = Forward(step, dtype)
    generator = torch.Generator(device="cuda").manual_seed(1)
    sizes = [(ROWS_OF_EACH_HIDDEN, hidden) for hidden in HIDDEN if hidden <= step.max_hidden]
    sizes += [(rows, HIDDEN_OF_ROW_COUNTS) for rows in ROW_COUNTS] + [LARGEST]
    found = torch.stack([check(forward, *size, generator) for size in sizes]).cpu()  # nothing waits before
    worst = int(found[:, 1].argmax())
    return {
        "step": step.name,
        "dtype": dtype,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "sizes": len(sizes),
        "largest_hidden": max(hidden for _, hidden in sizes),
        "relative_error": float(found[:, 0].max()),
        "worst_ulps": float(found[worst, 1]),
        "worst_size": list(sizes[worst]),
        "chain_is_exact": chain_is_exact(forward, Forward(step, dtype, overlap=False)) if step.overlaps else None,
    }


def main() -> int:
    """Check all; 1 when a step is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="check these steps (default: all)")
    options = parser.parse_args()
    steps = [step_named(name) for name in options.steps or []] or STEPS
    found = [check_step(step, dtype) for step in steps for dtype in CPP_TYPES]
    wrong = [f for f in found if not f["worst_ulps"] <= MOST_ULPS or f["chain_is_exact"] is False]
    print(f"{'step':<14} {'dtype':<9} {'sizes':>5} {'relative error':>14} {'worst, ulps':>11}  worst size")
    for f in found:
        size = " x ".join(map(str, f["worst_size"]))
        verdict = "  WRONG" if f in wrong else ""
        print(
            f"{f['step']:<14} {f['dtype']:<9} {f['sizes']:>5} {f['relative_error']:>14.2e} {f['worst_ulps']:>11.4f}  "
            f"{size}{verdict}"
        )
    if options.json is not None:
        write(found, options.json)
    return 1 if wrong else 0


def write(found: list[dict[str, Any]], path: Path) -> None:
    """The JSON file: what was found, and what the file holds about other steps, in the order of the steps."""
    kept = json.loads(path.read_text(encoding="utf-8"))["steps"] if path.is_file() else []
    entries = {(entry["step"], entry["dtype"]): entry for entry in [*kept, *found]}
    ordered = [entries[step.name, dtype] for step in STEPS for dtype in CPP_TYPES if (step.name, dtype) in entries]
    path.write_text(json.dumps({"most_ulps": MOST_ULPS, "steps": ordered}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
