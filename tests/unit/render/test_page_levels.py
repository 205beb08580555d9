"""Levels of a warp's spans: no two of a level overlap, none is higher than it must be."""

from __future__ import annotations

import numpy as np
import pytest

from warplens.render import page_levels
from warplens.render.page_levels import I64, MAX_LEVELS, ROUNDING_NS, levels_of, lowest_free


def columns(*spans: tuple[int, int]) -> tuple[I64, I64]:
    return np.array([s[0] for s in spans]), np.array([s[1] for s in spans])


def test_crossing_ranges_take_the_lowest_levels_that_are_free() -> None:
    start, end = columns((0, 10), (2, 14), (5, 20), (12, 40), (30, 35))
    levels = levels_of(np.zeros(5, np.int64), start, end, np.zeros(5, np.uint16), ["range"])
    # 0-10, 2-14 and 5-20 cross each other; 12-40 finds the first level free again, 30-35 the second
    assert levels.tolist() == [0, 1, 2, 0, 1]


def test_phases_stay_on_the_first_level_beside_ranges_that_cross() -> None:
    start, end = columns((0, 20), (5, 30), (10, 40), (30, 50), (45, 60))
    levels = levels_of(np.zeros(5, np.int64), start, end, np.array([1, 0, 1, 0, 1]), ["phase", "range"])
    # phases 5-30 and 30-50; ranges 0-20 and 10-40 cross, 45-60 finds the lowest of theirs free
    assert levels.tolist() == [1, 0, 2, 0, 1]


def test_many_tracks_at_once_get_the_levels_that_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 90, 60)
    track = np.repeat(np.arange(60), lengths)
    start = np.concatenate([np.sort(rng.integers(0, 400, n)) for n in lengths])
    end = start + rng.integers(0, 120, len(start))
    together = lowest_free(track, start, end)
    monkeypatch.setattr(page_levels, "_FEW", 10_000)
    assert together.tolist() == lowest_free(track, start, end).tolist()
    for one in range(60):
        for level in range(int(together.max()) + 1):
            mine = (track == one) & (together == level)
            assert (start[mine][1:] >= end[mine][:-1] - ROUNDING_NS).all()


@pytest.mark.parametrize("tracks", [1, 100])
def test_ranges_deeper_than_the_last_level_share_it(tracks: int) -> None:
    start = np.tile(np.arange(100) * 10, tracks)
    levels = lowest_free(np.repeat(np.arange(tracks), 100), start, np.full(len(start), 5000))
    assert levels.tolist() == [min(k, MAX_LEVELS - 1) for k in range(100)] * tracks
