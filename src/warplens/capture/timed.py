"""A launch of the program's between two events.

In: a build and what it is launched with. Out: the launch under way, its time once it has ended. Events are used again:
to make and to free two of them at each launch takes longer than to record them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from warplens.capture import driver
from warplens.capture.arguments import Arguments
from warplens.capture.builds import Build
from warplens.capture.library import Dim3
from warplens.capture.options import RecordOptions, stream_handle
from warplens.errors import DeviceError

Spare = list[tuple[Any, Any]]
"""Pairs of events of one context that no launch has. Any thread may take one or bring it back."""


@dataclass(slots=True)
class Pending:
    """A launch whose records or time have not been read. `timed`: whether `start` to `stop` is its time."""

    start: Any
    stop: Any
    stream: int
    timed: bool
    at_s: float = field(default_factory=time.monotonic)
    """When it was made."""
    spare: Spare = field(default_factory=list)
    """Where the events go."""


def launch_timed(
    build: Build,
    shape: tuple[Dim3, Dim3],
    options: RecordOptions,
    given: Arguments,
    spare: Spare,
    *,
    by_time: bool = True,
) -> Pending:
    """Make a launch. Without `by_time` no event stands in front of it, and only its end can be asked for.

    Raises DeviceError where it cannot be made; the events are free then.
    """
    stream = stream_handle(options.stream)
    try:
        start, stop = spare.pop()
    except IndexError:
        start, stop = (driver.call("cuEventCreate", 0) for _ in range(2))
    try:
        if by_time:
            driver.call("cuEventRecord", start, stream)
        build.launch(shape, options, given)
        # Had the GPU come to the start before the kernel was there, the time would be the host's.
        timed = by_time and not driver.is_over(start)
        driver.call("cuEventRecord", stop, stream or None)
    except DeviceError:
        spare.append((start, stop))
        raise
    return Pending(start, stop, stream, timed, spare=spare)


def wait_for(event: Any) -> None:
    """Asks again and again: to wait for the event would keep a processor busy, or the driver locked."""
    pause_s = 20e-6
    while not driver.is_over(event):
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1e-3)
    driver.call("cuEventSynchronize", event)


def elapsed(pending: Pending) -> list[float]:
    """Its time in ns, if it is one; its events are free for others."""
    found = [float(driver.call("cuEventElapsedTime", pending.start, pending.stop)) * 1e6] if pending.timed else []
    pending.spare.append((pending.start, pending.stop))
    return found


def free(spare: Spare) -> None:
    """Give the events back to the driver."""
    while spare:
        for event in spare.pop():
            driver.release("cuEventDestroy", event)
