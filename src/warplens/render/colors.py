"""Colours and letters of sites.

In: the names and kinds of a trace's sites. Out: one colour and one letter a site, the same in every picture.
A colour follows the site's name, so that it stays when a kernel gains or loses other sites; waits are greys.
Must not need matplotlib or rich: colours are "#rrggbb" strings.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Final

from warplens.layout import sites_hash

PHASES: Final = (
    "#332288",  # indigo
    "#0077bb",  # blue
    "#7b1e3a",  # wine
    "#cc3311",  # red
    "#44bb99",  # mint
    "#99ddff",  # sky
    "#ff7f00",  # orange
    "#f2d16b",  # sand
)
"""Phases, marks and ranges. Each pair stays at least 0.12 apart in OKLab to a protanope, a deuteranope and a
tritanope (a test measures it); found by a search over the schemes of Tol, Okabe and Ito, and Brewer."""

MORE: Final = ("#5c8a00", "#9970ab", "#b15928", "#ffaabb", "#125a56", "#c8e06a", "#77aadd", "#9c755f")
"""Once all of PHASES are taken: less far apart, so the legend is needed."""

WAITS: Final = ("#c4c8ce", "#9aa1ab", "#7b838f", "#b3bcc9")
"""Waits: greys, always hatched as well, so that time lost does not compete with time spent."""

WAITING_KINDS: Final = frozenset({"wait"})
INK: Final = "#1b1f24"
ALARM: Final = "#c1121f"


def site_colors(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """One "#rrggbb" a site, in the order of `names`.

    The hash of the name picks the place in the palette; a taken place gives way to the next free one;
    once all are taken they are used again.
    """
    used: set[str] = set()
    colors = []
    for name, kind in zip(names, kinds, strict=True):
        palettes = (WAITS,) if kind in WAITING_KINDS else (PHASES, MORE)
        palette = next((p for p in palettes if not used.issuperset(p)), None)
        if palette is None:
            used.difference_update(*palettes)
            palette = palettes[0]
        place = sites_hash(_utf8(name)) % len(palette)
        color = next(c for c in palette[place:] + palette[:place] if c not in used)
        used.add(color)
        colors.append(color)
    return colors


def site_letters(names: Sequence[str]) -> list[str]:
    """One character a site: a letter of its name where one is free, else any free letter or digit, else `?`."""
    used: set[str] = set()
    letters = []
    spare = string.ascii_letters + string.digits
    for name in names:
        own = [c for c in name if c.isascii() and c.isalpha()]
        wanted = [*own[:1], *(c.upper() for c in own[:1]), *own, *(c.upper() for c in own), *spare]
        letter = next((c for c in wanted if c not in used), "?")
        used.add(letter)
        letters.append(letter)
    return letters


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on "#rrggbb" (relative luminance of WCAG 2)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def _utf8(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
