"""Do corrections hold? Five kernels, each measured several times over and in builds with other marks.

In: a GPU machine with torch and an installed warplens. Out: a JSON with device, clocks, versions and raw numbers, and
a table with pass or fail for each line; exit code 1 when one fails. About a minute.

The lines, for each kernel (docs/adr/0008-corrections.md says why):
    sum       corrected phases of a block against its life in a build with its first mark and its end alone: 3 %
    doubled   phases of a build with two of each mark, less twice the cost, against the single ones less the cost
    tripled   the same with three: told, not asked
    repeated  an independent repetition of the whole measurement lies in the stated 90 % interval: 85 %
    alone     against a build with only the first mark of the warp and the two around the phase: 85 %

    python benchmarks/corrections.py -o benchmarks/results/corrections.json
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from machine import described

from warplens.capture.compile import load_nvrtc
from warplens.capture.corrections import MOST_CHUNKS, some_blocks
from warplens.decode.corrected import TILING
from warplens.decode.corrections import LIFE, LaunchTimes, UnfitError, by_role, measure
from warplens.errors import WarplensError

HERE = Path(__file__).parent
RMSNORM = HERE.parent / "src" / "warplens" / "demo" / "rmsnorm.cu"
REPETITIONS = 4
LAUNCHES = 8
"""Of each other build: as many as corrections take."""
CLOSE = 0.03
COVERED = 0.85
MARK_LINE = re.compile(r"^ *rec\.(phase|wait)\(\w+::(\w+)\);\n", re.MULTILINE)
HIDDEN = 5120


@dataclass(frozen=True)
class Case:
    """One kernel and shape. `alone`: phases that are also measured with only the marks around them."""

    name: str
    source: Path
    kernel: str
    grid: Any
    block: int
    arguments: Callable[[Any], list[Any]]
    alone: tuple[str, ...] = ()
    shared_bytes: int = 0
    """Dynamic shared memory that keeps the same number of blocks resident in all builds, whatever they need."""
    clean: str = "auto"
    loops: bool = False
    """Its marks are in loops: said to all builds alike, where NVRTC cannot tell and a capture would try."""


@dataclass
class Measured:
    """What was measured of a case: all that the lines are worked out from."""

    sites: list[str]
    repetitions: list[dict[str, Any]]
    """`corrections` of independent captures."""
    other: dict[int, list[LaunchTimes]]
    """Launches of builds that take each mark but the first so many times."""
    alone: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`corrections` of captures with only the first mark and those around a site, by site."""
    resident_blocks: dict[str, int] = field(default_factory=dict)


def rmsnorm_arguments(rows: int) -> Callable[[Any], list[Any]]:
    """x, weight and y of so many rows."""

    def make(torch: Any) -> list[Any]:
        x, y = (torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        weight = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16)
        return [x, weight, y, np.uint32(HIDDEN), np.float32(1e-6)]

    return make


def of_floats(*counts: int, more: tuple[Any, ...] = ()) -> Callable[[Any], list[Any]]:
    """Arrays of so many floats, then `more`."""
    return lambda torch: [*(torch.randn(count, device="cuda") for count in counts), *more]


def rmsnorm(rows: int, *alone: str) -> Case:
    """The demo's kernel: three blocks fill an SM with threads."""
    names = [f"rmsnorm_fwd<__nv_bfloat16, {on}>" for on in ("true", "false")]
    return Case(f"rmsnorm {rows}", RMSNORM, names[0], rows, 640, rmsnorm_arguments(rows), alone, clean=names[1])


def own(name: str, kernel: str, grid: Any, shared_bytes: int, arguments: Any, *alone: str) -> Case:
    """A kernel of the folder corrections/, in blocks of 256 threads."""
    source = HERE / "corrections" / f"{name}.cu"
    return Case(name, source, f"{kernel}<true>", grid, 256, arguments, alone, shared_bytes, loops=name != "softmax")


