"""What is saved of launches of `warplens.Kernel` that have not ended when `warplens record` stops the program.

In: the memory of a GPU with the launch that writes there, clock pairs. Out: entries of the manifest and chunks. Makes
no call that could wait for the kernel.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from warplens import layout
from warplens.capture import driver
from warplens.capture.arena import Drained
from warplens.capture.stopped import last_places

if TYPE_CHECKING:
    from warplens.capture.launches import LaunchRecorder, _Group, _Room
    from warplens.capture.timed import Pending


def launch_entry(group: _Group, pending: Pending, drained: Drained, *, rank: int, cold_l2: bool) -> dict[str, Any]:
    """The manifest's entry of a launch, but for `records`."""
    grids = np.unique(drained.chunks[drained.chunks[:, layout.WORD_META] != 0, layout.WORD_GRID])
    options = group.options
    return {
        "kernel": group.index,
        "grid": list(group.shape[0]),
        "block": list(group.shape[1]),
        "cluster": list(options.cluster or (1, 1, 1)),
        "shared_bytes": options.shared_bytes,
        "stream": pending.stream,
        "device": group.kernel._device,
        "rank": rank,
        "replay": 0,
        "grid_id": int(grids[0]) if len(grids) == 1 else None,
        "lost_events": drained.lost_events,
        "lost_chunks": drained.lost_chunks,
        "every": options.every_block,
        "warp_mask": options.warp_mask,
        "blocks": None if options.blocks is None else sorted(set(options.blocks)),
        "cold_l2": cold_l2,
        **({"full": True} if drained.full else {}),
    }


def save_unfinished(recorder: LaunchRecorder, why: str) -> tuple[bool, str]:
    """Hands `recorder.keep` the recorded launch that has not ended, as far as it got; whether there was one.

    Where it cannot, what is known instead, or "". Of several GPUs the first one's: a file has one stopped launch.
    """
    for room in list(recorder._rooms.values()):
        if (own := room.under_way) is not None and not room.read.is_set():
            return _save(recorder, room, own, why)
    for group in list(recorder._groups.values()):
        if group.timed and _is_under_way(group.timed[-1]):
            name = group.clean.function.name if group.clean is not None else group.kernel.name
            return False, f"{name} was running, which records nothing: with --rounds 0 each launch is recorded"
    return False, ""


def _save(recorder: LaunchRecorder, room: _Room, own: tuple[_Group, Pending], why: str) -> tuple[bool, str]:
    group, pending = own
    after_s = time.monotonic() - pending.at_s
    stopped: dict[str, Any] = {"why": why, "after_s": round(after_s, 6), "last": []}
    if room.arena.mapped:
        chunks, last = room.arena.look()
        drained = Drained(chunks, 0, 0)
        stopped["last"] = last_places(last)
    elif room.pinned is not None:
        drained = room.arena.peek(room.pinned)
        stopped["from"] = "records"
    else:
        return False, ""
    if room.under_way is not own:  # it has ended meanwhile, and is kept as any other
        return False, ""
    clock = recorder._clocks.get(group.kernel._device)
    if clock is not None:
        stopped["globaltimer_ns"] = clock[0] + round((time.monotonic() - clock[1]) * 1e9)
    entry = launch_entry(group, pending, drained, rank=recorder._rank, cold_l2=recorder.request.cold_l2)
    manifest = {**recorder.manifest(), "stopped": stopped, "sources": recorder._sources}
    recorder.keep.add_stopped(manifest, entry, group.entry, drained)
    return True, ""


def _is_under_way(pending: Pending) -> bool:
    native = driver.bindings()
    try:
        return bool(native.cuEventQuery(pending.stop)[0] == native.CUresult.CUDA_ERROR_NOT_READY)
    except (TypeError, ValueError):  # its events were destroyed meanwhile
        return False
