"""Which launch of a program's Triton kernels each record is of."""

from __future__ import annotations

from typing import Any

import numpy as np

from warplens import layout
from warplens.capture.python_memory import Made, clear_rests, divide, replays

ONE_SM = [{"when": "before", "sm": [0, 0, 1, 1], "globaltimer_ns": [0, 10_000, 0, 10_000]}]
ONE_SM[0]["clock_cycles"] = [0, 20_000, 1_000_000, 1_020_000]  # SM 1 is a million cycles ahead


def chunk(grid: int, *, block: int = 0, warp: int = 0, sequence: int = 0, cycles: int = 0, sm: int = 0) -> Any:
    row = np.zeros(layout.CHUNK_WORDS, np.uint32)
    row[layout.WORD_GRID], row[layout.WORD_BLOCK], row[layout.WORD_SEQUENCE] = grid, block, sequence
    row[layout.WORD_META] = warp | sm << layout.META_SM_SHIFT | layout.META_MARKER << layout.META_MARKER_SHIFT
    row[layout.WORD_BASE_LOW] = cycles
    return row


def ended(grid: int, digest: int, **where: int) -> Any:
    row = chunk(grid, **where)
    row[layout.WORD_META] |= layout.ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT
    row[layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH] = digest
    return row


def found(rows: list[Any], made: list[Made]) -> list[tuple[int, int, int]]:
    """Number of the launch, replay and grid of what was found."""
    words = np.array(rows, np.uint32).reshape(-1, layout.CHUNK_WORDS)
    return [(own.made, own.replay, own.grid_id) for own in divide(words, made, ONE_SM, 32)]


def test_grids_go_to_launches_of_their_kernel_in_order() -> None:
    made = [Made(1, False), Made(2, False), Made(1, False), Made(1, False)]
    assert found([ended(9, 1), ended(7, 1), ended(8, 2)], made) == [(0, 0, 7), (1, 0, 8), (2, 0, 9)]
    assert found([ended(8, 2)], made) == [(1, 0, 8)]
    assert found([chunk(7), ended(8, 2)], made) == [(0, 0, 7), (1, 0, 8)]
    assert found([], made) == []


def test_a_kernel_with_more_grids_than_launches_gives_none_of_them_away() -> None:
    """A launch on another stream may have run while recording was on."""
    made = [Made(1, False), Made(2, False)]
    assert found([ended(7, 1), ended(8, 1), ended(9, 2)], made) == [(1, 0, 9)]


def test_replays_of_a_graph_share_a_grid_and_are_told_apart_by_the_clock() -> None:
    """The second replay ran the blocks on each other's SM, whose clocks differ by 500 us."""
    first = [ended(5, 1, cycles=100, sm=0), ended(5, 1, block=1, cycles=1_000_100, sm=1)]
    more = [chunk(5, sequence=26, cycles=200, sm=0)]
    second = [ended(5, 1, block=1, cycles=4_000, sm=0), ended(5, 1, cycles=1_004_000, sm=1)]
    more_again = [chunk(5, sequence=26, cycles=1_004_100, sm=1)]
    rows = np.array([*second, *more_again, *first, *more], np.uint32)
    parts = replays(rows, ONE_SM, 32)
    assert [sorted(part[:, layout.WORD_BASE_LOW].tolist()) for part in parts] == [
        [100, 200, 1_000_100],
        [4_000, 1_004_000, 1_004_100],
    ]
    ordinary = [ended(3, 1, cycles=10)]
    made = [Made(1, False), Made(1, True)]
    assert found([*rows, *ordinary], made) == [(0, 0, 3), (1, 0, 5), (1, 1, 5)]


def test_a_grid_that_repeats_without_a_graph_stays_whole() -> None:
    rows = [ended(5, 1, cycles=100), ended(5, 1, cycles=4_000)]
    assert found(rows, [Made(1, False)]) == [(0, 0, 5)]


def test_a_grid_with_more_blocks_than_its_launch_is_not_its() -> None:
    """Two graphs with a launch of one kernel each: which was instantiated first is not known."""
    assert found([ended(7, 1, block=3)], [Made(1, False, blocks=3)]) == []
    assert found([ended(7, 1, block=3)], [Made(1, False, blocks=4)]) == [(0, 0, 7)]


def test_slots_behind_the_records_are_cleared_and_nothing_else() -> None:
    rows = np.array([chunk(1), chunk(2), ended(3, 4), chunk(5)], np.uint32)
    rows[:, layout.HEADER_WORDS : layout.BLOCK_RECORD_WORD] = 7
    rows[[0, 1, 3], layout.BLOCK_RECORD_WORD :] = 7
    rows[[0, 2], layout.WORD_META] |= np.uint32(3 << layout.META_COUNT_SHIFT)
    rows[1, layout.WORD_META] |= np.uint32(layout.RECORD_SLOTS << layout.META_COUNT_SHIFT)
    rows[3, layout.WORD_META] |= np.uint32(layout.ChunkFlag.STREAM << layout.META_FLAGS_SHIFT)
    expected = rows.copy()
    expected[0, layout.HEADER_WORDS + 3 :] = 0
    expected[2, layout.HEADER_WORDS + 3 : layout.BLOCK_RECORD_WORD] = 0
    many = np.tile(rows, (1 << 15, 1))  # more than are cleared in one go
    clear_rests(many)
    assert np.array_equal(many, np.tile(expected, (1 << 15, 1)))
