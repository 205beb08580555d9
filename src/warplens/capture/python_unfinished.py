"""Which launch of Python packages' kernels had not ended when the program was stopped, from what they have written.

In: launches in the order in which they were made, the chunks of each. Out: the one that is under way, if one is. No
event stands behind such launches, and a stream may be gone: the records alone tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warplens import layout
from warplens.capture.python_memory import Found
from warplens.decode.last import last_events

if TYPE_CHECKING:
    from warplens.capture.python import PythonOptions
    from warplens.capture.python_manifest import Launch


def under_way(found: Sequence[Found], launches: Sequence[Launch], options: PythonOptions) -> tuple[int, int] | None:
    """The launch, by its number and replay, that the GPU works at, where it works at one of these.

    That is the newest that wrote something, where a warp of it has not ended or is absent; else the one made behind it,
    which then has come to no mark. None where there is no such one.
    """
    newest = max(found, key=_written, default=None)
    if newest is None:
        made = [number for number, launch in enumerate(launches) if not launch.captured]
        return (made[0], 0) if made else None
    if not _has_ended(newest, launches[newest.made], options):
        return newest.made, newest.replay
    after = [n for n, launch in enumerate(launches) if n > newest.made and not launch.captured]
    return (after[0], 0) if after and not launches[newest.made].captured else None


def _written(own: Found) -> tuple[int, int]:
    """In the order of launches: grid ids ascend, and replays of one graph share one."""
    return own.grid_id, own.replay


def _has_ended(own: Found, launch: Launch, options: PythonOptions) -> bool:
    sites = len(launch.kernel.site_set["sites"])
    running, ended = last_events(own.chunks, layout.code_bits(sites))
    return not running and ended >= _expected(launch, options)


def _expected(launch: Launch, options: PythonOptions) -> int:
    """Warps that are recorded."""
    blocks: Any = range(0, math.prod(launch.grid), options.every_block)
    if options.blocks is not None:
        blocks = np.intersect1d(np.array(options.blocks, np.int64), np.array(blocks, np.int64))
    warps = -(-math.prod(launch.block) // 32)
    return len(blocks) * sum(options.warp_mask >> warp & 1 for warp in range(min(warps, 32)))
