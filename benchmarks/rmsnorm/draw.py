"""Plots and tables from the benchmark's JSON and the predictions. Needs no GPU, no torch.

In: the result of run.py, predictions.json. Out: PNG files, lines of text, Markdown for the gallery. A kernel keeps its
colour in all plots.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

COPY = "copy"
BEST = "shaped"
ALONE = "aligned"
"""The last step whose launches do not overlap."""
PREDICTIONS = Path(__file__).parent / "predictions.json"
PREDICTED_AT = 4096, 5120  # rows, hidden: what the traces that predictions were made from show
COLORS = {"torch": "#ee7733", "Liger-Kernel": "#009988", "QuACK": "#cc3311", "FlashInfer": "#aa4499", COPY: "#555555"}
OURS = {"document": "#8899aa", "four_vectors": "#88bbee", ALONE: "#3377cc", BEST: "#002255"}
"""The steps that are drawn as lines; the others lie on one of them."""
VALUE_BYTES = 2


def size_of(result: dict[str, Any], rows: int, hidden: int) -> dict[str, Any]:
    """The entry of one size. Raises KeyError."""
    for size in result["sizes"]:
        if (size["rows"], size["hidden"]) == (rows, hidden):
            found: dict[str, Any] = size
            return found
    raise KeyError(f"no size {rows} x {hidden} in the result")


def sizes_of(result: dict[str, Any], hidden: int) -> list[dict[str, Any]]:
    """The entries of one hidden size, by rows."""
    return sorted((s for s in result["sizes"] if s["hidden"] == hidden), key=lambda s: int(s["rows"]))


def gigabytes_per_second(size: dict[str, Any], name: str) -> float:
    """x read and y written, over the median time."""
    return float(2 * size["rows"] * size["hidden"] * VALUE_BYTES / median(size["ns"][name]))


def copy_fraction(size: dict[str, Any], name: str) -> float:
    """Bandwidth of a kernel over the copy's, medians over rounds."""
    return float(median(size["ns"][COPY]) / median(size["ns"][name]))


def spread(values: list[float]) -> float:
    """(largest - smallest) / median."""
    return float((max(values) - min(values)) / median(values))


def peers_of(result: dict[str, Any], size: dict[str, Any]) -> list[str]:
    """The kernels that are neither ours nor the copy."""
    return [name for name in size["ns"] if name != COPY and "step" not in result["kernels"][name]]


def best_peer(result: dict[str, Any], size: dict[str, Any]) -> str:
    """The fastest peer at this size."""
    return min(peers_of(result, size), key=lambda name: float(median(size["ns"][name])))


def lead(result: dict[str, Any], size: dict[str, Any], name: str) -> float:
    """Time of the fastest peer over that of kernel `name`: above 1 the kernel is ahead."""
    return float(median(size["ns"][best_peer(result, size)]) / median(size["ns"][name]))


def plots(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the PNG files; their paths."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    style: Any = {"font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        for name, paint, inches in (
            ("bandwidth", _bandwidth, (7.5, 4.2)),
            ("grid", _grid, (7.5, 3.4)),
            ("gains", _gains, (8.5, 3.2)),
        ):
            figure = Figure(figsize=inches, layout="constrained")
            FigureCanvasAgg(figure)
            paint(result, figure.subplots())
            path = folder / f"rmsnorm_{name}.png"
            figure.savefig(path, dpi=120, metadata={"Software": None})
            paths.append(path)
    return paths


def _bandwidth(result: dict[str, Any], axes: Any) -> None:
    sizes = sizes_of(result, 5120)
    rows = [size["rows"] for size in sizes]
    for name, color in {**COLORS, **OURS}.items():
        if name == COPY or name not in sizes[0]["ns"]:
            continue
        middle = [copy_fraction(size, name) for size in sizes]
        copies = [median(size["ns"][COPY]) for size in sizes]
        low = [m - c / max(s["ns"][name]) for m, c, s in zip(middle, copies, sizes, strict=True)]
        high = [c / min(s["ns"][name]) - m for m, c, s in zip(middle, copies, sizes, strict=True)]
        ours = name in OURS
        axes.errorbar(rows, middle, yerr=[low, high], color=color, label=name, linewidth=2.2 if ours else 1.3)
    axes.axhline(1.0, color=COLORS[COPY], linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(r) for r in rows])
    axes.set_xlabel("rows of 5120 bfloat16")
    axes.set_ylabel("bandwidth over the copy's")
    axes.set_title(f"RMSNorm forward, {result['device']['name']}; line: all rounds", fontsize=9)
    axes.legend(ncols=2, frameon=False, fontsize=8)


