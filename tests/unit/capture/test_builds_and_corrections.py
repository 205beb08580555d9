"""Which builds are tried, and what corrections launch, without a GPU: builds and launches are stand-ins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.decode.test_corrections import COST, TWO, facts, launch
from warplens import errors, layout
from warplens.capture.arena import Drained
from warplens.capture.builds import Launched, choose, policies, policy_options
from warplens.capture.corrections import (
    Launcher,
    anchor_options,
    corrections,
    launches_of,
    some_blocks,
    two_mark_build,
)
from warplens.capture.options import RecordOptions

REGISTERS = 65536
CLEAN = {"registers": 32, "shared_bytes": 0, "local_bytes": 0, "resident_blocks": 3}


class FakeBuild:
    """A build that takes so many registers, unless it is limited, spills where it gets fewer than it `needs`, and
    takes so much shared memory."""

    def __init__(self, options: tuple[str, ...], registers: int, shared_bytes: int, needs: int = 30) -> None:
        limits = [int(o.partition("=")[2]) for o in options if o.startswith("--maxrregcount")]
        self.options, self.function = options, self
        self.registers, self.shared_bytes = min([registers, *limits]), shared_bytes
        self.register_limit = limits[-1] if limits else None
        self.spills = 8 * max(needs - self.registers, 0)
        self.allowed_shared_bytes = 0

    def allow_shared_bytes(self, shared_bytes: int) -> None:
        self.allowed_shared_bytes = shared_bytes

    def resources(self, threads: int, shared_bytes: int) -> dict[str, int]:
        blocks = REGISTERS // (threads * self.registers)
        if self.shared_bytes:
            blocks = min(blocks, 200_000 // (self.shared_bytes + shared_bytes))
        found = {"registers": self.registers, "shared_bytes": self.shared_bytes, "local_bytes": self.spills}
        return found | {"resident_blocks": blocks}


def chosen(
    packed: int, staged: int, *, needs: tuple[int, int] = (30, 30), limits: bool = True, **how: Any
) -> tuple[Any, list[Any]]:
    """What is chosen for a block of 640 threads of which three shall be resident (32 registers each), and the tried.

    `packed` and `staged` are the registers that these take unless they are limited, `needs` those without
    which they spill.
    """
    tried: list[tuple[str, ...]] = []

    def build(options: tuple[str, ...]) -> Any:
        tried.append(options)
        if not limits and any(o.startswith("--max") for o in options):
            raise errors.CompileError("unknown option")
        if "-DWARPLENS_POLICY=packed" in options:
            return FakeBuild(options, packed, 0, needs[0])
        return FakeBuild(options, staged, 10_000, needs[1])

    candidates = {policy: tuple(policy_options(policy, 640)) for policy in ("packed", "staged")}
    return choose("k", build, candidates, Launched(640, 0, REGISTERS), CLEAN, **how), tried


def test_whole_warps_may_take_any_policy_and_others_the_one_that_takes_them() -> None:
    assert policies(640) == ["packed", "stream", "staged"]
    assert policies(100) == ["staged"]


def test_the_cheapest_policy_is_taken_where_it_fits() -> None:
    (policy, build, resources), tried = chosen(34, 30)
    assert (policy, build.register_limit, resources["resident_blocks"]) == ("packed", None, 3)
    assert len(tried) == 1


def test_registers_are_limited_before_another_policy_is_tried() -> None:
    (policy, build, resources), tried = chosen(40, 30)
    assert (policy, build.register_limit, resources["registers"]) == ("packed", 32, 32)
    assert len(tried) == 2


def test_another_policy_is_tried_where_a_limit_does_not_help() -> None:
    (policy, build, _), tried = chosen(40, 30, limits=False)
    assert (policy, build.register_limit) == ("staged", None)
    assert [any("packed" in o for o in options) for options in tried] == [True, True, True, False]


def test_another_policy_is_tried_where_a_limit_makes_the_build_spill() -> None:
    (policy, build, _), _ = chosen(40, 36, needs=(34, 32))
    assert (policy, build.register_limit) == ("staged", 32)


def test_where_all_spill_the_one_that_spills_least_is_taken() -> None:
    (policy, _, resources), _ = chosen(40, 40, needs=(36, 34))
    assert (policy, resources["local_bytes"]) == ("staged", 16)
    assert chosen(40, 40, needs=(34, 36))[0][0] == "packed"


def test_a_build_with_fewer_resident_blocks_is_an_error_that_names_what_was_tried() -> None:
    with pytest.raises(errors.DisturbanceError, match=r"3 blocks of the clean build.*packed and staged, did not help"):
        chosen(40, 40, limits=False)
    (policy, _, resources), _ = chosen(40, 40, limits=False, allow_fewer_blocks=True)
    assert (policy, resources["resident_blocks"]) == ("packed", 2)


def test_a_block_of_no_whole_warps_takes_one_policy_and_no_clean_build_any() -> None:
    assert policies(33) == ["staged"]
    assert policy_options("staged", 33) == ["-DWARPLENS_POLICY=staged", "-DWARPLENS_MAX_WARPS=2"]
    policy, _, _ = choose("k", lambda o: FakeBuild(o, 255, 0), {"packed": ()}, Launched(640, 0, REGISTERS), None)  # type: ignore[arg-type, return-value]
    assert policy == "packed"


def test_a_build_is_allowed_its_dynamic_shared_memory_before_its_resident_blocks_are_asked_for() -> None:
    build = FakeBuild((), 32, 0)
    Launched(640, 80_000, REGISTERS).resources(build)  # type: ignore[arg-type]
    assert build.allowed_shared_bytes == 80_000


# ---- corrections ----------------------------------------------------------------------------------------------
class FakeGpu:
    """Launches of builds: the synthetic kernel, whose marks cost COST cycles, taken as often as the build says."""

    def __init__(
        self, *, extra_registers: int = 0, lost: int = 0, allowed: bool = True, two_marks: int = 32, slow: int = 0
    ) -> None:
        self.extra_registers, self.lost, self.allowed = extra_registers, lost, allowed
        self.two_marks, self.slow = two_marks, slow
        self.started: list[Any] = []
        self.launched: list[int] = []

    def compile(self, options: tuple[str, ...]) -> Any:
        if not self.allowed and any(o.startswith("--max") for o in options):
            raise errors.CompileError("unknown option")
        if "-DWARPLENS_MARKS=0" in options:
            return FakeBuild(options, self.two_marks, 0)
        more = self.extra_registers if "-DWARPLENS_MARKS=2" in options else 0
        return FakeBuild(options, 32 + more, 0, needs=32 + more)

    def record(self, build: Any) -> Drained:
        copies = next((int(o[-1]) for o in build.options if o.startswith("-DWARPLENS_MARKS")), 1)
        self.launched.append(copies)
        if copies == 0:
            chunks = launch(1, work=TWO)
            return Drained(chunks if self.two_marks else chunks[:0], 0, 0)
        return Drained(launch(copies, slow=self.slow), self.lost, self.lost)

    def corrections(self, **options: Any) -> dict[str, Any]:
        launched = Launched(640, 0, REGISTERS)
        launcher = Launcher(self.compile, self.started.append, self.record, launched)
        manifest = facts()
        traced = self.compile(("-DX",))
        manifest["kernels"][0]["traced"] = launched.resources(traced)
        return corrections(launcher, traced, manifest, RecordOptions(**options))


def test_the_three_builds_are_launched_in_turn_and_the_cost_is_found() -> None:
    gpu = FakeGpu(slow=20)
    found = gpu.corrections(rounds=10)
    assert gpu.launched == [1, 2, 0, 0, 2, 1] * 4
    assert len(gpu.started) == 2
    assert found["anchor"]["not_measured"] is None
    assert found["anchor"]["resources"]["resident_blocks"] == 3
    assert found["anchor"]["factor"] == [1540 / 1600]
    assert found["not_measured"] is None
    assert found["launches"] == 8
    assert found["mark_cycles"]["p50"] == COST
    assert found["doubled"]["resident_blocks"] == 3


@pytest.mark.parametrize(
    ("options", "launches"),
    [({"rounds": 10}, 8), ({"rounds": 5}, 5), ({"rounds": 3}, 0), ({"rounds": 0}, 0), ({"correct": False}, 0)],
)
def test_corrections_take_as_many_launches_as_there_are_rounds_up_to_eight(options: Any, launches: int) -> None:
    gpu = FakeGpu()
    assert launches_of(RecordOptions(**options)) == launches
    found = gpu.corrections(**options)
    assert len(gpu.launched) == 3 * launches
    if not launches:
        assert not gpu.started
        assert found == {
            "not_measured": "correct=False" if "correct" in options else f"rounds={options['rounds']}, and 4 are needed"
        }


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (FakeGpu(extra_registers=8, allowed=False), "an SM does not hold 3 blocks"),
        (FakeGpu(extra_registers=8), "spills registers"),
        (FakeGpu(lost=3), "raise capacity_bytes"),
    ],
)
def test_a_doubled_build_that_is_another_kernel_corrects_nothing_and_says_why(gpu: FakeGpu, why: str) -> None:
    assert why in gpu.corrections()["not_measured"]


@pytest.mark.parametrize(
    ("gpu", "why", "launched"),
    [
        (
            FakeGpu(two_marks=24),
            "an SM holds 4 blocks of the two-mark build, and 3 of the traced one",
            [1, 2],
        ),
        (FakeGpu(two_marks=0, slow=20), "the two-mark build: nothing was recorded", [1, 2, 0, 2, 1, 1, 2]),
    ],
)
def test_without_lives_of_a_like_two_mark_build_direct_costs_are_corrected_alone_and_it_says_why(
    gpu: FakeGpu, why: str, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not gpu.two_marks:  # as many blocks as the traced one, and no records
        monkeypatch.setattr(Launched, "resources", lambda *_: CLEAN)
    found = gpu.corrections(rounds=8)
    assert gpu.launched[: len(launched)] == launched
    assert gpu.launched.count(1) == gpu.launched.count(2) == 8
    assert found["anchor"] == {"not_measured": why}
    assert [found["rows"]["cost_cycles"][found["rows"]["site"].index(site)] for site in (1, 2, 3)] == [0, COST, COST]


def test_the_two_mark_build_is_packed_where_that_fits_and_nobody_asked_for_another_policy() -> None:
    class Named(FakeGpu):
        fits = True

        def compile(self, options: tuple[str, ...]) -> Any:
            if "-DWARPLENS_POLICY=packed" in options and not self.fits:
                return FakeBuild(options, 255, 0, 64)
            return super().compile(options)

    traced = ("-DWARPLENS_POLICY=staged", "-DWARPLENS_MAX_WARPS=20", "-DX")
    for fits, policy in ((True, "packed"), (False, "staged")):
        gpu = Named()
        gpu.fits = fits
        launched = Launched(640, 0, REGISTERS)
        launcher = Launcher(gpu.compile, gpu.started.append, gpu.record, launched)
        own = gpu.compile(traced)
        build, resources = two_mark_build(launcher, own, launched.resources(own))
        assert f"-DWARPLENS_POLICY={policy}" in build.options
        assert "-DWARPLENS_MARKS=0" in build.options
        assert ("-DWARPLENS_MAX_WARPS=20" in build.options) == (policy == "staged")
        assert resources["resident_blocks"] == 3
        build, _ = two_mark_build(launcher, own, launched.resources(own), any_policy=False)
        assert "-DWARPLENS_POLICY=staged" in build.options
    assert anchor_options(("-DWARPLENS_POLICY=staged",), 33) == [("-DWARPLENS_POLICY=staged",)]
    assert anchor_options(("-DWARPLENS_POLICY=packed",), 64) == [("-DWARPLENS_POLICY=packed",)]


def test_few_blocks_of_a_large_grid_are_looked_at_and_always_the_same() -> None:
    chunks = np.zeros((100_000, layout.CHUNK_WORDS), np.uint32)
    chunks[:, layout.WORD_BLOCK] = np.arange(100_000) // 2
    some = some_blocks(chunks, 0.1)
    blocks = np.unique(some[:, layout.WORD_BLOCK])
    assert len(some) == 2 * len(blocks)
    assert 4_800 < len(blocks) < 5_200
    assert np.isin(np.unique(some_blocks(chunks[::2], 0.1)[:, layout.WORD_BLOCK]), blocks).all()
    assert len(np.unique(blocks % 132)) == 132
    assert some_blocks(chunks, 3.0) is chunks
    assert len(some_blocks(chunks[:2], 0.001)) == 2  # block 0 is always among them
