"""The two pictures of a launch, as PNG or SVG.

In: a Trace, a kind ("blocks" or "warps") and a path. Out: the file at that path, written whole or not at all.
matplotlib is imported here alone, with its Agg backend. Bars are one PolyCollection a site, so that 10^5 of them
take about a second; an SVG holds them as one picture and comes out the same bytes each time.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.render.escape import visible
from warplens.render.facts import mapping
from warplens.render.pick import shape
from warplens.trace.whole import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from warplens.trace import Trace

KINDS: Final = ("blocks", "warps")
SUFFIXES: Final = (".png", ".svg")
PIXELS_PER_INCH: Final = 150
_STYLE: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.parse_math": False,  # a site may be named "$x$"
    "svg.hashsalt": "warplens",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6c757d",
    "axes.labelcolor": "#343a40",
    "xtick.color": "#495057",
    "ytick.color": "#495057",
    "hatch.linewidth": 0.6,
    "axes.unicode_minus": False,
}


def plot(trace: Trace, kind: str, path: str | Path, *, launch: int | None = None, block: int | None = None) -> Path:
    """Write the picture `kind` of `launch` to `path` (`.png` or `.svg`); returns the path.

    "blocks": all blocks on one axis in ns, a lane an SM. "warps": the warps of `block` in cycles; without `block`
    the first block of the second wave, else the first. `launch` is by default the first that recorded something.
    Raises UsageError for an unknown kind, suffix, launch or block, FileError when `path` cannot be written.
    """
    target = Path(path)
    if kind not in KINDS:
        raise UsageError(f"no picture {kind!r}: there are {' and '.join(KINDS)}")
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot tell the format of {target.name!r}: the name must end in {' or '.join(SUFFIXES)}")
    if kind == "blocks" and block is not None:
        raise UsageError("the picture of all blocks takes no block: use `warps`")
    import matplotlib  # no pyplot and no backend: a notebook keeps its own

    with matplotlib.rc_context(_STYLE):
        figure = _figure(trace, kind, launch, block)
        _write(figure, target)
    return target


def _figure(trace: Trace, kind: str, launch: int | None, block: int | None) -> Figure:
    if kind == "blocks":
        from warplens.render.plot_blocks import blocks_figure

        return blocks_figure(trace, launch)
    from warplens.render.plot_warps import warps_figure

    return warps_figure(trace, launch, block)


def _write(figure: Figure, target: Path) -> None:
    suffix = target.suffix.lower()
    metadata: dict[str, Any] = {"Date": None, "Creator": "warplens"} if suffix == ".svg" else {"Software": "warplens"}
    with whole_file(target) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=PIXELS_PER_INCH, metadata=metadata)


def drawable(text: object, *, limit: int = 60) -> str:
    """`text` for a picture: made visible, and characters that the font lacks written as escapes."""
    glyphs = _glyphs()
    shown = visible(text, limit=limit)
    return "".join(c if ord(c) in glyphs else f"\\u{{{ord(c):x}}}" for c in shown)


def title_facts(trace: Trace, launch: int, facts: str) -> tuple[str, str]:
    """Title (kernel and device) and the line under it: launch, its shape, `facts`, uncertainty of the time axis."""
    row = trace.launches.filter(trace.launches["launch"] == launch).to_dicts()[0]
    device = mapping(trace.manifest.get("device")).get("name") or "a device not known"
    title = f"{drawable(row['kernel'])} on {drawable(device)}"
    uncertainty = row["uncertainty_ns"]
    known = uncertainty is not None and math.isfinite(uncertainty)
    within = f"SMs agree within {uncertainty:.0f} ns" if known else "agreement between SMs not known"
    threads = f"{shape(row, 'block')} threads a block"
    return title, f"launch {launch}  ·  grid {shape(row, 'grid')}  ·  {threads}  ·  {facts}  ·  {within}"


def _glyphs() -> Collection[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    return font.get_charmap()