def _grid(result: dict[str, Any], axes: Any) -> None:
    hiddens = sorted({size["hidden"] for size in result["sizes"]})
    rows = sorted({size["rows"] for size in result["sizes"]})
    leads = [[lead(result, size_of(result, r, h), BEST) for r in rows] for h in hiddens]
    axes.imshow(leads, cmap="RdBu", vmin=0.5, vmax=1.5, aspect="auto")
    for y, hidden in enumerate(hiddens):
        for x, r in enumerate(rows):
            peer = best_peer(result, size_of(result, r, hidden))
            axes.text(x, y, f"{leads[y][x]:.2f}\n{peer}", ha="center", va="center", fontsize=6.5)
    axes.set_xticks(range(len(rows)), [str(r) for r in rows])
    axes.set_yticks(range(len(hiddens)), [str(h) for h in hiddens])
    axes.set_xlabel("rows")
    axes.set_ylabel("hidden")
    axes.set_title(f"time of the fastest peer (named) over that of {BEST}: above 1 it is ahead", fontsize=9)


def _gains(result: dict[str, Any], axes: Any) -> None:
    found = gains(result)
    for offset, key, color in ((-0.2, "predicted", "#bbbbbb"), (0.2, "measured", "#3377cc")):
        values = [(i + offset, g[key]) for i, g in enumerate(found) if g[key] is not None]
        axes.bar([v[0] for v in values], [v[1] - 1 for v in values], 0.38, bottom=1, color=color, label=key)
        for x, value in values:
            axes.text(x, max(value, 1.0), f"{value:.3f}", ha="center", va="bottom", fontsize=6.5)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(found)), [f"{g['step']}\nafter\n{g['after']}" for g in found], fontsize=7.5)
    axes.set_ylabel("gain (time before / after)")
    axes.set_title("{} x {}, warm: each step against the one before it".format(*PREDICTED_AT), fontsize=9)
    axes.legend(frameon=False, fontsize=8)


def gains(result: dict[str, Any], rows: int = PREDICTED_AT[0]) -> list[dict[str, Any]]:
    """Each step against the one it was made from, predicted and measured."""
    return [
        {
            "step": p["step"],
            "after": p["after"],
            "predicted": p["predicted_gain"],
            "measured": gain(result, p, rows, PREDICTED_AT[1]),
        }
        for p in predictions()
    ]


def predictions() -> list[dict[str, Any]]:
    """What was written down before each step was measured."""
    found: list[dict[str, Any]] = json.loads(PREDICTIONS.read_text(encoding="utf-8"))
    return found


def gain(result: dict[str, Any], prediction: dict[str, Any], rows: int, hidden: int) -> float:
    """What the step of a prediction gained at one size over the one it was made from."""
    times = size_of(result, rows, hidden)["ns"]
    return float(median(times[prediction["after"]]) / median(times[prediction["step"]]))


def table(result: dict[str, Any]) -> list[str]:
    """What is printed: us of every kernel at hidden 5120, and how far the best step is."""
    sizes = sizes_of(result, 5120)
    lines = ["us (spread)".ljust(14) + "".join(f"{size['rows']:>16}" for size in sizes)]
    for name in sizes[0]["ns"]:
        cells = [f"{median(s['ns'][name]) / 1e3:.2f} ({spread(s['ns'][name]):.1%})" for s in sizes]
        lines.append(name.ljust(14) + "".join(f"{cell:>16}" for cell in cells))
    for name in (ALONE, BEST):
        of_copy, ahead = [copy_fraction(s, name) for s in sizes], [lead(result, s, name) for s in sizes]
        lines.append(f"{name} / copy".ljust(14) + "".join(f"{value:>16.3f}" for value in of_copy))
        lines.append(f"peer / {name}".ljust(14) + "".join(f"{value:>16.3f}" for value in ahead))
    return lines
