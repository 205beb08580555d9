"""Numbers in sentences.

In: numbers. Out: text. Must not decide what is said of them.
"""

from __future__ import annotations


def number_ranges(numbers: list[int], *, limit: int = 4) -> str:
    """`0-3,8,10-11`; more than `limit` pieces end in an ellipsis."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    texts = [f"{a}" if a == b else f"{a}-{b}" for a, b in pieces]
    return ",".join(texts) if len(texts) <= limit else ",".join(texts[:limit]) + ",…"


def counted(number: int, noun: str) -> str:
    """`1 warp`, `1,024 warps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
