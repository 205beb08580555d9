"""The pictures of a trace, as PNG, SVG or PDF.

In: a Trace, a kind (one of KINDS) and a path. Out: the file at that path, written whole or not at all.
matplotlib is imported here alone, without a backend. Bars are one PolyCollection a site, so that 10^5 of them
take about a second; an SVG or PDF holds them as one picture and comes out the same bytes each time.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.render.escape import visible, visible_site
from warplens.render.facts import mapping
from warplens.render.pick import shape
from warplens.whole import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from warplens.trace import Trace

KINDS: Final = ("blocks", "warps", "distributions", "sm", "diff")
SUFFIXES: Final = (".png", ".svg", ".pdf")
PIXELS_PER_INCH: Final = 150
_STYLE: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.parse_math": False,  # a site may be named "$x$"
    "svg.hashsalt": "warplens",
    "pdf.fonttype": 42,  # text stays text: to be searched, and edited in a drawing program
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6c757d",
    "axes.labelcolor": "#343a40",
    "xtick.color": "#495057",
    "ytick.color": "#495057",
    "hatch.linewidth": 0.6,
    "axes.unicode_minus": False,
}


def plot(
    trace: Trace,
    kind: str,
    path: str | Path,
    *,
    launch: int | None = None,
    block: int | None = None,
    site: str | None = None,
    after: Trace | None = None,
) -> Path:
    """Write the picture `kind` of `launch` to `path` (`.png`, `.svg` or `.pdf`); returns the path.

    - "blocks": all blocks on one axis in ns, a lane an SM.
    - "warps": the warps of `block` in cycles; without `block` the first block of the second wave, else the first.
    - "distributions": how long the spans of each site last, in cycles, by role where warps differ.
    - "sm": how many warps of each SM are in one site, over time. `site` is its name; without it the phase or wait
      with the largest share of block time.
    - "diff": each site's median, p10 and p90 in `trace` and in `after`, in cycles.

    `launch` is by default the first that recorded something; "distributions" and "diff" then pool all launches of its
    kernel and shape. Raises UsageError for an unknown kind, suffix, launch, block or site, and for an argument that
    the kind does not take; FileError when `path` cannot be written.

    >>> warplens.plot(trace, "sm", "load.pdf", site="load_sumsq")   # doctest: +SKIP
    """
    target = Path(path)
    if kind not in KINDS:
        raise UsageError(f"no picture {kind!r}: there are {', '.join(KINDS)}")
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot tell the format of {target.name!r}: the name must end in {', '.join(SUFFIXES)}")
    for name, value, of_kind in (("block", block, "warps"), ("site", site, "sm"), ("second trace", after, "diff")):
        if value is not None and kind != of_kind:
            raise UsageError(f"the picture `{kind}` takes no {name}: `{of_kind}` does")
    if kind == "diff" and after is None:
        raise UsageError("the picture `diff` needs a second trace, the one after: warplens plot BEFORE diff AFTER")
    import matplotlib  # no pyplot and no backend: a notebook keeps its own

    with matplotlib.rc_context(_STYLE):
        figure = _figure(trace, kind, launch, block, site, after)
        _write(figure, target)
    return target


def _figure(
    trace: Trace, kind: str, launch: int | None, block: int | None, site: str | None, after: Trace | None
) -> Figure:
    if kind == "blocks":
        from warplens.render.plot_blocks import blocks_figure

        return blocks_figure(trace, launch)
    if kind == "warps":
        from warplens.render.plot_warps import warps_figure

        return warps_figure(trace, launch, block)
    if kind == "distributions":
        from warplens.render.plot_distributions import distributions_figure

        return distributions_figure(trace, launch)
    if kind == "sm":
        from warplens.render.plot_sm import sm_figure

        return sm_figure(trace, launch, site)
    from warplens.render.plot_diff import diff_figure

    assert after is not None
    return diff_figure(trace, after, launch)


def _write(figure: Figure, target: Path) -> None:
    suffix = target.suffix.lower()
    of_suffix: dict[str, dict[str, Any]] = {
        ".png": {"Software": "warplens"},
        ".svg": {"Date": None, "Creator": "warplens"},
        ".pdf": {"CreationDate": None, "Creator": "warplens", "Producer": None},
    }
    with whole_file(target) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=PIXELS_PER_INCH, metadata=of_suffix[suffix])


def drawable(text: object, *, limit: int = 60) -> str:
    """`text` for a picture: made visible, and characters that the font lacks written as escapes."""
    return _in_font(visible(text, limit=limit))


def drawable_site(name: object, *, limit: int) -> str:
    """A site's name for a picture, cut where it tells least."""
    return _in_font(visible_site(name, limit=limit))


def _in_font(shown: str) -> str:
    glyphs = _glyphs()
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
