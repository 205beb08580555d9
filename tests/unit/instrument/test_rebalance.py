"""Which numbers of registers roles can ask for in place of their own, so that none waits for ever."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.full_kernels import roles
from warplens.instrument import Mode, Selection, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import read
from warplens.instrument.rebalance import Asked

Program = tuple[tuple[str, int], ...]
"""What a warp does in turn: ("ask", number), or ("after", another warp): it waits until that one has done as much."""


def asked(text: str) -> Asked | None:
    module = read(text)
    return Asked.by(Flow(module, module.entries[0]))


def test_a_kernel_tells_what_its_roles_ask_for() -> None:
    assert asked(roles(4, 8)) == Asked((24, 240), range(12, 13), once=True)
    assert asked(roles(4, 8, bounds=".maxntid 96, 2, 1")) == Asked((24, 240), range(1, 7), once=True)
    assert asked(roles(4, 8).replace("setmaxnreg", "// ")) is None


def test_who_asks_again_is_seen() -> None:
    in_loop = roles(4, 8).replace("	bar.sync", "	setmaxnreg.dec.sync.aligned.u32 24;\n	bar.sync", 1)
    found = asked(in_loop)
    assert found is not None
    assert not found.once


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (roles(4, 8, bounds=".maxnreg 168"), "how large its blocks are"),
        (roles(4, 8, asked=(24, 236)), "no multiple of 8"),
        (roles(4, 8).replace("u32 24;", "u32 NUMBER;"), "no multiple of 8"),
        (
            roles(4, 8).replace(
                ".visible .entry", ".func f() { setmaxnreg.dec.sync.aligned.u32 24; ret; }\n.visible .entry"
            ),
            "a function that it may call",
        ),
        (
            roles(4, 8).replace(
                "	ret;", "	setmaxnreg.inc.sync.aligned.u32 32;\n	setmaxnreg.inc.sync.aligned.u32 40;\n	ret;"
            ),
            "more than 3 different",
        ),
    ],
)
def test_what_is_not_known_is_told_and_nothing_is_moved(text: str, why: str) -> None:
    found = asked(text)
    assert found is not None
    assert why in found.unknown
    assert list(found.moves(168)) == []


def test_registers_at_launch_that_are_no_multiple_of_8_move_nothing() -> None:
    assert list(Asked((24, 240), range(12, 13)).moves(166)) == []
    assert list(Asked((24, 256), range(8, 9)).moves(255)) == [
        {24: 32},
        {24: 40},
        {24: 56},
    ]  # 255 is what 256 are called


@pytest.mark.parametrize(
    ("values", "registers", "warps", "once", "moves"),
    [
        # 1 of 24 and 2 of 240 are 3 of 168; so are 40 and 232, and 56 and 224.
        ((24, 240), 168, 12, False, [(32, 232), (40, 232), (56, 224)]),
        ((40, 232), 168, 12, False, [(48, 224), (56, 224), (72, 216), (24, 240)]),
        ((32, 160), 128, 16, True, [(40, 152), (48, 152), (64, 144)]),
        ((32, 160), 128, 16, False, []),  # what did not fit would: 15 of 152 and 4 of 40 are less than 19 of 128
    ],
)
def test_moves_that_are_tried(
    values: tuple[int, ...], registers: int, warps: int, once: bool, moves: list[tuple[int, int]]
) -> None:
    found = Asked(values, range(warps, warps + 1), once).moves(registers)
    assert [tuple(moved.values()) for moved in found] == moves


@settings(max_examples=60, deadline=None)
@given(
    values=st.sets(st.integers(3, 32), min_size=1, max_size=3),
    registers=st.integers(4, 31),
    most=st.integers(1, 8),
    exact=st.booleans(),
    once=st.booleans(),
)
def test_every_split_that_fitted_fits(values: set[int], registers: int, most: int, exact: bool, once: bool) -> None:
    """Enumerated warp by warp."""
    numbers = tuple(8 * value for value in sorted(values))
    warps = range(most if exact else 1, most + 1)
    for moved in Asked(numbers, warps, once).moves(8 * registers):
        new = {8 * registers: 8 * registers, **{value: value for value in numbers}, **moved}
        assert all(24 <= number <= 256 and number % 8 == 0 for number in new.values())
        assert sorted(new, key=new.__getitem__) == sorted(new)
        for count in warps:
            pool = 8 * registers * count
            for split in itertools.product(new, repeat=count):
                if sum(split) <= pool:
                    assert sum(new[own] for own in split) <= pool


def stuck(programs: tuple[Program, ...], registers: int, new: Mapping[int, int]) -> bool:
    """Whether there is an order of things in which some warp waits for ever."""
    pool = registers * len(programs)
    seen = set()
    pending = [(0,) * len(programs)]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        held = [_held(own, done, registers, new) for own, done in zip(programs, at, strict=True)]
        ways = []
        for warp, (own, done) in enumerate(zip(programs, at, strict=True)):
            if done == len(own):
                continue
            kind, number = own[done]
            wanted = new.get(number, number)
            if kind == "ask" and wanted > held[warp] and sum(held) - held[warp] + wanted > pool:
                continue
            if kind == "after" and at[number % len(at)] < min(done, len(programs[number % len(at)])):
                continue
            ways.append((*at[:warp], done + 1, *at[warp + 1 :]))
        if not ways and any(done < len(own) for own, done in zip(programs, at, strict=True)):
            return True
        pending += ways
    return False


def _held(own: Program, done: int, registers: int, new: Mapping[int, int]) -> int:
    numbers = [number for kind, number in own[:done] if kind == "ask"]
    return new.get(numbers[-1], numbers[-1]) if numbers else registers


@settings(max_examples=150, deadline=None)
@given(
    values=st.sets(st.integers(3, 12), min_size=1, max_size=3),
    registers=st.integers(4, 11),
    warps=st.integers(2, 4),
    once=st.booleans(),
    data=st.data(),
)
def test_no_warp_waits_for_ever_that_did_not_before(
    values: set[int], registers: int, warps: int, once: bool, data: st.DataObject
) -> None:
    """All orders in which warps can go on are tried, by programs that wait for each other too."""
    numbers = tuple(8 * value for value in sorted(values))
    moves = list(Asked(numbers, range(warps, warps + 1), once).moves(8 * registers))
    assume(moves)
    step = st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(numbers)), st.tuples(st.just("after"), st.integers(0, warps - 1))
    )
    programs = []
    for _ in range(warps):
        own = data.draw(st.lists(step, min_size=1, max_size=4))
        if once:
            first = next((at for at, (kind, _) in enumerate(own) if kind == "ask"), len(own))
            own = [one for at, one in enumerate(own) if at == first or one[0] == "after"]
        programs.append(tuple(own))
    if not stuck(tuple(programs), 8 * registers, {}):
        for moved in moves:
            assert not stuck(tuple(programs), 8 * registers, moved), moved


def test_only_the_numbers_change_in_the_text() -> None:
    text = roles(4, 8).replace("aligned.u32 24;", "aligned.u32 /* 24 */ 0x18 /* 24 */;")
    plain = instrument(text).text
    moved = instrument(text, modes={"roles": Mode(Selection(), setmaxnreg={24: 40, 240: 232})}).text
    assert moved == plain.replace("u32 /* 24 */ 0x18 /* 24 */;", "u32 40;").replace(
        "aligned.u32 240;", "aligned.u32 232;"
    )
