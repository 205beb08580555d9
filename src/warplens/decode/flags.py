"""Flags of a span, stated once for the decoder, the tables and the renderers."""

from __future__ import annotations

import enum


class SpanFlag(enum.IntFlag):
    """Bits of the column `spans.flags` (u16)."""

    INSTANT = 1
    """A mark or an arrival: its duration is 0."""
    UNENDED = 2
    """No end was seen: the span is cut at the warp's last event before records were lost or the warp ended."""
    AFTER_GAP = 4
    """Records were lost or left out just before this span."""
    OVERLAPPING = 8
    """A start/end range that crosses another range of its warp: it needs a track of its own."""
    CROSS_WARP = 16
    """A range that one warp started and another ended."""
    WRAPPED = 32
    """Its records may lie farther apart than they can tell: its times are right modulo 2^(32 - code_bits) cycles."""
    OVERCORRECTED = 64
    """Its corrected duration is negative beyond its uncertainty."""
    DETACHED = 128
    """A mark of single lanes, none of its warp's own count: `sequence` goes on behind the warp's end, `id` is the mask
    of the lanes."""
