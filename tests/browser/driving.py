"""What a test asks an open page: its view, a span, where a span stands on the screen, the fields of the panel."""

from __future__ import annotations

from typing import Any


def view(tab: Any) -> dict[str, Any]:
    state = "({from, to, y, rowHeight, selected, site}) => ({from, to, y, rowHeight, selected, site})"
    return dict(tab.evaluate(f"({state})(warplens.view)"))


def span(tab: Any, index: int) -> dict[str, Any]:
    names = "({block, warp, sequence, site, durationCycles, durationNs, startNs, startCycles, sm})"
    values = names.replace("startNs, startCycles", "startNs: String(startNs), startCycles: String(startCycles)")
    return dict(tab.evaluate(f"i => ({names} => {values})(warplens.model.span(i))", index))


def place_of(tab: Any, index: int) -> tuple[float, float]:
    """The middle of a span on the screen, in a window that shows it, as drawn: frames may move rows by half a pixel."""
    tab.evaluate("i => warplens.bring(i, true)", index)
    drawn(tab)
    x, y = tab.evaluate(
        """i => {
          const { view, model, layout, width } = warplens;
          const box = document.getElementById("stage").getBoundingClientRect();
          const at = (model.start[i] + model.end[i]) / 2 - view.from;
          const top = layout.topOf(model.rowOf(i)) - view.y;
          return [box.left + (at / view.span) * width, box.top + top + layout.rowHeight / 2];
        }""",
        index,
    )
    return x, y


def drawn(tab: Any) -> None:
    """Waits until the page has drawn all that it was asked for."""
    tab.evaluate(
        """async () => {
          do await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          while (warplens.pending);
        }"""
    )


def middle(tab: Any) -> tuple[float, float]:
    box = tab.locator("#stage").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def fields(tab: Any) -> dict[str, str]:
    terms, values = (tab.locator(f"#span-fields {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(terms, values, strict=True))


def choose(tab: Any, index: int) -> None:
    """Selects a span as a click would."""
    tab.evaluate("i => { warplens.view.selected = i; warplens.view.changed('select'); }", index)