KB = 1024
SIZE, DEPTH, ROWS, BLOCKS, TILES = 1024, 256, 528, 1056, 16
MATRICES = of_floats(SIZE * DEPTH, DEPTH * SIZE, SIZE * SIZE, more=(np.uint32(SIZE), np.uint32(DEPTH)))
VECTORS = of_floats(*[BLOCKS * 256 * 16] * 3, more=(np.float32(0.5),))
TILED = of_floats(ROWS * TILES * 256 * 4, ROWS * 256, more=(np.uint32(TILES),))
CASES = (
    rmsnorm(432, "warp_reduce", "normalize"),
    rmsnorm(16384),
    own("matmul", "matmul_tiled", (SIZE // 64, SIZE // 64), 80 * KB, MATRICES, "load_tile", "multiply"),
    own("axpy", "axpy_vectors", BLOCKS, 64 * KB, VECTORS, "load", "combine"),
    own("softmax", "softmax_rows", ROWS, 48 * KB, of_floats(*[ROWS * 4096] * 2), "reduce_max", "exponentiate"),
    own("pipeline", "pipeline_sums", ROWS, 52 * KB, TILED, "ask", "compute"),
)
"""The shared memory leaves 2, 3, 4 and 3 blocks to an SM that has 228 KB."""


def marks_kept(source: str, site: str) -> str:
    """The source with only the warp's first mark, that of `site`, the next one in the text, which must be the next in
    time, and the one before where that is a wait: it makes the mark behind the barrier wait for it."""
    order = MARK_LINE.findall(source)
    at = [name for _, name in order].index(site)
    keep = {order[0][1], site, order[at + 1][1]}
    if order[at - 1][0] == "wait":
        keep.add(order[at - 1][1])
    return MARK_LINE.sub(lambda line: line[0] if line[2] in keep else "", source)


# ---- measuring ------------------------------------------------------------------------------------------------
def build(case: Case, *options: str, source: str | None = None) -> Any:
    """A kernel of the case, compiled with more options or from a changed source."""
    import warplens

    text = case.source.read_text(encoding="utf-8") if source is None else source
    options = (*options, *(["-DWARPLENS_LOOPS"] if case.loops else []))
    return warplens.Kernel(text, case.kernel, clean=case.clean, options=options, filename=case.source.name)


def measure_case(case: Case, torch: Any) -> tuple[Measured, dict[str, Any]]:
    """All that is measured of a case, and the manifest of its last capture."""
    arguments, shape = case.arguments(torch), (case.grid, case.block)
    corrected = {"shared_bytes": case.shared_bytes, "rounds": LAUNCHES, "warmup": 2}
    recorded = {**corrected, "rounds": 0, "launches": LAUNCHES, "correct": False}
    torch.cuda.synchronize()
    kernel = build(case)
    repetitions = []
    for _ in range(REPETITIONS):
        manifest = kernel.capture(*shape, *arguments, **corrected).manifest
        repetitions.append(corrections_of(manifest, case.name))
    sites = [site["name"] for site in manifest["site_sets"][0]["sites"]]
    found = Measured(sites, repetitions, {})
    found.resident_blocks["1"] = manifest["kernels"][0]["traced"]["resident_blocks"]
    for copies in (0, 2, 3):
        recording = build(case, f"-DWARPLENS_MARKS={copies}").capture(*shape, *arguments, **recorded)
        found.resident_blocks[str(copies)] = recording.manifest["kernels"][0]["traced"]["resident_blocks"]
        found.other[copies] = list(times_of(recording, max(copies, 1)))
    for site in case.alone:
        source = marks_kept(case.source.read_text(encoding="utf-8"), site)
        capture = build(case, source=source).capture(*shape, *arguments, **corrected)
        found.alone[site] = corrections_of(capture.manifest, f"{case.name}, {site} alone")
    return found, manifest


def corrections_of(manifest: dict[str, Any], what: str) -> dict[str, Any]:
    """The corrections; RuntimeError with the reason where there are none."""
    found: dict[str, Any] = manifest["kernels"][0]["corrections"]
    if found["not_measured"] is not None:
        raise RuntimeError(f"{what}: not corrected: {found['not_measured']}")
    return found


def times_of(recording: Any, copies: int) -> Iterator[LaunchTimes]:
    """Durations of each launch that was kept, in the blocks that corrections look at."""
    for entry in recording.manifest["launches"]:
        chunks = recording.records[entry["records"]]
        facts = {**recording.manifest, "launches": [entry]}
        yield measure(some_blocks(chunks, MOST_CHUNKS / max(len(chunks), 1)), facts, copies=copies)


# ---- judging --------------------------------------------------------------------------------------------------
@dataclass
class Line:
    """One line of the table: what was found, what is asked, and the numbers behind it."""

    case: str
    what: str
    found: str
    asked: str
    passed: bool
    numbers: Any


def table_of(found: dict[str, Any], *, life: bool = False) -> dict[tuple[Any, int], dict[str, Any]]:
    """Rows by (warps of the role, site): of phases and waits, or of warps' lives."""
    rows = found["rows"]
    out = {}
    for index, verb in enumerate(rows["verb"]):
        if (verb == "life") if life else verb in TILING:
            row = {name: rows[name][index] for name in rows}
            row["corrected_cycles"] = row["duration_cycles"] - row["cost_cycles"]
            out[tuple(found["roles"][row["role"]]), row["site"]] = row
    return out


def weighted(rows: Any, name: str) -> float:
    """The mean of a column over rows, by their spans."""
    rows = list(rows)
    return float(np.average([row[name] for row in rows], weights=[row["spans"] for row in rows]))


def sum_line(case: str, found: Measured) -> Line:
    """Corrected phases of a warp's life, over its life with two marks, in each repetition."""
    lives = [
        float((t.count * np.nan_to_num(t.mean_cycles))[:, LIFE].sum() / t.count[:, LIFE].sum()) for t in found.other[0]
    ]
    life = float(np.mean(lives))
    ratios: dict[str, list[float]] = {"duration_cycles": [], "corrected_cycles": []}
    for repetition in found.repetitions:
        warps = sum(row["spans"] for row in table_of(repetition, life=True).values())
        for name, values in ratios.items():
            total = sum(row["spans"] * row[name] for row in table_of(repetition).values())
            values.append(total / warps / life)
    worst = max(ratios["corrected_cycles"], key=lambda ratio: abs(ratio - 1))
    raw = max(ratios["duration_cycles"], key=lambda ratio: abs(ratio - 1))
    text = f"{100 * worst:.2f} % of {life:,.0f} cycles (raw {100 * raw:.2f} %)"
    numbers = {"life_cycles": lives, **ratios}
    return Line(case, "sum", text, f"within {100 * CLOSE:.0f} %", abs(worst - 1) <= CLOSE, numbers)


def copies_line(case: str, found: Measured, copies: int) -> Line:
    """Share of rows in which a build with more copies, less their cost, agrees with the single build less its cost."""
    repetition = found.repetitions[0]
    means = np.mean([by_role(times, repetition["roles"]) for times in found.other[copies]], axis=0)
    rows = []
    for (_, site), row in table_of(repetition).items():
        corrected = float(means[row["role"], site]) - copies * row["cost_cycles"]
        error = math.hypot(row["corrected_uncertainty_cycles"], (copies - 1) * row["cost_uncertainty_cycles"])
        rows.append(compared(found, site, row["corrected_cycles"], corrected, error))
    return covered(case, {2: "doubled", 3: "tripled"}[copies], rows)


def compared(found: Measured, site: int, one: float, other: float, error: float) -> dict[str, Any]:
    """A pair of corrected durations in cycles; `in` where the other lies within the error."""
    inside = bool(abs(one - other) <= error)
    return {"site": found.sites[site - 1], "one": round(one, 2), "other": round(other, 2), "error": error, "in": inside}


def covered(case: str, what: str, rows: list[dict[str, Any]]) -> Line:
    """A line that asks for a share of rows that are `in`."""
    share = sum(row["in"] for row in rows) / max(len(rows), 1)
    text = f"{sum(row['in'] for row in rows)} of {len(rows)} ({100 * share:.0f} %)"
    return Line(case, what, text, f"{100 * COVERED:.0f} %", share >= COVERED, rows)


def repeated_line(case: str, found: Measured) -> Line:
    """Share of (role, site, pair of repetitions) in which one lies in the other's stated interval."""
    rows = []
    for one, other in permutations(map(table_of, found.repetitions), 2):
        for key in sorted(set(one) & set(other)):
            error = one[key]["corrected_uncertainty_cycles"]
            rows.append(compared(found, key[1], one[key]["corrected_cycles"], other[key]["corrected_cycles"], error))
    return covered(case, "repeated", rows)


def alone_line(case: str, found: Measured) -> Line:
    """Share of sites whose corrected mean agrees with that of a build with only the marks around them."""
    rows = []
    for site, capture in found.alone.items():
        number = found.sites.index(site) + 1
        for repetition in found.repetitions:
            both = [[r for (_, s), r in table_of(f).items() if s == number] for f in (repetition, capture)]
            one, other = (weighted(part, "corrected_cycles") for part in both)
            errors = [weighted(part, "corrected_uncertainty_cycles") for part in both]
            rows.append(compared(found, number, one, other, math.hypot(*errors)))
    return covered(case, "alone", rows)


def judge(case: str, found: Measured) -> list[Line]:
    """All lines of a case."""
    lines = [
        sum_line(case, found),
        copies_line(case, found, 2),
        copies_line(case, found, 3),
        repeated_line(case, found),
    ]
    return lines + ([alone_line(case, found)] if found.alone else [])


def judge_together(lines: list[Line]) -> list[Line]:
    """Coverage over all cases: what the single ones are too few for."""
    out = []
    for what in ("doubled", "tripled", "repeated", "alone"):
        rows = [row for line in lines if line.what == what for row in line.numbers]
        if not rows:
            continue
        out.append(covered("all", what, rows))
        out[-1].numbers = None  # they stand with their cases
    return out


def entry(case: Case, found: Measured, kernel: dict[str, Any], lines: list[Line]) -> dict[str, Any]:
    """What the JSON holds of a case; the rows of `repeated` follow from the corrections."""
    return {
        "case": case.name,
        "kernel": case.kernel,
        **{name: kernel[name] for name in ("policy", "built_for_loops", "register_limit", "clean", "traced")},
        "resident_blocks": found.resident_blocks,
        "corrections": found.repetitions,
        "corrections_alone": found.alone,
        "lines": {
            line.what: {"found": line.found, "passed": line.passed}
            | ({} if line.what == "repeated" else {"numbers": line.numbers})
            for line in lines
        },
    }


def print_table(lines: list[Line]) -> None:
    """A line each, with pass or FAIL."""
    print(f"{'kernel':<14} {'line':<9} {'found':<50} {'asked':<12} result")
    for line in lines:
        print(f"{line.case:<14} {line.what:<9} {line.found:<50} {line.asked:<12} {'pass' if line.passed else 'FAIL'}")


def main() -> int:
    """Measure all cases, write the JSON, print the table; 1 when a line fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--cases", default="", help="only cases whose names contain this")
    options = parser.parse_args()
    import torch

    torch.manual_seed(1)
    began_s = time.monotonic()
    lines, cases, facts = list[Line](), list[dict[str, Any]](), dict[str, Any]()
    for case in CASES:
        if options.cases not in case.name:
            continue
        try:
            found, facts = measure_case(case, torch)
        except (
            RuntimeError,
            WarplensError,
            UnfitError,
        ) as error:  # what could not be measured fails, and the others are still told
            lines.append(Line(case.name, "sum", f"not measured: {error}", "corrections", False, None))
            continue
        own_lines = judge(case.name, found)
        lines += own_lines
        cases.append(entry(case, found, facts["kernels"][0], own_lines))
        marks = found.repetitions[0]["mark_cycles"]
        print(f"{case.name}: a mark costs {marks['p50']} cycles; {time.monotonic() - began_s:.0f} s so far", flush=True)
    together = judge_together(lines)
    command = f"python benchmarks/corrections.py -o {options.output.name}"
    nvrtc = ".".join(map(str, load_nvrtc().nvrtcVersion()[1:]))
    head = described(command, "numpy", "torch", "cuda-bindings", nvrtc=nvrtc)
    gpu = {"device": facts.get("device"), "clocks": facts.get("clock_state"), "host": head.pop("device")}
    method = {"repetitions": REPETITIONS, "launches": LAUNCHES, "close": CLOSE, "covered": COVERED}
    overall = {line.what: {"found": line.found, "passed": line.passed} for line in together}
    result = {"benchmark": "corrections", **head, **gpu, "method": method, "overall": overall, "cases": cases}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    print_table(lines + together)
    failed = [
        line
        for line in (*(line for line in lines if line.what == "sum"), *together)
        if not line.passed and line.what != "tripled"
    ]
    verdict = "FAILED" if failed else "all that is asked holds"
    print(f"wrote {options.output}; {time.monotonic() - began_s:.0f} s; {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
