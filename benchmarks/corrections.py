"""Do corrections hold? Five kernels, each measured twice over and in a build with other marks.

In: a GPU machine with torch and an installed warplens. Out: a JSON with device, clocks, versions and raw numbers, and
a table with pass or fail for each line; exit code 1 when one fails. Under a minute: cases for which less time is left
than the longest took are told as not run.

The lines, for each kernel (docs/adr/0008-corrections.md says why). Two repetitions are launches of their own each:
    sum       corrected phases of a repetition against the life in the two-mark build of the other one: 3 %
    doubled   phases of the doubled build of one, less twice the cost in the other, against its own less that cost
    repeated  one repetition lies in the 90 % interval that the other states
    alone     against a build with only the first mark of the warp and the two around the phase: told
    covered   the rows of repeated and alone, over all kernels: 85 %

    python benchmarks/corrections.py -o benchmarks/results/corrections.json
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from machine import described

from warplens.capture.compile import load_nvrtc
from warplens.decode.corrected import TILING, role_factors

HERE = Path(__file__).parent
RMSNORM = HERE.parent / "src" / "warplens" / "demo" / "rmsnorm.cu"
REPETITIONS = 2
LAUNCHES = 8
"""Of each build: as many as corrections take."""
SECONDS = 53
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
    alone: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`corrections` of captures with only the first mark and those around a site, by site."""
    alone_not_measured: dict[str, str] = field(default_factory=dict)


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
SIZE, DEPTH, ROWS, BLOCKS, TILES = 1024, 128, 528, 528, 8
MATRICES = of_floats(SIZE * DEPTH, DEPTH * SIZE, SIZE * SIZE, more=(np.uint32(SIZE), np.uint32(DEPTH)))
VECTORS = of_floats(*[BLOCKS * 256 * 16] * 3, more=(np.float32(0.5),))
TILED = of_floats(ROWS * TILES * 256 * 4, ROWS * 256, more=(np.uint32(TILES),))
CASES = (
    rmsnorm(432, "normalize"),
    own("matmul", "matmul_tiled", (SIZE // 64, SIZE // 64), 80 * KB, MATRICES, "load_tile"),
    own("axpy", "axpy_vectors", BLOCKS, 64 * KB, VECTORS, "combine"),
    own("softmax", "softmax_rows", ROWS, 48 * KB, of_floats(*[ROWS * 4096] * 2), "exponentiate"),
    own("pipeline", "pipeline_sums", ROWS, 52 * KB, TILED, "compute"),
    rmsnorm(16384),
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
    """All that is measured of a case, and the manifest of its last whole capture."""
    arguments, shape = case.arguments(torch), (case.grid, case.block)
    how = {"shared_bytes": case.shared_bytes, "rounds": LAUNCHES, "warmup": 2, "audit": False}
    torch.cuda.synchronize()
    kernel = build(case)
    repetitions = []
    for _ in range(REPETITIONS):
        manifest = kernel.capture(*shape, *arguments, **how).manifest
        repetitions.append(corrections_of(manifest, case.name))
    found = Measured([site["name"] for site in manifest["site_sets"][0]["sites"]], repetitions)
    for site in case.alone:
        source = marks_kept(case.source.read_text(encoding="utf-8"), site)
        try:
            capture = build(case, source=source).capture(*shape, *arguments, **how)
            found.alone[site] = corrections_of(capture.manifest, f"{case.name}, {site} alone")
        except Exception as error:  # the other lines of this case are told all the same
            found.alone_not_measured[site] = f"{type(error).__name__}: {error}"
    return found, manifest


def corrections_of(manifest: dict[str, Any], what: str) -> dict[str, Any]:
    """The corrections; RuntimeError with the reason where there are none."""
    found: dict[str, Any] = manifest["kernels"][0]["corrections"]
    if found["not_measured"] is not None:
        raise RuntimeError(f"{what}: not corrected: {found['not_measured']}")
    return found


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
    """Rows by (warps of the role, site): of phases and waits, or of warps' lives. `shared_cycles` is how much of it the
    anchor took away or added."""
    rows, factors = found["rows"], role_factors(found)
    out = {}
    for index, verb in enumerate(rows["verb"]):
        if (verb == "life") if life else verb in TILING:
            row = {name: rows[name][index] for name in rows}
            row["factor"], _ = factors[row["role"]]
            direct = row["duration_cycles"] - row["cost_cycles"]
            row["corrected_cycles"], row["shared_cycles"] = direct * row["factor"], abs(direct * (row["factor"] - 1))
            out[tuple(found["roles"][row["role"]]), row["site"]] = row
    return out


def weighted(rows: Any, name: str) -> float:
    """The mean of a column over rows, by their spans."""
    rows = list(rows)
    return float(np.average([row[name] for row in rows], weights=[row["spans"] for row in rows]))


def two_mark_life(found: dict[str, Any]) -> float | None:
    """Mean life of a warp in the two-mark build of a repetition; None where that was not measured."""
    anchor, lives = found["anchor"], table_of(found, life=True).values()
    if anchor["not_measured"] is not None or any(anchor["life_cycles"][row["role"]] is None for row in lives):
        return None
    return weighted([row | {"two": anchor["life_cycles"][row["role"]]} for row in lives], "two")


def sum_line(case: str, found: Measured) -> Line:
    """Corrected phases of a warp's life in each repetition, over its life in the two-mark build of another."""
    lives = [two_mark_life(repetition) for repetition in found.repetitions]
    if None in lives:
        why = next((r["anchor"]["not_measured"] for r in found.repetitions), None) or "not in all roles"
        return Line(case, "sum", f"not anchored: {why}", f"within {100 * CLOSE:.0f} %", False, None)
    ratios: dict[str, list[float]] = {"duration_cycles": [], "corrected_cycles": []}
    for (one, _), (_, life) in permutations(zip(found.repetitions, lives, strict=True), 2):
        warps = sum(row["spans"] for row in table_of(one, life=True).values())
        for name, values in ratios.items():
            values.append(sum(row["spans"] * row[name] for row in table_of(one).values()) / warps / life)
    worst, raw = (
        max(ratios[name], key=lambda ratio: abs(ratio - 1)) for name in ("corrected_cycles", "duration_cycles")
    )
    text = f"{100 * worst:.2f} % of {lives[0]:,.0f} cycles (raw {100 * raw:.2f} %)"
    numbers = {"life_cycles": lives, **ratios}
    return Line(case, "sum", text, f"within {100 * CLOSE:.0f} %", abs(worst - 1) <= CLOSE, numbers)


def doubled_line(case: str, found: Measured) -> Line:
    """Phases of the doubled build of a repetition, less twice the cost that another one found, against those of the
    other one's single marks less the cost."""
    rows = []
    for one, other in permutations(map(table_of, found.repetitions), 2):
        for key in sorted(set(one) & set(other)):
            row, factor = one[key], one[key]["factor"]
            doubled = other[key]["duration_cycles"] + other[key]["cost_cycles"]
            corrected = (doubled - 2 * row["cost_cycles"]) * factor
            chance = math.hypot(row["corrected_uncertainty_cycles"], factor * row["cost_uncertainty_cycles"])
            rows.append(compared(found, key[1], row["corrected_cycles"], corrected, chance, row["shared_cycles"]))
    return covered(case, "doubled", rows)


def compared(found: Measured, site: int, one: float, other: float, chance: float, shared: float) -> dict[str, Any]:
    """A pair of corrected durations in cycles; `in` where the other lies within the stated error."""
    row = {"site": found.sites[site - 1], "one": one, "other": other, "chance": chance, "shared": shared}
    apart = abs(one - other)
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    return rounded | {"in": bool(apart <= chance + shared), "in_chance": bool(apart <= chance)}


def covered(case: str, what: str, rows: list[dict[str, Any]]) -> Line:
    """A line that asks for a share of rows that are `in`; what chance alone would cover is told."""
    inside, by_chance = (sum(row[name] for row in rows) for name in ("in", "in_chance"))
    share = inside / max(len(rows), 1)
    text = f"{inside} of {len(rows)} ({100 * share:.0f} %), by chance alone {by_chance}"
    return Line(case, what, text, f"{100 * COVERED:.0f} %", share >= COVERED, rows)


def repeated_line(case: str, found: Measured) -> Line:
    """Share of (role, site, pair of repetitions) in which one lies in the other's stated interval."""
    rows = []
    for one, other in permutations(map(table_of, found.repetitions), 2):
        for key in sorted(set(one) & set(other)):
            row, value = one[key], other[key]["corrected_cycles"]
            chance = row["corrected_uncertainty_cycles"]
            rows.append(compared(found, key[1], row["corrected_cycles"], value, chance, row["shared_cycles"]))
    return covered(case, "repeated", rows)


def alone_line(case: str, found: Measured) -> Line:
    """Share of sites whose corrected mean agrees with that of a build with only the marks around them: errors by chance
    add in squares, what the anchors shared out adds up."""
    rows = []
    for site, capture in found.alone.items():
        number = found.sites.index(site) + 1
        for repetition in found.repetitions:
            both = [[r for (_, s), r in table_of(f).items() if s == number] for f in (repetition, capture)]
            one, other = (weighted(part, "corrected_cycles") for part in both)
            chance = math.hypot(*(weighted(part, "corrected_uncertainty_cycles") for part in both))
            shared = sum(weighted(part, "shared_cycles") for part in both)
            rows.append(compared(found, number, one, other, chance, shared))
    line = covered(case, "alone", rows)
    for site, why in found.alone_not_measured.items():
        line.found, line.passed = f"{line.found}; {site} not measured: {why}", False
    return line


def judge(case: str, found: Measured) -> list[Line]:
    """All lines of a case."""
    lines = [sum_line(case, found), doubled_line(case, found), repeated_line(case, found)]
    return lines + ([alone_line(case, found)] if found.alone or found.alone_not_measured else [])


def judge_together(lines: list[Line]) -> list[Line]:
    """Coverage over all cases: what the single ones are too few for."""
    out = []
    for what, of in (("doubled", ["doubled"]), ("covered", ["repeated", "alone"])):
        rows = [row for line in lines if line.what in of for row in line.numbers]
        out += [covered("all", what, rows)] if rows else []
    return out


def entry(case: Case, found: Measured, kernel: dict[str, Any], lines: list[Line]) -> dict[str, Any]:
    """What the JSON holds of a case; the rows of `repeated` follow from the corrections."""
    return {
        "case": case.name,
        "kernel": case.kernel,
        **{name: kernel[name] for name in ("policy", "built_for_loops", "register_limit", "clean", "traced")},
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


@dataclass
class Results:
    """What has been measured so far."""

    lines: list[Line] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    """Why, by case."""
    not_run: list[str] = field(default_factory=list)

    def failed(self) -> list[Line]:
        """The lines that decide and do not hold."""
        sums = [line for line in self.lines if line.what == "sum"]
        return [line for line in sums + judge_together(self.lines) if not line.passed]

    def write(self, output: Path) -> None:
        """The JSON of what there is."""
        nvrtc = ".".join(map(str, load_nvrtc().nvrtcVersion()[1:]))
        command = f"python benchmarks/corrections.py -o {output.name}"
        head = described(command, "numpy", "torch", "cuda-bindings", nvrtc=nvrtc)
        gpu = {"device": self.facts.get("device"), "clocks": self.facts.get("clock_state"), "host": head.pop("device")}
        method = {"repetitions": REPETITIONS, "launches": LAUNCHES, "close": CLOSE, "covered": COVERED}
        overall = {line.what: {"found": line.found, "passed": line.passed} for line in judge_together(self.lines)}
        missing = {"not_measured": self.not_measured, "not_run": self.not_run}
        result = {"benchmark": "corrections", **head, **gpu, "method": method, "overall": overall, **missing}
        output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result | {"cases": self.cases}, separators=(",", ":"))
        output.write_text(text + "\n", encoding="utf-8")


def run_case(case: Case, torch: Any, results: Results) -> str:
    """Measure and judge one case; a line about it. One that cannot be measured fails, and the others are still told."""
    try:
        found, facts = measure_case(case, torch)
        lines = judge(case.name, found)
        told = entry(case, found, facts["kernels"][0], lines)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        results.not_measured[case.name] = why
        results.lines.append(Line(case.name, "sum", f"not measured: {why}", "corrections", False, None))
        return f"not measured: {why}"
    results.facts = facts
    results.lines += lines
    results.cases.append(told)
    return lines[0].found


def main() -> int:
    """Measure the cases, write the JSON after each, print the table; 1 when a line fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--cases", default="", help="only cases whose names contain this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no case that may end later")
    options = parser.parse_args()
    began_s = time.monotonic()
    import torch

    torch.manual_seed(1)
    results, longest_s = Results(), 0.0
    for case in CASES:
        if options.cases not in case.name:
            continue
        at_s = time.monotonic() - began_s
        if at_s + longest_s > options.seconds:
            results.not_run.append(case.name)
            continue
        told = run_case(case, torch, results)
        ended_s = time.monotonic() - began_s
        longest_s = max(longest_s, ended_s - at_s)
        print(f"{case.name}: {told}; {ended_s - at_s:.1f} s, {ended_s:.0f} s so far", flush=True)
        results.write(options.output)
    results.write(options.output)
    print_table(results.lines + judge_together(results.lines))
    for name in results.not_run:
        print(f"{name:<14} not run: {options.seconds:.0f} s would not have been enough")
    verdict = "FAILED" if results.failed() else "all that is asked holds" + " of what was run" * bool(results.not_run)
    print(f"wrote {options.output}; {time.monotonic() - began_s:.0f} s; {verdict}")
    return 1 if results.failed() or not results.cases else 0


if __name__ == "__main__":
    sys.exit(main())
