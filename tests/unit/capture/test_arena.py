"""The arena on a GPU that is a dictionary of arrays: what it clears, says to the compiler, and drains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from warplens import errors, layout
from warplens.capture import arena, driver
from warplens.capture.arena import Arena
from warplens.capture.options import RecordOptions
from warplens.layout import ChunkFlag


class FakeMemory:
    """Device memory, one array an allocation; or mapped host memory."""

    allocated: list[FakeMemory]

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = 0x7000_0000_0000 + 0x1_0000_0000 * (len(self.allocated) + 1) + 512
        self.bytes = np.full(size_bytes, 0xA5, np.uint8)
        self.words = self.bytes[: size_bytes // 4 * 4].view(np.uint32)
        self.host = self.address
        self.allocated.append(self)

    @classmethod
    def at(cls, address: int, size_bytes: int) -> NDArray[np.uint8]:
        own = next(m for m in cls.allocated if m.address <= address <= m.address + m.size_bytes)
        offset = address - own.address
        assert offset + size_bytes <= own.size_bytes, "access behind the allocation"
        return own.bytes[offset : offset + size_bytes]


@pytest.fixture(autouse=True)
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(name: str, *args: Any, doing: str = "") -> None:  # noqa: ARG001
        if name == "cuMemsetD8Async":
            FakeMemory.at(args[0], args[2])[:] = args[1]
        elif name == "cuMemcpyDtoDAsync":
            FakeMemory.at(args[0], args[2])[:] = FakeMemory.at(args[1], args[2])

    def copy_to(address: int, data: NDArray[Any], stream: int = 0) -> None:  # noqa: ARG001
        FakeMemory.at(address, data.nbytes)[:] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)

    def copy_from(address: int, shape: tuple[int, ...], dtype: Any, stream: int = 0) -> NDArray[Any]:  # noqa: ARG001
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.asarray(FakeMemory.at(address, size).copy().view(dtype).reshape(shape))

    monkeypatch.setattr(FakeMemory, "allocated", [], raising=False)
    for name, fake in (("DeviceMemory", FakeMemory), ("HostMemory", FakeMemory), ("call", call)):
        monkeypatch.setattr(driver, name, fake)
    monkeypatch.setattr(driver, "copy_to_device", copy_to)
    monkeypatch.setattr(driver, "copy_from_device", copy_from)


def set_words(address: int, *words: int) -> None:
    driver.copy_to_device(address, np.array(words, np.uint32))


def chunk(sequence: int, flags: int = 0) -> list[int]:
    meta = layout.META_MARKER << layout.META_MARKER_SHIFT | flags << layout.META_FLAGS_SHIFT
    return [0, meta, 1, sequence, 10, 0, *range(26)]


def used_ring(chunks: int, states: dict[int, int], *, flags: int = 0, mapped: bool = False) -> Arena:
    """A ring in which the chunks of `states` hold something, and two cursors lost 5 + 7 events in 1 + 2 chunks."""
    bytes_needed = layout.CONTROL_BYTES + chunks * (layout.CHUNK_BYTES + layout.STATE_BYTES) + layout.CHUNK_BYTES
    own = Arena(bytes_needed, newest=True, mapped=mapped, sm_count=1)
    for index, state in states.items():
        set_words(own.chunks_address + index * layout.CHUNK_BYTES, *chunk(index * 10, flags))
        set_words(own.address + layout.CONTROL_STATES + index * layout.STATE_BYTES, state)
    for cursor, events, lost in ((3, 5, 1), (layout.CURSOR_COUNT - 1, 7, 2)):
        beside = own.address + layout.CONTROL_CURSORS + cursor * layout.CURSOR_STRIDE
        set_words(beside + layout.CURSOR_LOST_EVENTS, events, 0)
        set_words(beside + layout.CURSOR_LOST_CHUNKS, lost, 0)
    return own


@given(st.integers(layout.CONTROL_BYTES, 1 << 37))
def test_a_ring_and_its_states_use_the_arena_and_no_more(capacity_bytes: int) -> None:
    chunks, states_bytes = arena.divide_ring(capacity_bytes)
    used = layout.CONTROL_BYTES + states_bytes + chunks * layout.CHUNK_BYTES
    assert states_bytes >= chunks * layout.STATE_BYTES
    assert states_bytes % layout.CHUNK_BYTES == 0
    assert used <= capacity_bytes < used + 3 * layout.CHUNK_BYTES


@pytest.mark.parametrize(
    ("chunks", "cursors"),
    [(0, 1), (1, 1), (127, 1), (128, 2), (7_900, 64), (65_535, 512), (65_536, 1024), (1 << 30, 1024)],
)
def test_each_cursor_of_a_ring_has_64_chunks_or_more(chunks: int, cursors: int) -> None:
    assert arena.ring_cursors(chunks) == cursors


@pytest.mark.parametrize("capacity_bytes", [0, layout.CONTROL_BYTES - 1, 1 << 50])
def test_a_capacity_that_cannot_be_is_refused_for_a_ring_too(capacity_bytes: int) -> None:
    with pytest.raises(errors.UsageError, match="capacity"):
        arena.divide_ring(capacity_bytes)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_ring_is_drained_of_all_chunks_that_were_closed_and_its_losses_are_summed(mapped: bool) -> None:
    own = used_ring(100, {0: 1, 7: layout.STATE_CLOSED + 4, 99: layout.STATE_CLOSED}, mapped=mapped)
    drained = own.drain(0)
    assert drained.chunks[:, layout.WORD_SEQUENCE].tolist() == [0, 70, 990]
    assert (drained.lost_events, drained.lost_chunks) == (12, 3)


def test_an_open_chunk_is_its_warps_own_with_stream_and_unwritten_with_others() -> None:
    states = {2: layout.STATE_OPEN, 3: layout.STATE_CLOSED}
    assert used_ring(9, states).drain(0).chunks[:, layout.WORD_META].tolist()[0] == 0
    stream = used_ring(9, states, flags=int(ChunkFlag.STREAM)).drain(0)
    assert stream.chunks[:, layout.WORD_SEQUENCE].tolist() == [20, 30]


@pytest.mark.parametrize("clear", [Arena.clear, Arena.clear_cursors])
def test_a_ring_that_was_cleared_is_free_and_has_lost_nothing(clear: Any) -> None:
    own = used_ring(50, {4: layout.STATE_CLOSED + 2, 49: layout.STATE_OPEN})
    clear(own, 0)
    drained = own.drain(0)
    assert (len(drained.chunks), drained.lost_events, drained.lost_chunks) == (0, 0, 0)


def test_a_ring_without_room_for_a_chunk_is_drained_of_nothing() -> None:
    own = Arena(layout.CONTROL_BYTES, newest=True)
    assert (own.chunks, len(own.drain(0).chunks)) == (0, 0)


def test_chunks_of_a_ring_lie_behind_their_states_and_are_aligned() -> None:
    own = used_ring(77, {})
    assert own.chunks_address == own.address + layout.CONTROL_STATES + own.states_bytes
    assert own.chunks_address % layout.CHUNK_BYTES == 0
    assert f"-DWARPLENS_RING_CHUNKS={own.chunks}u" in own.compile_options(narrowed=False)
    assert own.descriptor()["chunks"] == own.chunks


def test_who_keeps_the_oldest_is_compiled_as_before() -> None:
    options = Arena(1 << 20).compile_options(narrowed=False)
    assert not any("NEWEST" in option or "RING" in option for option in options)


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        ({"every_block": 8}, 8),
        ({"every_block": 8, "warps": (0,)}, 1),
        ({"every_block": 8, "blocks": (0, 8)}, 1),
        ({"every_block": 8, "every_iteration": 2}, 1),
        ({"warps": (0,)}, 1),
    ],
)
def test_a_build_knows_the_step_between_blocks_where_nothing_else_narrows(asked: dict[str, Any], step: int) -> None:
    options = RecordOptions(**asked)
    listed = options.blocks is not None
    made = Arena(1 << 20).compile_options(narrowed=options.narrowed, listed=listed, every=options.known_step)
    assert ("-DWARPLENS_EVERY=8u" in made) == (step == 8)
    assert ("-DWARPLENS_STEPS_ONLY" in made) == (step == 1 and not listed)


class Overtaken(np.ndarray[Any, Any]):
    """Chunks of which one is written over while it is copied."""

    turns = 0

    def __getitem__(self, key: Any) -> Any:
        out = np.asarray(super().__getitem__(key)).copy()
        Overtaken.turns += 1
        if Overtaken.turns == 2:  # behind the look at the headers
            words = self.view(np.ndarray)
            words[1] = chunk(777)
            words[2, layout.WORD_META] = chunk(0, int(ChunkFlag.BLOCK_RECORD))[layout.WORD_META]
        return out


def test_a_chunk_that_is_written_over_while_it_is_looked_at_is_left_out() -> None:
    words = np.array([chunk(0), chunk(10), chunk(20), [0] * 32], np.uint32).view(Overtaken)
    Overtaken.turns = 0
    assert arena.whole_chunks(words)[:, layout.WORD_SEQUENCE].tolist() == [0, 20]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("pool", "newest"), [(True, False), (False, False), (True, True)])
def test_behind_a_drain_the_arena_is_as_at_the_begin_though_only_what_was_taken_is_cleared(
    mapped: bool, pool: bool, newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Arena(1 << 20, mapped=mapped, newest=newest, sm_count=2, pool=pool)
    memory = FakeMemory.allocated
    begun = [part.bytes.copy() for part in memory]
    cursors = own.address + layout.CONTROL_CURSORS
    if newest:
        states = FakeMemory.at(own.address + layout.CONTROL_STATES, 3 * 4).view("<u4")
        states[:] = layout.STATE_OPEN
        FakeMemory.at(own.chunks_address, 3 * layout.CHUNK_BYTES)[:] = 7
    else:
        for cursor in (0, 3):  # two chunks of each, so that those between are not written
            FakeMemory.at(cursors + cursor * layout.CURSOR_STRIDE, 4).view("<u4")[0] = cursor + 2 * layout.CURSOR_COUNT
            for turn in range(2):
                at = own.chunks_address + (cursor + turn * layout.CURSOR_COUNT) * layout.CHUNK_BYTES
                FakeMemory.at(at, layout.CHUNK_BYTES)[:] = 7
        if pool:
            FakeMemory.at(own.address + layout.CONTROL_POOL_CURSOR, 4).view("<u4")[0] += 5
            behind = own.chunks_address + own.shared_chunks * layout.CHUNK_BYTES
            FakeMemory.at(behind, 5 * layout.CHUNK_BYTES)[:] = 7
    if mapped:
        FakeMemory.at(own.chunks_address + own.chunks * layout.CHUNK_BYTES, layout.LAST_BYTES)[:] = 7
    cleared: list[int] = []
    plain = driver.call

    def call(name: str, *arguments: Any, doing: str = "") -> Any:
        cleared.extend(arguments[2:3] if name == "cuMemsetD8Async" else ())
        return plain(name, *arguments, doing=doing)

    monkeypatch.setattr(driver, "call", call)
    drained = own.drain(0)
    assert len(drained.chunks) == (3 if newest else 9 if pool else 4)
    own.clear_drained(drained, 0)
    for part, before in zip(memory, begun, strict=True):
        assert np.array_equal(part.bytes, before)
    if not (newest or mapped):
        assert sum(cleared) == (2 * layout.CURSOR_COUNT + 5 * pool) * layout.CHUNK_BYTES
