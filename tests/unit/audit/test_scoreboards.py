"""What is under way at an instruction: straight code, branches, loops, calls, groups of asynchronous copies."""

from __future__ import annotations

from tests.sass import Ins, section
from warplens.audit.builds import Build
from warplens.audit.flow import Flow
from warplens.audit.scoreboards import Scoreboards

LOAD = Ins("LDG.E R2, desc[UR4][R4.64]", write=0)
OTHER = Ins("LDG.E R3, desc[UR4][R6.64]", write=1)
CLOCK = Ins("CS2R.32 R9, SR_CLOCKLO")
EXIT = Ins("EXIT")


def boards(*items: Ins | str) -> Scoreboards:
    return Scoreboards(Flow(section(items)))


def loads(found: Scoreboards, index: int) -> tuple[set[int], set[int]]:
    """Loads that are surely under way at an instruction, and those that may be."""
    state = found.at(index)
    assert state is not None
    must, may, _ = found.loads(state)
    return must, may


def test_a_load_is_under_way_until_its_scoreboard_is_waited_for() -> None:
    found = boards(LOAD, OTHER, CLOCK, Ins("FADD R8, R2, R2", wait=[0]), CLOCK, Ins("FADD R8, R3, R3", wait=[1]), CLOCK)
    assert loads(found, 2) == ({0, 1}, {0, 1})
    assert loads(found, 4) == ({1}, {1})
    assert loads(found, 6) == (set(), set())
    assert found.waits(3) == {2 * 0}
    assert found.waits(5) == {2 * 1}


def test_what_is_never_done_is_no_load() -> None:
    found = Build(section([Ins("@!PT LDS RZ, [RZ]"), LOAD, CLOCK, EXIT]))
    assert (found.facts()["loads"], found.facts()["loads_in_flight"]) == (1, 1)


def test_a_clock_read_that_waits_itself_has_nothing_under_way() -> None:
    found = boards(LOAD, Ins("CS2R.32 R2, SR_CLOCKLO", wait=[0]), EXIT)
    assert loads(found, 1) == (set(), set())
    assert found.waits(1) == {0}


def test_two_loads_of_one_scoreboard_are_waited_for_together() -> None:
    found = boards(LOAD, Ins("LDG.E R3, desc[UR4][R6.64]", write=0), Ins("FADD R8, R2, R2", wait=[0]), CLOCK)
    assert loads(found, 3) == (set(), set())
    assert found.waits(2) == {0, 2}


def test_a_wait_for_operands_says_nothing_of_the_result() -> None:
    found = boards(Ins("LDG.E R2, desc[UR4][R4.64]", write=0, read=3), Ins("IADD3 R4, R4, 0x4, RZ", wait=[3]), CLOCK)
    assert found.waits(1) == {1}
    assert loads(found, 2) == ({0}, {0})


def test_where_one_path_waits_and_the_other_does_not_nobody_knows() -> None:
    found = boards(
        LOAD,
        Ins("@P0 BRA `(.L_x_0)"),
        Ins("FADD R8, R2, R2", wait=[0]),
        ".L_x_0",
        CLOCK,
        EXIT,
    )
    assert loads(found, 3) == (set(), {0})


def test_a_branch_that_both_paths_wait_in_leaves_nothing() -> None:
    found = boards(
        LOAD,
        Ins("@P0 BRA `(.L_x_0)"),
        Ins("FADD R8, R2, R2", wait=[0]),
        Ins("BRA `(.L_x_1)"),
        ".L_x_0",
        Ins("FMUL R8, R2, R2", wait=[0]),
        ".L_x_1",
        CLOCK,
        EXIT,
    )
    assert loads(found, 5) == (set(), set())


def test_a_load_at_the_end_of_a_loop_may_be_under_way_at_its_begin() -> None:
    found = boards(
        ".L_x_0",
        CLOCK,
        Ins("FADD R8, R2, R8", wait=[0]),
        LOAD,
        Ins("@P0 BRA `(.L_x_0)"),
        CLOCK,
        EXIT,
    )
    assert loads(found, 0) == (set(), {2})  # not in the first round
    assert loads(found, 4) == ({2}, {2})


def test_bsync_goes_on_where_its_bssy_said() -> None:
    # All lanes meet at .L_x_1: over the branch, which skips the load, or through the BSYNC.
    found = boards(
        Ins("BSSY B0, `(.L_x_1)"),
        Ins("@P0 BRA `(.L_x_0)"),
        LOAD,
        ".L_x_0",
        Ins("BSYNC B0"),
        Ins("FADD R8, R2, R2", wait=[0]),  # nobody comes here
        ".L_x_1",
        CLOCK,
        EXIT,
    )
    assert loads(found, 5) == (set(), {2})
    assert found.at(4) is None
    assert found.readable


