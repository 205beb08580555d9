"""What the stress benchmark counts, draws and judges, without a GPU: memory of the host stands in for the device's."""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.benchmark import module
from tests.live import live_warp
from tests.synthesis import Clock, Event, Warp, encode_warp
from warplens import layout
from warplens.capture import driver
from warplens.layout import Control, Verb

CODE_BITS = layout.code_bits(3)
PHASES = [Event(Verb.PHASE, 1000 + 10 * i, 1, payload=i if i % 2 else None) for i in range(40)]
WARP = Warp(block=0, warp=0, clock=Clock(), code_bits=CODE_BITS)


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("launching", monkeypatch)


def control(cursors: dict[int, int], pool: int) -> Any:
    """A control block whose cursors stand at their begin but for some."""
    words = np.zeros(layout.CONTROL_BYTES // 4, "<u4")
    for number in range(layout.CURSOR_COUNT):
        words[(layout.CONTROL_CURSORS + number * layout.CURSOR_STRIDE) // 4] = cursors.get(number, number)
    words[layout.CONTROL_POOL_CURSOR // 4] = pool
    return words.view(np.uint8)


def test_a_cursor_hands_out_every_1024th_chunk_below_where_it_stands_and_the_pool_the_rest(
    launching: ModuleType,
) -> None:
    # Cursor 3 has given 3 and 1027, cursor 5 ran over its share; the pool begins at 2048 and has given two.
    out = launching.handed_out(control({3: 2051, 5: 9000}, pool=2050), 2048, 2060)
    assert np.flatnonzero(out).tolist() == [3, 5, 1027, 1029, 2048, 2049]


def test_a_pool_that_ran_over_hands_out_no_more_than_there_is(launching: ModuleType) -> None:
    assert launching.handed_out(control({}, pool=7), 0, 3).tolist() == [True] * 3
    assert launching.handed_out(control({}, pool=0), 0, 0).tolist() == []


def test_events_are_counted_without_payloads_ends_and_chunks_that_nobody_wrote(launching: ModuleType) -> None:
    end = Event(Control.END, 2000)
    whole, (direct, _) = encode_warp([*PHASES, end], WARP), live_warp([*PHASES, end], WARP)
    canaries = np.full((2, layout.CHUNK_WORDS), launching.PATTERN, np.uint32)
    assert launching.count_events(whole, CODE_BITS) == 40
    assert launching.count_events(direct, CODE_BITS) == 40
    assert launching.count_events(np.concatenate([canaries, whole, direct, 0 * canaries]), CODE_BITS) == 80
    assert launching.count_events(canaries[:0], CODE_BITS) == 0


class HostAsDevice:
    """Calls of the driver that an arena makes, on memory of the host."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def __call__(self, name: str, *args: Any, doing: str = "") -> Any:  # noqa: ARG002
        return getattr(self, name)(*args)

    def cuMemAlloc(self, size: int) -> int:  # noqa: N802
        self.buffers.append(ctypes.create_string_buffer(size + 256))
        return -(-ctypes.addressof(self.buffers[-1]) // 256) * 256

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, _stream: int) -> None:  # noqa: N802
        ctypes.memmove(to, source, size)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync  # noqa: N815

    def cuMemsetD8Async(self, address: int, value: int, size: int, _stream: int) -> None:  # noqa: N802
        ctypes.memset(address, value, size)

    def cuMemsetD32(self, address: int, value: int, words: int) -> None:  # noqa: N802
        np.ctypeslib.as_array((ctypes.c_uint32 * words).from_address(address))[:] = value

    def cuStreamSynchronize(self, _stream: int) -> None:  # noqa: N802
        pass


def words_at(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


@pytest.fixture
def guarded(launching: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes arenas of eight chunks, all of them the pool's."""
    device = HostAsDevice()
    monkeypatch.setattr(driver, "call", device)
    monkeypatch.setattr(driver, "release", lambda *_: None)

    class Host:
        def __init__(self, size_bytes: int) -> None:
            self.address = device.cuMemAlloc(size_bytes)
            self.words = words_at(self.address, size_bytes // 4)

    monkeypatch.setattr(driver, "HostMemory", Host)

    def make(*, mapped: bool, zeroed: bool) -> Any:
        arena = launching.Guarded(layout.CONTROL_BYTES + 8 * layout.CHUNK_BYTES + 5, mapped=mapped, sm_count=2)
        arena.prepare(zeroed=zeroed)
        arena.choose(0)
        arena.remember()
        return arena

    return make


@pytest.mark.parametrize(("mapped", "zeroed"), [(False, False), (False, True), (True, True)])
def test_chunks_that_were_handed_out_may_be_written_and_their_events_are_counted(
    guarded: Any, mapped: bool, zeroed: bool
) -> None:
    arena = guarded(mapped=mapped, zeroed=zeroed)
    assert arena.look_around(CODE_BITS)[1] == []
    made = encode_warp([*PHASES, Event(Control.END, 2000)], WARP)
    words_at(arena.chunks_address, made.size)[:] = made.ravel()
    words_at(arena.address + layout.CONTROL_POOL_CURSOR, 1)[0] = len(made)
    words_at(arena.address + layout.CONTROL_LOST_EVENTS, 1)[0] = 11
    counts, faults = arena.look_around(CODE_BITS)
    assert faults == []
    assert (counts["events"], counts["lost_events"], counts["chunks_handed_out"]) == (40, 11, len(made))


@pytest.mark.parametrize(
    ("mapped", "offset_bytes", "told"),
    [
        (False, 128 * 3 + 8, "in chunks that were not handed out"),
        (True, 128 * 3 + 8, "in chunks that were not handed out"),
        (False, 128 * 8, "behind the arena"),
        (False, -layout.CONTROL_BYTES - 4, "before the control block"),
        (False, 24 - layout.CONTROL_BYTES, "of the control block"),
        (True, -4, "before the chunks"),
        (True, 128 * 8 + 2 * 64 * 16, "behind the table"),
    ],
)
def test_a_word_that_stands_where_it_must_not_is_told(guarded: Any, mapped: bool, offset_bytes: int, told: str) -> None:
    arena = guarded(mapped=mapped, zeroed=mapped)
    words_at(arena.chunks_address + offset_bytes, 1)[0] = 0x12345678
    (fault,) = arena.look_around(CODE_BITS)[1]
    assert fault.endswith(told)


def test_the_table_of_where_warps_last_were_may_be_written(guarded: Any) -> None:
    arena = guarded(mapped=True, zeroed=True)
    words_at(arena.chunks_address + 128 * 8, 2 * 64 * 4)[:] = 1
    assert arena.look_around(CODE_BITS)[1] == []


def test_random_launches_are_the_same_for_the_same_seed_and_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = module("canaries", monkeypatch)
    shots = canaries.shots(400)
    assert shots == canaries.shots(400) != canaries.shots(400, seed=12)
    assert {shot.build for shot in shots} == set(canaries.BUILDS)
    assert {sum(size > 1 for size in shot.grid) for shot in shots} == {0, 1, 2, 3}
    for shot in shots:
        threads = int(np.prod(shot.block))
        assert threads <= canaries.MOST_THREADS
        assert threads % 32 == 0 or "packed" not in shot.build


def test_what_a_launch_must_record_is_counted_by_its_blocks_and_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    shot = module("canaries", monkeypatch).Shot
    # Warps take 4 * (5 + 0, 1, 2, 0) events: 92 a block of 100 threads.
    assert shot("loops", "staged", (7, 1, 1), (50, 2, 1), 5, 0).expected_events() == 7 * 92
    assert shot("loops", "staged", (7, 1, 1), (100, 1, 1), 5, 0, {"every_block": 3}).expected_events() == 3 * 92
    assert shot("loops", "staged", (7, 1, 1), (100, 1, 1), 5, 0, {"warp_mask": 6}).expected_events() == 7 * 52
    assert shot("lanes", "live", (7, 1, 1), (100, 1, 1), 5, 0).expected_events() == 7 * 46
    assert shot("line", "stream", (3, 2, 1), (64, 1, 1), 5, 0, {"blocks": (0, 5)}).expected_events() == 2 * 2 * 30


def test_a_part_that_prints_nothing_or_does_not_end_well_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    stress = module("stress", monkeypatch)
    assert stress.rows_of("p", 'noise\nROW {"line": "x", "passed": true}\n', "", "exit status 0") == [
        {"line": "x", "passed": True}
    ]
    assert stress.rows_of("p", "", "why", "exit status 0")[0]["passed"] is False
    rows = stress.rows_of("p", 'ROW {"line": "x", "passed": true}\n', "why", "was stopped after 9 s")
    assert [row["passed"] for row in rows] == [True, False]
    assert rows[1]["output_tail"] == "why"


@pytest.mark.parametrize(
    ("summary", "clean"),
    [
        ("========= ERROR SUMMARY: 0 errors", True),
        ("========= ERROR SUMMARY: 3 errors", False),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", False),
        ("", False),
    ],
)
def test_a_run_under_the_sanitizer_is_clean_when_its_summary_counts_nothing(
    summary: str, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitized = module("sanitized", monkeypatch)
    ended = f"packed: 12 events\n{sanitized.END}\n{summary}\n"
    assert sanitized.is_clean({**sanitized.read_output(ended), "exit_status": 0}) is clean
    assert not sanitized.is_clean({**sanitized.read_output(ended), "exit_status": 9})
    assert not sanitized.is_clean({**sanitized.read_output(summary), "exit_status": 0})


def test_the_waits_of_a_minute_are_those_asked_for_and_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = module("minute", monkeypatch).wait_cycles(2e9, 60.0)
    assert waits[:10] == [
        int(0.9 * 2**25), 2**25, int(1.1 * 2**25), 100 * 2**25, int(0.9 * 2**32), 2**32, int(1.1 * 2**32),
        6_000_000_000, 40_000_000_000, 1000,
    ]  # fmt: skip
    assert 60.0 <= sum(waits) / 2e9 < 60.5


@pytest.mark.parametrize(
    ("added_cycles", "flag", "may_doubt", "passed"),
    [(200, 0, False, True), (2**25, 0, False, False), (2**25, 32, True, True), (2**25, 32, False, False)],
)
def test_a_wait_is_right_or_told_as_doubtful_where_it_may_be(
    added_cycles: int, flag: int, may_doubt: bool, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = module("minute", monkeypatch)
    warps, count, cycles = 4, 2, np.array([10**6, 4 * 10**9])
    stamps = np.zeros((warps, count, 4), np.uint64)
    stamps[..., 2] = cycles // 2  # 2 GHz
    stamps[..., 3] = cycles
    duration = np.tile(cycles, warps)
    duration[0] += added_cycles
    flags = np.zeros(warps * count, np.uint16)
    flags[0] = flag
    spans = pl.DataFrame(
        {
            "block": np.repeat([0, 0, 1, 1], count),
            "warp": np.repeat([0, 1, 0, 1], count),
            "site": np.zeros(warps * count, np.int64),
            "payload": np.tile(np.arange(count), warps),
            "duration_cycles": duration,
            "duration_ns": duration // 2,
            "flags": flags,
        }
    )
    trace = SimpleNamespace(
        spans=spans,
        launches=pl.DataFrame({"duration_ns": [3 * 10**9], "uncertainty_ns": [40.0]}),
        problems=pl.DataFrame({"kind": ["x"]}),
    )
    run = SimpleNamespace(name="n", trace=trace, stamps=stamps, count=count, may_doubt=may_doubt)
    rows = list(minute.judged(run, 2e9))
    assert [row["passed"] for row in rows] == [passed] * 2


def test_an_event_of_a_lane_is_one_however_its_chunk_goes_on(launching: ModuleType) -> None:
    (chunk,) = encode_warp([Event(Verb.MARK, 7, 1, id=1, payload=9)], WARP)
    chunk[layout.WORD_META] |= np.uint32(layout.DETACHED_FLAGS << layout.META_FLAGS_SHIFT)
    chunk[layout.HEADER_WORDS + 3 :] = launching.PATTERN
    unwritten = chunk.copy()
    unwritten[layout.HEADER_WORDS] = 0
    assert launching.count_events(np.stack([chunk, unwritten]), CODE_BITS) == 1
