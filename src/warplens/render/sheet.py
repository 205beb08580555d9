"""The sheet that all pictures are drawn on.

In: sizes in inches, titles, legend entries. Out: a matplotlib figure with its axes placed, a title block flush with
the axes, a legend below. Margins are fixed, not fitted, so that pictures of two traces line up and are quick to make.
Knows nothing of traces; writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from warplens.render.colors import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN: Final = 12.0
LEFT_IN: Final = 0.72
RIGHT_IN: Final = 0.22
_TITLE_IN: Final = 0.86
_ROW_IN: Final = 0.225  # a line of the legend
_CHARACTER_IN: Final = 0.074  # of the legend's font, on average
LEGEND_ENTRIES: Final = 24
_LABEL_IN: Final = 0.17  # from one label of an axis to the next, so that they do not touch
_LABELS: Final = 22


def sheet(
    heights_in: Sequence[float],
    gaps_in: Sequence[float],
    labels: Sequence[str],
    *,
    left_in: float = LEFT_IN,
    right_in: float = RIGHT_IN,
) -> tuple[Figure, list[Axes]]:
    """A figure with axes of `heights_in` from top to bottom and a legend's room for `labels`.

    `gaps_in` holds one more number than `heights_in`: the room above each of the axes, then that below the last.
    `left_in` and `right_in` is the room beside them.
    """
    rows = -(-len(labels) // _columns(labels)) if labels else 0
    total = _TITLE_IN + sum(heights_in) + sum(gaps_in) + rows * _ROW_IN + 0.14
    figure = Figure(figsize=(WIDTH_IN, total))
    axes, top = [], total - _TITLE_IN
    for height, gap in zip(heights_in, gaps_in, strict=False):
        top -= gap + height
        box = (left_in / WIDTH_IN, top / total, (WIDTH_IN - left_in - right_in) / WIDTH_IN, height / total)
        axes.append(figure.add_axes(box))
    return figure, axes


def label_step(rows: int, height_in: float) -> int:
    """One row in how many gets a label beside axes of this height."""
    most = max(min(_LABELS, int(height_in / _LABEL_IN)), 1)
    return next((step for step in (1, 2, 4, 6, 8, 12, 16, 24, 32) if rows <= step * most), -(-rows // most))


def write_titles(figure: Figure, title: str, facts: str, caption: str) -> None:
    """Title, facts and a caption that says how to read the picture, flush with the axes."""
    total = figure.get_figheight()
    x = LEFT_IN / WIDTH_IN
    lines: list[tuple[str, float, dict[str, Any]]] = [
        (title, 0.13, {"fontsize": 13, "fontweight": "bold", "color": INK}),
        (facts, 0.42, {"fontsize": 9, "color": INK}),
        (caption, 0.63, {"fontsize": 8.5, "color": "#5c636a"}),
    ]
    for text, down_in, style in lines:
        figure.text(x, 1 - down_in / total, text, va="top", ha="left", **style)


def write_legend(figure: Figure, handles: list[Any]) -> None:
    """The legend, flush with the axes, in as many columns as its labels allow."""
    if not handles:
        return
    labels = [str(h.get_label()) for h in handles]
    figure.legend(
        handles=handles,
        loc="lower left",
        borderaxespad=0,
        borderpad=0,
        bbox_to_anchor=(LEFT_IN / WIDTH_IN, 0.06 / figure.get_figheight()),
        ncols=_columns(labels),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=2.2,
        labelspacing=0.45,
    )


def _columns(labels: Sequence[str]) -> int:
    longest = max(len(label) for label in labels)
    fit = int((WIDTH_IN - LEFT_IN) / (longest * _CHARACTER_IN + 0.62))
    return max(1, min(fit, len(labels)))


def boxes(left: npt.NDArray[Any], right: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any]) -> Any:
    """Corners of upright boxes: float64, shape (n, 4, 2), the form that a PolyCollection takes fastest."""
    x = np.stack([left, left, right, right], axis=1).astype(np.float64)
    y = np.stack([low, high, high, low], axis=1).astype(np.float64)
    return np.stack([x, y], axis=2)
