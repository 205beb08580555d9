"""Which marks a kernel gets, and what their sites are called.

In: a `Flow`, a level, a selection. Out: `Plan`: sites as the manifest lists them, marks by their place, and what was
left out. A wait is a site of kind `wait`; behind it a phase begins, unless the next mark follows at once. Marks stand
only where a warp's lanes are together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from warplens import layout
from warplens.errors import PtxError
from warplens.instrument.asked import Landing, instants, landings, lines
from warplens.instrument.flow import Flow
from warplens.instrument.hoist import Hoister
from warplens.instrument.read import file_name
from warplens.instrument.scopes import Scopes
from warplens.instrument.selection import Selection
from warplens.instrument.source import SourceMark, moved, source_marks
from warplens.instrument.thin import Origin, Thinner
from warplens.instrument.waits import Waits, is_idle, lands_later, notable
from warplens.layout import Control, Verb

MOST_IDLE: Final = 8
"""Instructions of a phase between two waits that is not told apart: the first wait is shown longer by them."""
TOO_MANY: Final = "are too many to tell apart"
"""Stands in the line that tells of a kernel that gets fewer marks than were asked for."""
_VERBS: Final = {"phase": Verb.PHASE, "wait": Verb.WAIT, "arrive": Verb.ARRIVE, "mark": Verb.MARK}
_SOURCE_VERBS: Final = {"phase": Verb.PHASE, "mark": Verb.MARK, "range_push": Verb.RANGE_PUSH}


@dataclass
class Mark:
    """A mark in front of instruction `index`, or behind it. `site`: its id, from 1; 0 with a verb of `Control`.

    `settles`: it ends a wait behind which a clock can be read too early. `guard`: the predicate of the instruction that
    it tells of, "" for none. `pins`: loaded values that it waits for, each a register and its bits.
    """

    index: int
    behind: bool
    site: int
    verb: Verb | Control
    settles: bool = False
    guard: str = ""
    negated: bool = False
    pins: tuple[tuple[str, int], ...] = ()

    @property
    def place(self) -> int:
        """Grows with the place in the text; a difference of 1 is no instruction."""
        return 2 * self.index + self.behind


@dataclass
class Plan:
    """Sites with the keys of the manifest (id, name, kind, resource, file, line, arrivals), marks in the order of the
    text.

    The first site is that of the kernel's begin and has no mark here. `left_out`: one line for each kind of place that
    is not marked. `origins`: of each site; `looped`: those of waits and instants in loops. `moves`: instructions
    that go in front of a mark (hoist.py).
    """

    sites: list[dict[str, Any]]
    marks: list[Mark]
    left_out: list[str] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    looped: frozenset[Origin] = frozenset()
    moves: dict[int, Mark] = field(default_factory=dict)


class Planner:
    """Makes the `Plan` of one kernel. `thinner`: what is left out of it for the budget, and how the rest is called.
    `hoists`: whether arithmetic goes ahead of waits; `over_scopes`: and over the end of a product's scope."""

    def __init__(
        self,
        flow: Flow,
        selection: Selection,
        thinner: Thinner | None = None,
        *,
        hoists: bool = True,
        over_scopes: bool = True,
    ) -> None:
        self._flow, self._selection, self._hoists, self._over_scopes = flow, selection, hoists, over_scopes
        self._moves: dict[int, Mark] = {}
        self._without = frozenset(thinner.gone if thinner else ())
        self._names = thinner.names if thinner else {}
        self._origins: list[Origin] = []
        self._looped: set[Origin] = set()
        self._scopes = Scopes(flow)
        self._files = flow.module.files
        self._sites: list[dict[str, Any]] = []
        self._marks: list[Mark] = []
        self._left_out: dict[str, int] = {}
        self._named_sites: dict[tuple[str, str], int] = {}

    def plan(self) -> Plan:
        """Of a kernel with more sites than can be told apart it has fewer, and says so. Raises PtxError for a kernel
        without instructions."""
        plan = self._within_budget()
        if len(plan.sites) <= layout.MAX_SITES:
            return plan
        why = f"{len(plan.sites):,} sites {TOO_MANY} (at most {layout.MAX_SITES:,})"
        for what, selection in self._selection.fewer():
            plan = Planner(self._flow, selection, hoists=self._hoists, over_scopes=self._over_scopes)._within_budget()
            if len(plan.sites) <= layout.MAX_SITES:
                plan.left_out.insert(0, f"{why}: it gets {what}")
                break
        return plan

    def _within_budget(self) -> Plan:
        budget = self._selection.budget
        plan = self._whole()
        if budget is None:
            return plan
        counts = budget.of_kernel(self._flow.function.name)
        names = [site["name"] for site in plan.sites]
        if not set(counts) & set(names):
            why = "the first run did not count it" if not counts else "the first run counted other sites"
            plan.left_out.append(f"no budget is kept: {why}")
            return plan
        thinner = Thinner(plan, counts, budget)
        while thinner.more(plan):
            plan = Planner(
                self._flow, self._selection, thinner, hoists=self._hoists, over_scopes=self._over_scopes
            )._whole()
        plan.left_out += thinner.lines(plan)
        return plan

    def _whole(self) -> Plan:
        if not self._flow.code:
            raise PtxError(f"{self._flow.function.name} has no instructions")
        waits = Waits(self._flow)
        self._site(0, "phase", "", "")  # the kernel's begin; it is named with the phases below
        of_source = source_marks(self._flow)
        for own in of_source:
            self._of_source(own)
        if self._selection.level != "off":
            for wait in waits.waits:
                if waits.is_over(wait):
                    self._leave_out("waits for tensor memory not marked: the loaded values are used before")
                else:
                    self._wait(wait)
        if self._selection.level == "all":
            for instant in waits.instants:
                self._instant(instant)
        self._on_request()
        self._forget_announced(waits.announced)
        self._marks.sort(key=lambda mark: mark.place)
        self._merge()
        if self._hoists and "lines" not in self._selection.also:
            fixed = frozenset(self._named_sites.values())
            self._moves = Hoister(self._flow, self._marks, fixed, over_scopes=self._over_scopes).moves()
            self._merge()
        self._name_phases()
        self._renumber()
        left_out = [f"{count} {why}" for why, count in self._left_out.items()]
        left_out += moved(self._flow, of_source)
        return Plan(self._sites, self._marks, left_out, self._origins, frozenset(self._looped), self._moves)

    def _wait(self, wait: Any) -> None:
        flow = self._flow
        block = flow.block_of[wait.first]
        loops = any(block in loop.blocks for loop in flow.loops if wait.into is None or wait.into in loop.blocks)
        if self._selection.level == "coarse" and loops:
            return
        name = self._named(wait.first, f"wait {wait.what}")
        if not self._selection.takes(name, "wait") or self._is_gone(wait.first, "wait", name, loops):
            return
        begin = self._begin_of(wait)
        end = (wait.last, True) if wait.into is None else (flow.blocks[wait.into].start, False)
        if block not in flow.reached:
            return
        if begin is None or not (self._is_outside(*begin) and self._is_outside(*end)):
            self._leave_out("waits not marked: a loop that asks is entered by a jump, or stands within braces")
            return
        if flow.is_apart(*begin) or flow.is_apart(*end):
            self._leave_out("waits not marked: only some lanes of a warp come there")
            return
        if self._selection.level == "all" and wait.resource.startswith(layout.MBARRIER) and wait.arrivals is None:
            self._leave_out("waits at mbarriers get no arrows: how many arrivals end a phase is not known")
        site = self._site(wait.first, "wait", name, wait.resource, wait.arrivals)
        self._marks.append(Mark(*begin, site, Verb.WAIT))
        phase = self._site(wait.first, "phase", "", "")
        self._marks.append(Mark(*end, phase, Verb.PHASE, settles=wait.settles))

    def _is_gone(self, index: int, kind: str, name: str, loops: bool | None = None) -> bool:
        """Whether a site is left out for the budget. `loops`: whether it is in a loop, None: to be looked up."""
        block = self._flow.block_of[index]
        if loops or (loops is None and any(block in loop.blocks for loop in self._flow.loops)):
            self._looped.add((index, kind, name))
        return (index, kind, name) in self._without

    def _begin_of(self, wait: Any) -> tuple[int, bool] | None:
        """Where the mark in front of a wait stands: of a loop, behind the one instruction that leads into it."""
        if wait.into is None:
            return wait.first, False
        flow = self._flow
        header = flow.block_of[wait.first]
        loop = next((own for own in flow.loops if own.header == header), None)
        if loop is None:
            return None  # control comes to another block of it first
        outside = [block for block in flow.blocks[header].before if block not in loop.blocks]
        if not outside and header == 0:
            return None
        last = flow.code[flow.blocks[header].start - 1]
        falls = last.name not in ("bra", "brx", "ret", "exit", "trap") or bool(last.predicate)
        if outside != [header - 1] or not falls or flow.blocks[header].start != wait.first:
            return None
        skips = last.name == "bra" and wait.into in flow.blocks[header - 1].after
        return wait.first - 1, not skips  # a wait that is skipped is one that took no time

    def _is_outside(self, index: int, behind: bool) -> bool:
        return self._scopes.is_outside(self._flow.code[index].statement, behind)

    def _instant(self, instant: Any) -> None:
        flow = self._flow
        own = flow.code[instant.index]
        name = self._named(instant.index, instant.what)
        if not self._selection.takes(name, instant.verb) or self._is_gone(instant.index, instant.verb, name):
            return
        if not self._fits(instant.index, False, "arrivals and issues not marked"):
            return
        site = self._site(instant.index, instant.verb, name, instant.resource, instant.arrivals)
        verb = _VERBS[instant.verb]
        guard = "" if own.name == "bra" else own.predicate
        self._marks.append(Mark(instant.index, False, site, verb, guard=guard, negated=own.negated))

    def _forget_announced(self, announced: frozenset[str]) -> None:
        """An arrival that announces bytes ends no phase, nor need one where they are announced alone. Where what brings
        them has no mark, the arrival that is marked may not be taken for the last: how many there are is then not
        told."""
        issued = {site["resource"] for site in self._sites if site["kind"] == "mark"}
        for site, (index, kind, _) in zip(self._sites, self._origins, strict=True):
            announces = "expect_tx" in self._flow.code[index].opcode or site["resource"] in announced
            if kind == "arrive" and announces and site["resource"] not in issued:
                site["arrivals"] = None

    def _on_request(self) -> None:
        also = self._selection.also
        for instant in instants(self._flow, also):
            self._instant(instant)
        for landing in landings(self._flow) if "loads" in also else ():
            self._landing(landing)
        for number in lines(self._flow) if "lines" in also else ():
            if self._is_gone(number, "phase", "") or not self._selection.takes("", "phase"):
                continue
            if self._fits(number, False, "lines not marked"):
                self._marks.append(Mark(number, False, self._site(number, "phase", "", ""), Verb.PHASE))

    def _landing(self, landing: Landing) -> None:
        name = self._named(landing.first, "wait load")
        if not self._selection.takes(name, "wait") or self._is_gone(landing.first, "wait", name):
            return
        if not self._fits(landing.last, True, "loads not marked"):
            return
        if not landing.values:
            self._leave_out("loads not marked: what they load cannot be named there")
            return
        site = self._site(landing.first, "wait", name, "loads")
        self._marks.append(Mark(landing.last, True, site, Verb.WAIT))
        phase = self._site(landing.first, "phase", "", "")
        self._marks.append(Mark(landing.last, True, phase, Verb.PHASE, pins=landing.values))

    def _fits(self, index: int, behind: bool, what: str) -> bool:
        """Whether a mark can stand there; counts what is left out."""
        if self._flow.block_of[index] not in self._flow.reached:
            return False
        if not self._is_outside(index, behind):
            self._leave_out(f"{what}: they stand within braces")
            return False
        if self._flow.is_apart(index, behind):
            self._leave_out(f"{what}: only some lanes of a warp come there")
            return False
        return True

    def _of_source(self, own: SourceMark) -> None:
        """A mark of the user's: its name is the site's, however often the compiler has copied it."""
        kind = "range" if own.verb.startswith("range") else own.verb
        if not self._selection.takes(own.name, kind) or self._flow.block_of[own.index] not in self._flow.reached:
            return
        if not self._is_outside(own.index, own.behind):
            self._leave_out(f"marks {own.name!r} not marked: they stand within braces")
            return
        if own.is_alone:
            self._leave_out(f"marks {own.name!r} not marked: they stand between two labels, without an instruction")
            return
        if self._flow.is_apart(own.index, own.behind):
            self._leave_out(f"marks {own.name!r} not marked: only some lanes of a warp come there")
            return
        if own.verb == "range_pop":
            self._marks.append(Mark(own.index, own.behind, 0, Control.RANGE_POP))
            return
        site = self._named_sites.get((kind, own.name))
        if site is None:
            site = self._named_sites[kind, own.name] = self._site(own.index, kind, own.name, "")
            file = self._files.get(own.line[0], "") if own.line[1] else ""
            self._sites[-1] |= {"file": file, "line": own.line[1]} if file else {}
            self._origins[-1] = own.index, "of source", own.name
        self._marks.append(Mark(own.index, own.behind, site, _SOURCE_VERBS[own.verb]))

    def _leave_out(self, why: str) -> None:
        self._left_out[why] = self._left_out.get(why, 0) + 1

    def _site(self, index: int, kind: str, name: str, resource: str, arrivals: int | None = None) -> int:
        number, line, _ = self._flow.code[index].place
        file = self._files.get(number, "") if line else ""
        site = {"id": len(self._sites) + 1, "name": name, "kind": kind, "resource": resource}
        place = {"file": file, "line": line if file else self._ptx_line(index)}
        self._sites.append({**site, **place, "arrivals": arrivals})
        self._origins.append((index, kind, name))
        return len(self._sites)

    def _ptx_line(self, index: int) -> int:
        module = self._flow.module
        return module.line(module.statements[self._flow.code[index].statement].start)

    def _named(self, index: int, what: str, until: int = 0) -> str:
        """A name that reads like the source: file, line (or lines `until` the given one), what happens there."""
        number, line, _ = self._flow.code[index].place
        file = file_name(self._files.get(number, ""))
        lines = f"{line}-{until}" if until > line else f"{line}"
        return f"{file}:{lines} {what}".rstrip() if file and line else f"ptx:{self._ptx_line(index)} {what}".rstrip()

    def _merge(self) -> None:
        """A phase in which next to nothing is done goes; the wait that follows ends the one before in its stead."""
        kept: list[Mark] = []
        for mark in self._marks:
            before = kept[-1] if kept else None
            own = before is not None and before.site in self._named_sites.values()
            if before is not None and before.verb == Verb.PHASE and not own and self._follows(before, mark):
                kept.pop()
                mark.settles |= before.settles
                mark.pins += before.pins
            kept.append(mark)
        self._marks = kept

    def _follows(self, before: Mark, mark: Mark) -> bool:
        """Whether `mark` ends the phase that `before` begins, and next to nothing is done in it."""
        first, last = before.index + before.behind, mark.index + mark.behind
        between = [self._flow.code[number] for number in range(first, last) if number not in self._moves]
        if mark.verb not in (Verb.PHASE, Verb.WAIT) or self._block(before) != self._block(mark):
            return False
        return not between or (mark.verb == Verb.WAIT and len(between) <= MOST_IDLE and all(map(is_idle, between)))

    def _block(self, mark: Mark) -> int:
        return self._flow.block_of[mark.index]

    def _name_phases(self) -> None:
        """Names phases by the first line of the source in them, and by what they do."""
        code = self._flow.code
        begins = [0, *(mark.index + mark.behind for mark in self._marks)]
        for number, start in enumerate(begins):
            site = self._sites[0] if number == 0 else self._sites[self._marks[number - 1].site - 1]
            if number and self._marks[number - 1].site == 0:
                continue
            if site["kind"] != "phase" or site["id"] in self._named_sites.values():
                continue
            following = (m for m in self._marks[number:] if m.verb in (Verb.PHASE, Verb.WAIT))
            end = next((mark.index + mark.behind for mark in following), len(code))
            first = min(start, len(code) - 1)  # a mark may stand behind the last instruction
            numbers = [n for n in range(first, max(end, first + 1)) if n not in self._moves] or [first]
            stretch = [code[n] for n in numbers]
            at = next((n for n in numbers if code[n].place[1]), numbers[0])
            until = max((own.place[1] for own in stretch if own.place[0] == code[at].place[0]), default=0)
            words = ["issue load" if word == "load" and lands_later(stretch) else word for word in notable(stretch)]
            name = self._named(at, ", ".join(words[:3]), until)
            number_of_file, line, _ = code[at].place
            file = self._files.get(number_of_file, "") if line else ""
            site |= {"name": name, "file": file, "line": line if file else self._ptx_line(at)}

    def _renumber(self) -> None:
        """Leaves out sites without a mark; names are told apart."""
        used = dict.fromkeys([1, *(mark.site for mark in self._marks if mark.site)])
        number = {old: new for new, old in enumerate(used, 1)}
        self._sites = [self._sites[old - 1] | {"id": new} for old, new in number.items()]
        self._origins = [self._origins[old - 1] for old in number]
        for origin, site in zip(self._origins, self._sites, strict=True):
            site["name"] = self._names.get(origin, site["name"])
        number[0] = 0
        for mark in self._marks:
            mark.site = number[mark.site]
        _tell_apart(self._sites)


def _tell_apart(sites: Iterable[dict[str, Any]]) -> None:
    seen: dict[str, int] = {}
    for site in sites:
        count = seen[site["name"]] = seen.get(site["name"], 0) + 1
        if count > 1:
            site["name"] += f" ({count})"
