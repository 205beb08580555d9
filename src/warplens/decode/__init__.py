"""Decoding: records as the GPU wrote them to columns of spans, blocks, launches and problems on one time axis.

In: a checked manifest and arrays of uint32 (n, 32) per records member. Out: `Decoded`. Opening a file whose tables
are decoded needs only its facts and flags, so the decoder itself is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warplens.decode.decoder import Decoded, decode

__all__ = ["Decoded", "decode"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warplens.decode import decoder

    return getattr(decoder, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
