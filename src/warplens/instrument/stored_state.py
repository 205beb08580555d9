"""The recorder of a kernel that has no registers left: its state is in memory between marks.

In: as `Recorder`. Out: lines of PTX that write the same records. Between two marks no register is in use. Loads and
stores are volatile: else ptxas would keep in a register what was stored. Marks that no branch parts ask for space
together, in loops as elsewhere, and no record waits for the next clock. Where the memory is: shared_state.py,
local_state.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from warplens.instrument.frugal import FrugalRecorder

WORDS: Final = ("%wl_lo", "%wl_hi", "%wl_ep", "%wl_left", "%wl_seq", "%wl_gt")
"""What stands there, a word for each part of the state."""


@dataclass(frozen=True)
class StoredRecorder(FrugalRecorder):
    """As `FrugalRecorder`. Its registers mean what they mean there, but within one piece of text alone."""

    in_registers: ClassVar[bool] = False

    def open(self, code: int) -> list[str]:
        """What the first chunk begins with is kept from here on."""
        return [*self._slot(), *super().open(code), *map(self._keep, WORDS)]

    def check(self, number: int, marks: int, together: bool, *, even: bool = False) -> list[str]:
        """From the question on the place and half of the clock are in use."""
        clock, *asked = super().check(number, marks, together, even=even)
        return [clock, *self._slot(), self._load("%wl_lo"), self._load("%wl_ep"), *asked, *self._place()]

    def clock(self, own: int) -> list[str]:
        """And the place."""
        return [*super().clock(own), *self._slot(), *self._place()]

    def pin(self, values: tuple[tuple[str, int], ...]) -> list[str]:
        """With the place that it needs."""
        return [*self._slot(), *self._place(), *super().pin(values)]

    def put(self, records: Sequence[tuple[int, int]], guard: str = "") -> list[str]:
        """Asks first whether this lane writes."""
        return ["setp.ne.u32 %wl_w, %wl_hi, 0;", *super().put(records, guard)]

    def advance(self, marks: int, guard: str = "") -> list[str]:
        """And keeps it."""
        return [*super().advance(marks, guard), *self._keep_place()]

    def next(self, number: int, together: bool, back: str = "", records: int = 0) -> list[str]:
        """As Recorder's where lanes may be apart, which is one way and not two, and with a clock of its own: the record
        is made of it too."""
        del together
        label, *rest = super().next(number, False, back, records)
        clock = ["mov.u64 %wl_now, %clock64;", *self._epoch("%wl_now", "%wl_e")]
        epoch = [self._load("%wl_ep"), "sub.u32 %wl_d, %wl_e, %wl_ep;"]
        state = [*self._place(), *epoch, self._load("%wl_seq"), self._load("%wl_gt"), *self._left()]
        return [label, *clock, *self._slot(), *state, *rest]

    def end(self, number: int, together: bool) -> list[str]:
        """Loads what the question needs, and behind it the rest."""
        own = super().end(number, together)
        clocks, rest = own[:2], own[2:]
        behind = rest.index(f"$wl_back_{number}:") + 1
        needed = [self._load("%wl_lo"), self._load("%wl_ep"), self._load("%wl_left")]
        state = [*self._place(), self._load("%wl_gt"), *self._left()]
        return [*clocks, *self._slot(), *needed, *rest[:behind], *state, *rest[behind:]]

    def _open_chunk(self, predicate: str, back: str) -> list[str]:
        """And keeps all of it."""
        *opened, goes_on = super()._open_chunk(predicate, back)
        return [*opened, *map(self._keep, WORDS), goes_on]

    @abstractmethod
    def _slot(self) -> list[str]:
        """Where the state is, for what follows."""

    @abstractmethod
    def _load(self, register: str) -> str:
        """A part of it."""

    @abstractmethod
    def _keep(self, register: str) -> str:
        """A part of it."""

    @abstractmethod
    def _keep_place(self) -> list[str]:
        """The low half of the place, the last that a mark does."""

    @abstractmethod
    def _place(self) -> list[str]:
        """Where the last record went; the high half is 0 in lanes that write nothing."""

    @abstractmethod
    def _left(self) -> list[str]:
        """The warp's number and SM alone in lanes that write nothing."""
