"""What is shown of a kernel that was stopped: why, and at which sites its warps last were.

In: a Trace. Out: a sentence, rows, a renderable; none of them where no kernel was stopped. Needs no records: the
places stand in the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warplens.decode.stopped import LastPlace, doubts, ended_beside, held_back, last_places
from warplens.render.escape import visible
from warplens.render.pick import counted

if TYPE_CHECKING:
    from warplens.trace import Trace

SITES_SHOWN: Final = 16
_SITES_IN_SENTENCE: Final = 4


def last_sites(trace: Trace) -> list[dict[str, Any]]:
    """Where warps last were: `site` (its name), `warps`, and `block` and `warp` of the first. Fewest warps first.

    Warps that ended are one row, the last, whose `site` is None; `block` and `warp` are None where nothing names one.
    """
    groups: dict[str | None, list[LastPlace]] = {}
    for place in last_places(trace.manifest) if trace.manifest.get("stopped") else ():
        groups.setdefault(None if place.ended else visible(place.name, limit=100), []).append(place)
    ordered = sorted(groups.items(), key=lambda item: (item[0] is None, len(item[1])))
    rows: list[dict[str, Any]] = [
        {"site": site, "warps": len(places), "block": places[0].block, "warp": places[0].warp}
        for site, places in ordered
    ]
    beside = ended_beside(trace.manifest) if trace.manifest.get("stopped") else 0
    if beside and rows and rows[-1]["site"] is None:
        rows[-1]["warps"] += beside
    elif beside:
        rows.append({"site": None, "warps": beside, "block": None, "warp": None})
    return rows


def stopped_text(trace: Trace) -> str | None:
    """Why the kernel was stopped, and the sites of the fewest warps, in a sentence."""
    stopped = trace.manifest.get("stopped")
    if not stopped:
        return None
    text = f"the kernel was stopped after {stopped['after_s']:.3g} s: {visible(stopped['why'], limit=400)}"
    rows = last_sites(trace)
    held = held_back(trace.manifest)
    more = "".join(f"; {line}" for line in doubts(trace.manifest))
    if not rows:
        return f"{text}; no warp {f'left a record{held}' if held else 'had come to a mark'}{more}"
    parts = [f"{counted(row['warps'], 'warp')} in {row['site']}" for row in rows if row["site"] is not None]
    if len(parts) > _SITES_IN_SENTENCE:
        parts = [*parts[:_SITES_IN_SENTENCE], "…"]
    ended = [f"{counted(row['warps'], 'warp')} had ended" for row in rows if row["site"] is None]
    return f"{text}; last seen{held}: {', '.join(parts + ended)}{more}"


def last_sites_table(trace: Trace) -> RenderableType | None:
    """A row a site: how many warps were last there, and one of them."""
    rows = last_sites(trace)
    if not rows:
        return None
    out = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    out.add_column("last seen in", overflow="fold", min_width=12)
    out.add_column("warps", justify="right", no_wrap=True)
    out.add_column("the first", no_wrap=True)
    shown = rows if len(rows) <= SITES_SHOWN else [*rows[: SITES_SHOWN - 1], rows[-1]]
    for row in shown:
        name = Text("(ended)", style="dim") if row["site"] is None else Text(row["site"])
        out.add_row(
            name,
            Text(f"{row['warps']:,}"),
            Text("" if row["block"] is None else f"block {row['block']} warp {row['warp']}"),
        )
    if len(shown) == len(rows):
        return out
    return Group(out, Text(f"{len(rows) - len(shown)} more rows in --json", style="dim"))
