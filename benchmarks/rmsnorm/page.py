"""The tables and pictures of docs/gallery/rmsnorm.md, from the benchmark's JSON and the recordings. Needs no GPU.

In: the result of run.py, recordings/. Out: the page with current tables between its markers, PNG files. Nothing else
in the page is touched.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import draw

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "gallery" / "rmsnorm.md"
RECORDINGS = REPOSITORY / "recordings"
PLACES = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end of table -->\n", re.DOTALL)
STEPS = REPOSITORY / "examples" / "rmsnorm" / "steps"
RECORDED_ROWS = 4096
DOCUMENT = "rmsnorm.cu"
DIFFERENCES = {
    "weight_early": (DOCUMENT, "1_weight_early.cu"),
    "one_barrier": ("1_weight_early.cu", "2_one_barrier.cu"),
    "four_vectors": ("2_one_barrier.cu", "3_four_vectors.cu"),
    "ring": ("3_four_vectors.cu", "4_ring.cu"),
    "bulk": ("3_four_vectors.cu", "5_bulk.cu"),
    "aligned": ("5_bulk.cu", "6_aligned.cu"),
    "overlap": ("6_aligned.cu", "7_overlap.cu"),
    "ahead": ("7_overlap.cu", "8_ahead.cu"),
    "direct": ("8_ahead.cu", "9_direct.cu"),
    "shaped": ("9_direct.cu", "10_shaped.cu"),
}
SHAPES = {"32768x1024": ("aligned", "overlap", "shaped"), "4096x16384": ("overlap", "shaped")}
"""Size -> the steps that are recorded there."""
PICTURES = {
    "rmsnorm_document_blocks": ("rmsnorm_432x5120_h200", "blocks", None),
    "rmsnorm_aligned_warps": ("rmsnorm_aligned_432x5120_h200", "warps", None),
    "rmsnorm_four_vectors_diff": (
        "rmsnorm_one_barrier_4096x5120_h200",
        "diff",
        "rmsnorm_four_vectors_4096x5120_h200",
    ),
}
"""Picture -> recording, kind, and for `diff` the recording after."""


def rewritten(text: str, result: dict[str, Any]) -> str:
    """The page `text` with current tables between its markers."""
    tables: dict[str, Callable[[dict[str, Any]], str]] = {
        "times": times,
        "gains": gains,
        "gains_elsewhere": gains_elsewhere,
        "phases": phases,
        "shapes": shapes,
        "cold": cold,
        "host": host,
        "behind": behind,
        "kernels": kernels,
        **{f"diff_{step}": lambda _result, files=files: difference(*files) for step, files in DIFFERENCES.items()},
    }
    return PLACES.sub(
        lambda place: f"<!-- table {place[1]} -->\n\n{tables[place[1]](result)}\n\n<!-- end of table -->\n", text
    )


def difference(before: str, after: str) -> str:
    """What changes from one step's kernel to the next."""
    kernels = [kernel_text(name) for name in (before, after)]
    lines = difflib.unified_diff(*kernels, before, after, n=2, lineterm="")
    return "\n".join(["```diff", *lines, "```"])


def kernel_text(name: str) -> list[str]:
    """The lines of a step's kernel, from its dynamic shared memory or its template on."""
    path = files("warplens") / "demo" / name if name == DOCUMENT else STEPS / name
    text = path.read_text(encoding="utf-8")
    begin = re.search(r"^(extern __shared__|template <typename T, bool kTrace>)", text, re.MULTILINE)
    assert begin, f"{name} holds no kernel"
    return text[begin.start() :].splitlines()


def pictures(folder: Path) -> list[Path]:
    """Draw the recordings; the paths of the PNG files."""
    import warplens

    return [
        warplens.plot(opened(name), kind, folder / f"{picture}.png", after=opened(after) if after else None)
        for picture, (name, kind, after) in PICTURES.items()
    ]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; all columns but the first are set to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def microseconds(values: list[float]) -> str:
    """Median, and the spread over rounds."""
    return f"{median(values) / 1e3:.2f} ±{draw.spread(values) / 2:.1%}".replace("%", " %")


def times(result: dict[str, Any]) -> str:
    """us of every kernel at hidden 5120, and the bandwidth of the best step."""
    sizes = draw.sizes_of(result, 5120)
    rows = [[f"`{name}`", *[microseconds(s["ns"][name]) for s in sizes]] for name in sizes[0]["ns"]]
    for name in (draw.ALONE, draw.BEST):
        rows.append([f"`{name}`, of the copy's bandwidth", *[f"{draw.copy_fraction(s, name):.1%}" for s in sizes]])
        rows.append([f"fastest peer / `{name}`", *[f"{draw.lead(result, s, name):.3f}" for s in sizes]])
    rows.append([f"`{draw.BEST}`, GB/s", *[f"{draw.gigabytes_per_second(s, draw.BEST):,.0f}" for s in sizes]])
    return markdown(["us", *[f"{size['rows']}" for size in sizes]], rows)


def gains(result: dict[str, Any]) -> str:
    """Each step's predicted and measured gain."""
    at = {rows: {g["step"]: g["measured"] for g in draw.gains(result, rows)} for rows in (256, 4096, 16384)}
    rows = [
        [
            f"`{g['step']}` after `{g['after']}`",
            "none" if g["predicted"] is None else f"{g['predicted']:.3f}",
            *[f"{at[rows][g['step']]:.3f}" for rows in (4096, 16384, 256)],
        ]
        for g in draw.gains(result)
    ]
    return markdown(["step", "predicted, 4096 rows", "measured, 4096 rows", "16384 rows", "256 rows"], rows)


