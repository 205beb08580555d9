"""How warps end whose lanes left early, and what tokens name, on the recorder's headers run on the CPU. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulation import FULL, Case, Step, decoded, run
from warplens.decode import Decoded

pytestmark = pytest.mark.programs


def told(found: Decoded) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for problem in found.problems:
        kinds[problem.kind] = kinds.get(problem.kind, 0) + problem.count
    return kinds


@pytest.mark.parametrize("policy", ["packed", "counted", "untold", "mixed"])
@pytest.mark.parametrize("left", [1, 0x3F, 1 | 1 << 31])
@pytest.mark.parametrize("length", [20, 24, 500, 23 * 24 + 20])
def test_of_few_lanes_left_no_chunk_is_told_as_unwritten_but_the_last(
    policy: str, left: int, length: int, programs: Any
) -> None:
    steps = [*[Step("p", 1)] * length, Step("X", lanes=FULL & ~left)]
    case = Case([steps], chunks=70_000, shared_chunks=65_536).timed()
    (result,) = run(programs(policy), [case])
    assert not result.faults
    assert told(decoded(case, result)).get("unwritten_chunk", 0) <= 1


@pytest.mark.parametrize("policy", ["packed", "counted"])
@pytest.mark.parametrize("leaving", [1, 1 << 9])
def test_a_block_whose_first_warp_ends_without_a_lane_has_no_record_and_knows_its_sm(
    policy: str, leaving: int, programs: Any
) -> None:
    first = [*[Step("p", 1 + i % 4) for i in range(60)], Step("X", lanes=leaving)]
    whole = [Step("p", 1 + i % 4) for i in range(30)]
    case = Case([first, whole] * 3, blocks=3, threads=(64, 1, 1)).timed()
    (result,) = run(programs(policy, all_recorded=True), [case])
    assert not result.faults
    found = decoded(case, result)
    assert "partial_warp" in told(found)
    assert not {"sm_changed", "sm_unknown"} & set(told(found))
    assert found.blocks["sm_end"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("policy", ["packed", "untold", "staged", "stream"])
@pytest.mark.parametrize("iterations", [5, 9])
def test_behind_iterations_left_out_a_token_is_that_of_its_range(policy: str, iterations: int, programs: Any) -> None:
    steps = [s for i in range(iterations) for s in (Step("i", value=i), Step("s", 2), Step("t"), Step("m", 3))]
    case = Case([steps], every_iteration=4).timed()
    (result,) = run(programs(policy), [case])
    assert not result.faults
    found = decoded(case, result)
    kept = [i for i in range(iterations) if i % 4 == 0]
    assert told(found)["gap"] == 3 * (iterations - len(kept))
    of_ranges = found.spans.duration_cycles[np.asarray(found.spans.site) == 1]
    assert len(of_ranges) == len(kept)
    assert not {"unmatched_start", "unmatched_end"} & set(told(found))
