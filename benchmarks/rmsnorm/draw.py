"""Plots and a table from the benchmark's JSON. Needs no GPU, no torch.

In: the result of run.py. Out: PNG files and lines of text. A kernel keeps its colour in all plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

COPY = "copy"
COLORS = {
    "torch": "#ee7733",
    "Liger-Kernel": "#009988",
    "QuACK": "#cc3311",
    "FlashInfer": "#aa4499",
    COPY: "#555555",
}
OURS = ("#bbccee", "#99bbee", "#6699dd", "#3377cc", "#1155aa", "#003366")
"""From the document's kernel to the last step: paler to darker."""


def gigabytes_per_second(rows: int, hidden: int, ns: float) -> float:
    """x read and y written, 2 bytes a value."""
    return 2 * rows * hidden * 2 / ns


def size_of(result: dict[str, Any], rows: int, hidden: int) -> dict[str, Any]:
    """The entry of one size. Raises KeyError."""
    for size in result["sizes"]:
        if (size["rows"], size["hidden"]) == (rows, hidden):
            found: dict[str, Any] = size
            return found
    raise KeyError(f"no size {rows} x {hidden} in the result")


def color(result: dict[str, Any], name: str) -> str:
    """The colour of a kernel."""
    steps = [kernel for kernel, facts in result["kernels"].items() if "step" in facts]
    return COLORS[name] if name in COLORS else OURS[steps.index(name) * (len(OURS) - 1) // max(1, len(steps) - 1)]


def copy_fraction(size: dict[str, Any], name: str) -> float:
    """Bandwidth of a kernel over the copy's, medians over rounds."""
    return median(size["ns"][COPY]) / median(size["ns"][name])


def best_peer(result: dict[str, Any], size: dict[str, Any]) -> str | None:
    """The fastest kernel that is neither ours nor the copy; None where no peer takes the size."""
    peers = [name for name in size["ns"] if name != COPY and "step" not in result["kernels"][name]]
    return min(peers, key=lambda name: median(size["ns"][name]), default=None)