def gains_elsewhere(result: dict[str, Any]) -> str:
    """What was predicted for other hidden sizes, and what was measured there."""
    rows = [
        [
            f"`{p['step']}` after `{also['after']}`",
            f"{also['rows']} x {also['hidden']}",
            f"{also['predicted_gain']:.3f}",
            f"{draw.gain(result, {**p, **also}, also['rows'], also['hidden']):.3f}",
        ]
        for p in draw.predictions()
        for also in p.get("also", [])
    ]
    return markdown(["step", "rows x hidden", "predicted", "measured"], rows)


def phases(result: dict[str, Any]) -> str:
    """Mean corrected duration of each phase of each step, from the recordings, beside the kernel's time."""
    names = [name for name, facts in result["kernels"].items() if "step" in facts]
    return side_by_side({f"`{name}`": recorded(name, f"{RECORDED_ROWS}x5120") for name in names})


def shapes(_result: dict[str, Any]) -> str:
    """The same for the sizes at which blocks of another shape were needed, and how fast blocks began."""
    return side_by_side(
        {
            f"{size.replace('x', ' x ')}, `{name}`": {**recorded(name, size), **pace(name, size)}
            for size, names in SHAPES.items()
            for name in names
        }
    )


def opened(name: str) -> Any:
    """A recording."""
    import warplens

    return warplens.open(RECORDINGS / f"{name}.wlens")


def recorded(name: str, size: str) -> dict[str, str]:
    """What the recording of a step says of its phases and builds, by label; phases are labelled in backquotes."""
    import polars as pl

    trace = opened(f"rmsnorm_{name}_{size}_h200")
    kernel = trace.manifest["kernels"][0]
    spans = trace.spans.join(trace.sites, on="site")
    means = spans.group_by("name", maintain_order=True).agg(pl.col("corrected_ns").mean())
    clean, traced = median(kernel["clean_ns"]), median(kernel["traced_ns"])
    return {
        **{f"`{site}`": f"{ns:,.0f}" for site, ns in means.iter_rows()},
        "kernel, clean, us": f"{clean / 1e3:.1f}",
        "traced / clean": f"{traced / clean:.2f}",
        "resident blocks": str(kernel["clean"]["resident_blocks"]),
        "threads a block": str(math.prod(trace.manifest["launches"][0]["block"])),
    }


def pace(name: str, size: str) -> dict[str, str]:
    """How fast blocks begin after the first quarter of the recorded ones, and how many an SM holds then."""
    trace = opened(f"rmsnorm_{name}_{size}_h200")
    blocks = trace.blocks.sort("block")
    later = blocks.slice(blocks.height // 4)
    first, last = later.row(0, named=True), later.row(-1, named=True)
    between_ns = (last["start_ns"] - first["start_ns"]) / (last["block"] - first["block"])
    life_ns = (later["end_ns"] - later["start_ns"]).mean()
    return {
        "ns from one block's begin to the next's": f"{between_ns:.2f}",
        "life of a block, ns": f"{life_ns:,.0f}",
        "blocks on an SM at once": f"{life_ns / between_ns / trace.manifest['device']['sm_count']:.1f}",
    }


def side_by_side(columns: dict[str, dict[str, str]]) -> str:
    """A table of labelled values, phases first, in the order in which the last columns have them."""
    found = list(columns.values())
    order = list(dict.fromkeys(label for column in reversed(found) for label in column if label[0] == "`"))
    order += [label for label in found[0] if label[0] != "`"]
    rows = [[label, *[column.get(label, "") for column in found]] for label in order]
    return markdown(["ns a warp and row", *columns], rows)


def cold(result: dict[str, Any]) -> str:
    """us with a cold L2."""
    entries = result["cold"]
    rows = [[f"`{name}`", *[f"{median(e['ns'][name]) / 1e3:.2f}" for e in entries]] for name in entries[0]["ns"]]
    return markdown(["us, L2 cold", *[str(e["rows"]) for e in entries]], rows)


def host(result: dict[str, Any]) -> str:
    """us a call in Python."""
    calls = result["host"]["calls"]
    rows = [
        [f"`{name}`", f"{c['alone_median_ns'] / 1e3:.1f}", f"{c['in_a_row_ns'] / 1e3:.1f}"] for name, c in calls.items()
    ]
    return markdown(["us a call", "alone, to the result", "many in a row"], rows)


def behind(result: dict[str, Any]) -> str:
    """The sizes of the grid at which the best step is behind a peer."""
    rows = []
    for size in sorted(result["sizes"], key=lambda s: (s["hidden"], s["rows"])):
        lead = draw.lead(result, size, draw.BEST)
        if lead < 1:
            peer = draw.best_peer(result, size)
            alone = draw.lead(result, size, draw.ALONE)
            rows.append([f"{size['rows']} x {size['hidden']}", peer, f"{lead:.3f}", f"{alone:.3f}"])
    if not rows:
        return f"`{draw.BEST}` is ahead of every peer at all {len(result['sizes'])} sizes."
    head = ["rows x hidden", "fastest peer", f"its time / `{draw.BEST}`", f"its time / `{draw.ALONE}`"]
    return (
        markdown(head, rows) if rows else f"`{draw.BEST}` is ahead of every peer at all {len(result['sizes'])} sizes."
    )


def kernels(result: dict[str, Any]) -> str:
    """What was compared: version, what it writes, whether launches overlap."""
    rows = []
    for name, facts in result["kernels"].items():
        version = facts.get("version", f"step {facts['step']}" if "step" in facts else facts.get("left_out", ""))
        overlaps = facts.get("launches_overlap", name == "FlashInfer")
        rows.append([f"`{name}`", version, facts.get("writes", ""), "yes" if overlaps else "no"])
    return markdown(["kernel", "version", "writes", "launches overlap"], rows)
