"""What can be asked of a recording of one kernel.

In: keyword arguments of `Kernel.record`. Out: a checked `RecordOptions`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from warplens.errors import UsageError

POLICIES: Final = ("auto", "packed", "staged", "stream", "live")
KEEPS: Final = ("oldest", "newest")
_LEAST: Final = {
    "rounds": 0,
    "warmup": 0,
    "launches": 1,
    "shared_bytes": 0,
    "capacity_bytes": 0,
    "every_block": 1,
    "every_iteration": 1,
}


def _whole(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} is {value!r}: a whole number was expected") from error


@dataclass(frozen=True)
class RecordOptions:
    """Options of `Kernel.record`.

    - rounds: timed pairs of launches, clean and traced in turn; 0 times nothing.
    - warmup: launches of either build before the first round.
    - launches: traced launches that are kept in the trace, after the rounds.
    - correct: measure what the marks cost, for corrected durations: two more builds, and from 4 rounds on
      `2 * warmup + 3 * min(rounds, 8)` more launches.
    - cold_l2: overwrite the L2 cache before each launch, after the arguments have been set up.
    - shared_bytes: dynamic shared memory of the launch.
    - cluster: blocks of a cluster (x, y, z), or None.
    - cooperative: launch cooperatively.
    - stream: a stream (torch, CuPy, int or with __cuda_stream__); None is the legacy default stream.
    - capacity_bytes: memory for records. What does not fit is counted as lost.
    - keep: which records stay where they do not all fit: the "oldest", of the kernel's begin, or the "newest", of its
      end, which costs more. Lost records are counted to the event either way.
    - policy: how records are kept until they are written: "auto" is "packed" for blocks of whole warps and "staged" for
      others, and another where it would leave fewer blocks on an SM or spill; "stream" writes each event at once;
      "live" does so to host memory, where it outlives a hang or a crash, and makes the launch that is kept before all
      others.
    - timeout_s: give up a kernel that has not ended after so many seconds, with what it recorded (StoppedError); policy
      "live" alone can. None waits for ever, or for Ctrl-C.
    - every_block: record every n-th block only.
    - blocks: record these blocks only, by linear index; None is all.
    - every_iteration: where the kernel says which iteration it is in (`rec.iteration(i)`), record every n-th only.
    - warps: record these warps of a block only; None is all.
    - loops: build policy "packed" for marks in loops: times are exact however long the kernel runs, at the cost of a
      branch a mark. False builds for straight lines, where NVRTC does not tell which marks are in loops; None builds
      for loops when the kernel lasts a second or the build is the faster one, for which it takes five rounds or more.
    - allow_fewer_blocks: accept that the traced build has fewer resident blocks than the clean one.
    - audit: prove from the machine code what each mark measures (`Trace.audit`); wants nvdisasm, and a second or two.
    - note: text that is kept in the trace and shown, e.g. "M=4096, commit=1f3c".
    - host, command: say in the trace on which host, or with which command, it was made.
    """

    rounds: int = 10
    warmup: int = 3
    launches: int = 1
    correct: bool = True
    cold_l2: bool = False
    shared_bytes: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    stream: Any = None
    capacity_bytes: int = 256 << 20
    keep: str = "oldest"
    policy: str = "auto"
    timeout_s: float | None = None
    every_block: int = 1
    blocks: tuple[int, ...] | None = None
    every_iteration: int = 1
    warps: tuple[int, ...] | None = None
    loops: bool | None = None
    allow_fewer_blocks: bool = False
    audit: bool = True
    note: str | None = None
    host: bool = False
    command: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            number = _whole(getattr(self, name), name)
            if number < least:
                raise UsageError(f"{name} is {number}: at least {least} was expected")
            object.__setattr__(self, name, number)  # of Python's: a trace keeps it, and JSON knows none of numpy's
        if self.cluster is not None:
            sizes = self.cluster if isinstance(self.cluster, Sequence) else ()
            if len(sizes) != 3 or any(_whole(size, "cluster") < 1 for size in sizes):
                raise UsageError(f"cluster is {self.cluster!r}: expected three positive numbers")
            object.__setattr__(self, "cluster", tuple(map(operator.index, sizes)))
        if self.policy not in POLICIES:
            raise UsageError(f"policy is {self.policy!r}: expected one of {', '.join(POLICIES)}")
        if not (self.loops is None or isinstance(self.loops, bool)):
            raise UsageError(f"loops is {self.loops!r}: expected True, False or None")
        if self.keep not in KEEPS:
            raise UsageError(f"keep is {self.keep!r}: expected one of {', '.join(KEEPS)}")
        self._check_timeout()
        for name, example in (("warps", "(0, 1)"), ("blocks", "(0, 7)")):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if not isinstance(numbers, Iterable):
                raise UsageError(f"{name} is {numbers!r}: expected numbers, such as {example}")
            object.__setattr__(self, name, tuple(_whole(number, name) for number in numbers))
        if self.warps is not None and not all(0 <= warp < 32 for warp in self.warps):
            raise UsageError(f"warps are numbered 0 to 31 within a block, not {self.warps}")
        if self.blocks is not None and not all(0 <= block < 1 << 32 for block in self.blocks):
            raise UsageError(f"blocks are numbered from 0 to 2^32 - 1, not {self.blocks}")
        if self.every_iteration >= 1 << 24:
            raise UsageError(f"every_iteration is {self.every_iteration}: below {1 << 24} was expected")

    def _check_timeout(self) -> None:
        seconds = self.timeout_s
        if seconds is None:
            return
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
            raise UsageError(f"timeout_s is {seconds!r}: expected a number of seconds above 0, or None")
        if self.policy != "live":
            raise UsageError(
                f"timeout_s wants policy='live', not {self.policy!r}: what is not in host memory cannot be read while "
                "a kernel hangs"
            )

    @property
    def narrowed(self) -> bool:
        """Whether blocks, warps or iterations are left out."""
        steps = self.every_block, self.every_iteration
        return any(step > 1 for step in steps) or self.warps is not None or self.blocks is not None

    @property
    def known_step(self) -> int:
        """`every_block` where nothing else narrows the recording, so that a build can hold it; else 1."""
        alone = self.warps is None and self.blocks is None and self.every_iteration == 1
        return self.every_block if alone else 1

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
