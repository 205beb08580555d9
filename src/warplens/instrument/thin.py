"""Which sites a kernel loses so that a run of it makes no more events than are wanted, by what a first run counted.

In: a `Plan`, the counts of a trace. Out: the sites to leave out, those with the most events in loops first, and lines
that say so. Counts are of sites by their names, as the first run's choice of marks named them: what was not marked then
is not counted, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.instrument.sites import Plan

Origin = tuple[int, str, str]
"""What a site tells of, whatever else is marked: its instruction, its kind, its name before names are told apart."""
_TEXT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(%?)")
_TOLD_APART: Final = re.compile(r"(.+)_(?:[0-9a-f]{8}|[0-9]{1,9})", re.DOTALL)
_LONGEST_NAME: Final = 200


@dataclass(frozen=True)
class Budget:
    """`most`: events of a launch, or with `is_fraction` that part of those of the first run. `counts`: by the name of a
    set of sites, how many of its launches were counted, and how often each site was passed in them.
    """

    most: float
    is_fraction: bool
    counts: Mapping[str, tuple[int, Mapping[str, int]]]

    @classmethod
    def of(cls, text: str, counts: Any) -> Budget:
        """From `25%` or `20000`, and counts as JSON has them: {set: [launches, {site: events}]}.

        Raises UsageError for what cannot be meant.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None or (found[2] and float(found[1]) > 100):
            raise UsageError(
                f"budget {text!r:.60}: expected a part of the first run's events, as 25%, or events a launch"
            )
        fraction = bool(found[2])
        return cls(
            float(found[1]) / (100 if fraction else 1), fraction, {n: (k, own) for n, (k, own) in counts.items()}
        )

    def of_kernel(self, name: str) -> dict[str, float]:
        """Events a launch of each site of a kernel; empty where the first run has none.

        `name`: the kernel's in PTX. Sets that it has in several builds (for other GPUs, or compiled otherwise) count
        together.
        """
        wanted = re.sub(r"\W", "_", name)
        launches, events = 0, dict[str, int]()
        for own, (number, sites) in self.counts.items():
            apart = _TOLD_APART.fullmatch(own)
            if own == wanted or (apart and apart[1] in (wanted, wanted[:_LONGEST_NAME])):
                launches += number
                for site, count in sites.items():
                    events[site] = events.get(site, 0) + count
        return {site: count / launches for site, count in events.items()} if launches else {}


class Thinner:
    """What goes of one kernel's plan. `counts`: events a launch by a site's name."""

    def __init__(self, whole: Plan, counts: dict[str, float], budget: Budget) -> None:
        self._counts = {o: counts.get(s["name"]) for o, s in zip(whole.origins, whole.sites, strict=True)}
        self.names = {o: str(s["name"]) for o, s in zip(whole.origins, whole.sites, strict=True) if o[1] != "phase"}
        self._before = sum(counts.values())
        self._most = budget.most * self._before if budget.is_fraction else budget.most
        mine = [origin for origin in whole.origins[1:] if self._can_go(whole, origin)]
        self._order = sorted(mine, key=lambda origin: (origin not in whole.looped, -(self._counts[origin] or 0)))
        self.gone: list[Origin] = []
        self._unknown = [self._name(origin) for origin in mine if self._counts[origin] is None]

    def _can_go(self, whole: Plan, origin: Origin) -> bool:
        """A phase behind a wait goes with it; what the source marks itself stays."""
        return origin[1] != "of source" and not (
            origin[1] == "phase" and any(o[:2] == (origin[0], "wait") for o in whole.origins)
        )

    def events(self, plan: Plan) -> float:
        """Events of a launch with the marks of a plan. A phase begins as often as the wait in front of it ends."""
        waits = {origin[0]: self._counts.get(origin) for origin in plan.origins if origin[1] == "wait"}
        counted = (waits[o[0]] if o[1] == "phase" and o[0] in waits else self._counts.get(o) for o in plan.origins)
        return sum(count or 0 for count in counted)

    def more(self, plan: Plan) -> bool:
        """Takes so many more sites as seem to be too many in `plan`; whether there were any."""
        over = self.events(plan) - self._most
        taken = False
        while over > 0 and self._order:
            origin = self._order.pop(0)
            count = self._counts[origin]
            if not count:
                continue
            self.gone.append(origin)
            over -= count * (2 if origin[1] == "wait" else 1)
            taken = True
        return taken

    def lines(self, plan: Plan) -> list[str]:
        """What went, and what that leaves."""
        out = [f"left out for the budget: {self._name(o)}: {self._counts[o]:,.0f} events a launch" for o in self.gone]
        now = self.events(plan)
        text = f"{now:,.0f} of {self._before:,.0f} events a launch stay, by the counts of the first run"
        if now > self._most:
            text += f": the budget of {self._most:,.0f} cannot be kept"
        names = ", ".join(self._unknown[:4]) + (", ..." if self._unknown[4:] else "")
        return [*out, text, *([f"not counted in the first run, and not left out: {names}"] if names else [])]

    def _name(self, origin: Origin) -> str:
        return self.names.get(origin) or f"a line of source at instruction {origin[0]}"
