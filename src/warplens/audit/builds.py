"""One build of a kernel as the audit sees it, and what two builds have in flight together.

In: a `Section`. Out: `Build`: states, loads of the kernel itself, facts. What the recorder loads is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from warplens.audit.bulk import BulkLoads, is_bulk_load
from warplens.audit.flow import Flow
from warplens.audit.marks import is_ours, user_frames
from warplens.audit.sass import Frame, Section
from warplens.audit.scoreboards import Scoreboards, State, is_load

Place = tuple[Frame, ...]
"""Where a load was written: its line, and the calls that lead to it from the kernel."""


class Build:
    """Machine code of one build, with the states of its scoreboards."""

    def __init__(self, section: Section) -> None:
        self.code = section.code
        self.flow = Flow(section)
        self.boards = Scoreboards(self.flow)
        self.bulk = BulkLoads(self.flow)
        self._own = {index for index, instruction in enumerate(section.code) if is_ours(instruction)}
        self._callers: dict[Frame, set[tuple[Frame, ...]]] = {}
        for frames in {instruction.frames for instruction in section.code}:
            for depth in range(1, len(frames)):
                self._callers.setdefault(frames[depth], set()).add(frames[depth + 1 :])

    def is_ours(self, index: int) -> bool:
        """Whether the instruction is the recorder's."""
        return index in self._own

    def loads(self, state: State) -> tuple[set[int], set[int], bool]:
        """As `Scoreboards.loads`, without the recorder's."""
        must, may, more = self.boards.loads(state)
        return must - self._own, may - self._own, more

    def place(self, index: int) -> Place:
        """Where the instruction was written, as far out as the table of lines can be believed.

        It gives a line the callers that stand last in the PTX: where a call has several ways to the kernel, those
        beyond it may be another one's.
        """
        frames = self.code[index].frames
        sure = next((d for d in range(1, len(frames)) if len(self._callers[frames[d]]) > 1), len(frames))
        outer = user_frames(frames)
        return outer[: max(sure + 1 - (len(frames) - len(outer)), 1)]

    @cached_property
    def together(self) -> set[tuple[Place, Place]]:
        """Pairs of places, in no order of time, of loads of which one may be under way where the other is issued."""
        pairs: set[tuple[Place, Place]] = set()
        for index, under_way in self.in_flight:
            here = self.place(index)
            for earlier in under_way - {index}:
                there = self.place(earlier)
                pairs.add((min(here, there), max(here, there)))
        return pairs

    def most_of(self, places: Sequence[Place]) -> int:
        """The most loads of these places that may be under way at once."""
        wanted = set(places)
        counts = [sum(self.place(i) in wanted for i in {*under_way, index}) for index, under_way in self.in_flight]
        return max(counts, default=0)

    @cached_property
    def in_flight(self) -> list[tuple[int, set[int]]]:
        """Each load of the kernel with the loads that may be under way where it is issued."""
        out = []
        for index, instruction in enumerate(self.code):
            if not is_load(instruction) or self.is_ours(index) or self.flow.block_of[index] not in self.boards.reached:
                continue
            state = self.boards.at(index)
            out.append((index, set() if state is None else self.loads(state)[1]))
        return out

    def facts(self) -> dict[str, Any]:
        """instructions; loads; loads_in_flight, the most that may be under way at once (None: cannot be told); and
        bulk_loads, instructions that have the TMA copy into shared memory, which are not among the loads."""
        most = max((len({*under_way, index}) for index, under_way in self.in_flight), default=0)
        return {
            "instructions": len(self.code),
            "loads": len(self.in_flight),
            "bulk_loads": sum(map(is_bulk_load, self.code)),
            "loads_in_flight": most if self.boards.readable else None,
        }
