"""What can be asked of a recording of one kernel.

In: keyword arguments of `Kernel.record`. Out: a checked `RecordOptions`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from warplens.errors import UsageError

_LEAST: Final = {
    "rounds": 0,
    "warmup": 0,
    "launches": 1,
    "shared_bytes": 0,
    "capacity_bytes": 0,
    "every_block": 1,
}


def _whole(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} is {value!r}: a whole number was expected") from error


@dataclass(frozen=True)
class RecordOptions:
    """Options of `Kernel.record`.

    rounds: timed pairs of launches, clean and traced in turn; 0 times nothing.
    warmup: launches of either build before the first round.
    launches: traced launches that are kept in the trace, after the rounds.
    cold_l2: overwrite the L2 cache before each launch, after the arguments have been set up.
    shared_bytes: dynamic shared memory of the launch.
    cluster: blocks of a cluster (x, y, z), or None.
    cooperative: launch cooperatively.
    stream: a stream (torch, CuPy, int or with __cuda_stream__); None is the legacy default stream.
    capacity_bytes: device memory for records. What does not fit is counted as lost.
    every_block: record every n-th block only.
    warps: record these warps of a block only; None is all.
    allow_fewer_blocks: accept that the traced build has fewer resident blocks than the clean one.
    note: text that is kept in the trace and shown, e.g. "M=4096, commit=1f3c".
    host, command: say in the trace on which host, or with which command, it was made.
    """

    rounds: int = 10
    warmup: int = 3
    launches: int = 1
    cold_l2: bool = False
    shared_bytes: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    stream: Any = None
    capacity_bytes: int = 256 << 20
    every_block: int = 1
    warps: tuple[int, ...] | None = None
    allow_fewer_blocks: bool = False
    note: str | None = None
    host: bool = False
    command: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if _whole(getattr(self, name), name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}: at least {least} was expected")
        if self.cluster is not None:
            sizes = self.cluster if isinstance(self.cluster, Sequence) else ()
            if len(sizes) != 3 or any(_whole(size, "cluster") < 1 for size in sizes):
                raise UsageError(f"cluster is {self.cluster!r}: expected three positive numbers")
        if self.warps is not None and not isinstance(self.warps, Iterable):
            raise UsageError(f"warps is {self.warps!r}: expected the numbers of warps, such as (0, 1)")
        if self.warps is not None:
            object.__setattr__(self, "warps", tuple(_whole(warp, "warps") for warp in self.warps))
        if self.warps is not None and not all(0 <= warp < 32 for warp in self.warps):
            raise UsageError(f"warps are numbered 0 to 31 within a block, not {self.warps}")

    @property
    def narrowed(self) -> bool:
        """Whether blocks or warps are left out."""
        return self.every_block > 1 or self.warps is not None

    @property
    def warp_mask(self) -> int:
        """Bit w: warp w of a block is recorded."""
        return 0xFFFFFFFF if self.warps is None else sum(1 << warp for warp in set(self.warps))

    @classmethod
    def of(cls, options: dict[str, Any]) -> RecordOptions:
        """Options by name. Raises UsageError for a name that does not exist."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r} of record(): expected one of {', '.join(known)}")
        return cls(**options)


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of torch, CuPy, cuda.core or an int; None is the legacy default stream."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, cuda.core
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise UsageError(f"stream is a {type(stream).__name__}: expected a stream of torch or CuPy, or an int")