def test_a_function_that_waits_for_all_leaves_nothing_and_one_that_does_not_leaves_all() -> None:
    def called(wait: list[int]) -> Scoreboards:
        return boards(
            LOAD,
            OTHER,
            Ins("CALL.REL.NOINC `(callee)"),
            CLOCK,
            EXIT,
            "callee",
            Ins("FADD R8, R8, R8", wait=wait),
            Ins("LDG.E R12, desc[UR4][R4.64]", write=2),
            Ins("RET.REL.NODEC R20 `(kernel)"),
        )

    assert loads(called([0, 1]), 3) == ({6}, {6})
    assert loads(called([0]), 3) == ({1, 6}, {1, 6})
    assert loads(called([]), 3) == ({0, 1, 6}, {0, 1, 6})


def test_after_a_function_that_cannot_be_followed_nothing_is_sure() -> None:
    found = boards(LOAD, Ins("CALL.ABS.NOINC R6"), CLOCK, EXIT)
    assert loads(found, 2) == (set(), {0})
    state = found.at(2)
    assert state is not None
    assert found.loads(state)[2]  # it may have left loads of its own


def test_a_function_that_calls_itself_ends_the_search() -> None:
    found = boards(
        LOAD, Ins("CALL.REL.NOINC `(f)"), CLOCK, EXIT, "f", Ins("@P0 CALL.REL.NOINC `(f)"), Ins("RET.REL.NODEC R20")
    )
    assert loads(found, 2)[1] == {0}


def test_a_branch_without_known_targets_makes_all_of_it_unknown() -> None:
    assert not boards(LOAD, Ins("BRX R2 -0x1234"), CLOCK, EXIT).readable
    listed = boards(LOAD, Ins('BRX R2 -0x40 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)'), ".L_x_0", CLOCK, ".L_x_1", EXIT)
    assert listed.readable
    assert loads(listed, 2) == ({0}, {0})


COPY = Ins("LDGSTS.E.BYPASS.128 [R7], desc[UR4][R4.64]")
COMMIT = Ins("LDGDEPBAR", write=0)


def test_asynchronous_copies_are_under_way_until_so_many_groups_are_left() -> None:
    found = boards(
        COPY, COMMIT, COPY, COMMIT, CLOCK, Ins("DEPBAR.LE SB0, 0x1"), CLOCK, Ins("DEPBAR.LE SB0, 0x0"), CLOCK
    )
    assert loads(found, 4) == ({0, 2}, {0, 2})
    assert loads(found, 6) == ({2}, {2})
    assert loads(found, 8) == (set(), set())
    assert found.waits(5) == {0}
    assert found.waits(7) == {4}


def test_a_copy_that_no_group_holds_is_not_waited_for() -> None:
    found = boards(COPY, COMMIT, COPY, Ins("DEPBAR.LE SB0, 0x0"), CLOCK)
    assert loads(found, 4) == ({2}, {2})


def test_groups_of_a_loop_are_not_counted() -> None:
    found = boards(
        COPY,
        COMMIT,
        ".L_x_0",
        COPY,
        COMMIT,
        Ins("DEPBAR.LE SB0, 0x1"),
        CLOCK,
        Ins("@P0 BRA `(.L_x_0)"),
        Ins("DEPBAR.LE SB0, 0x0"),
        CLOCK,
        EXIT,
    )
    assert loads(found, 5)[0] == set()  # the one in front, or that of the loop: nobody knows
    assert loads(found, 5)[1] == {0, 2}
    assert loads(found, 8) == (set(), set())


def test_an_atomic_counts_as_a_load_only_when_it_returns_something() -> None:
    found = boards(Ins("ATOMG.E.ADD.STRONG.GPU PT, R5, desc[UR4][R2.64], R7", write=0), CLOCK)
    assert loads(found, 1) == ({0}, {0})
    found = boards(Ins("RED.E.ADD.STRONG.GPU desc[UR4][R2.64], R7", read=0), CLOCK)
    assert loads(found, 1) == (set(), set())


def test_a_call_to_a_place_within_the_function_is_a_jump() -> None:
    found = boards(
        LOAD,
        Ins("@!P4 CALL.REL.NOINC `(.L_x_0)"),
        Ins("FADD R8, R2, R2", wait=[0]),
        ".L_x_0",
        CLOCK,
        EXIT,
    )
    assert loads(found, 3) == (set(), {0})
