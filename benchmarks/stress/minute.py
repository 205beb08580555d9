"""Kernels of a minute, with waits of up to 1,200 turns of the records' clock: all times right, or told as doubtful.

In: nothing. Out: rows. Each wait is compared with clock64 and globaltimer, both read by the kernel itself: in cycles to
the cost of the marks beside it, in ns within the uncertainty that the trace states too (an SM's clock may change within
a minute). The builds run side by side, on SMs of their own, so that they take a minute together.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from canaries import SOURCE
from launching import row

from warplens import layout
from warplens.capture import driver, machine
from warplens.capture.arguments import Arguments
from warplens.capture.options import RecordOptions
from warplens.capture.session import Session
from warplens.decode.flags import SpanFlag
from warplens.kernel.kernel import Kernel
from warplens.trace import Trace

LASTS_S = 60.0
BLOCKS, THREADS = 2, 64
LINE_WAITS = 10
TURN = 1 << (32 - layout.code_bits(3))
SEED = 5
MOST_ADDED_NS, MOST_ADDED_CYCLES = 2_000, 5_000  # of marks, which lie around a wait and are none of it
STAGED_TIMES = 4  # as much: one lane writes the 26 records that a warp keeps
MOST_RELATIVE = 1e-4
CAPACITY_BYTES = 8 << 20


def wait_cycles(hz: float, lasts_s: float, seed: int = SEED) -> list[int]:
    """The waits: around a turn of the records' clock and of 32 bits, 100 turns, 3 s, 20 s; then random ones."""
    turns = (0.9, 1.0, 1.1, 100.0)
    waits = [int(turn * TURN) for turn in turns] + [int(turn * 2**32) for turn in turns[:3]]
    waits += [int(3 * hz), int(20 * hz), 1000]
    rng = random.Random(seed)
    while sum(waits) < lasts_s * hz:
        waits.append(int(hz * 10 ** rng.uniform(-5, -0.7)))
    return waits


@dataclass
class Run:
    """One build at work."""

    name: str
    session: Session
    arguments: Arguments
    stamps: Any
    count: int
    may_doubt: bool
    trace: Trace | None = None


def prepare(name: str, kernel_name: str, waits: list[int], *, may_doubt: bool, **options: Any) -> Run:
    """A session whose builds are loaded: nothing may have to be loaded while a kernel of a minute runs."""
    kernel = Kernel(SOURCE, kernel_name, clean=None, filename="kernels.cu")
    stream = int(driver.call("cuStreamCreate", 1))
    wanted = RecordOptions(
        rounds=0, warmup=0, audit=False, correct=False, stream=stream, capacity_bytes=CAPACITY_BYTES, **options
    )
    session = Session(kernel, ((BLOCKS, 1, 1), (THREADS, 1, 1)), wanted)
    stamps = np.zeros((BLOCKS * THREADS // 32, len(waits), 4), np.uint64)
    values = (np.array(waits, np.int64), np.int32(len(waits)), stamps)
    arguments = Arguments(values, session.traced.function.parameter_sizes())
    session._switch_on()
    return Run(name, session, arguments, stamps, len(waits), may_doubt)


def record_together(runs: list[Run]) -> None:
    """What `Session.run` does for one kernel, for all at once: pairs before, the launches, pairs after."""
    for run in runs:
        session = run.session
        session.step_ns = session.calibrator.step_ns(session.stream)
        session.arena.clear(session.stream)
        before = session.calibrator.begin(session.stream)
        session.calibration.append(session.calibrator.read(before, "before", session.stream))
    for run in runs:
        run.session._launch(run.session.traced, run.arguments)
    for run in runs:
        driver.call("cuStreamSynchronize", run.session.stream, doing=f"running {run.name}")
    for run in runs:
        session = run.session
        after = session.calibrator.begin(session.stream)
        session.calibration.append(session.calibrator.read(after, "after", session.stream))
        session.kept.append(session.arena.drain(session.stream))
        run.arguments.copy_back()
        run.trace = Trace.from_recording(session._recording(session.kept, machine.clock_state(session.kernel._device)))


def minute(lasts_s: float = LASTS_S) -> Iterator[dict[str, Any]]:
    """Rows for each build: in cycles and in ns."""
    device = driver.ensure_context()
    hz = 1e3 * driver.attribute(device, "CLOCK_RATE")
    waits = wait_cycles(hz, lasts_s)
    runs = [
        prepare("packed, built for loops", "waits<true, 0>", waits, may_doubt=False, policy="packed", loops=True),
        prepare("packed, as NVRTC builds it", "waits<true, 0>", waits, may_doubt=True, policy="packed"),
        prepare("packed, a straight line", f"waits<true, {LINE_WAITS}>", waits[:LINE_WAITS], may_doubt=True,
                policy="packed"),
        prepare("stream", "waits<true, 0>", waits, may_doubt=False, policy="stream"),
        prepare("staged", "waits<true, 0>", waits, may_doubt=False, policy="staged"),
    ]  # fmt: skip
    record_together(runs)
    for run in runs:
        yield from judged(run, hz)


def judged(run: Run, hz: float) -> Iterator[dict[str, Any]]:
    """Compare each wait's span with what the kernel read."""
    trace = run.trace
    assert trace is not None
    spans = trace.spans.filter(trace.spans["site"] == 0).sort("block", "warp", "payload")
    lasted_s = float(trace.launches["duration_ns"][0] or 0) / 1e9
    warps = BLOCKS * THREADS // 32
    complete = spans.height == warps * run.count and spans["payload"].to_list() == list(range(run.count)) * warps
    numbers: dict[str, Any] = {"waits": spans.height, "lasted_s": lasted_s, "clock_rate_hz": hz}
    if not complete:
        doubts = trace.problems["text"].to_list()[:5]
        yield row(f"a long kernel, {run.name}", False, **numbers, why="waits are missing", problems=doubts)
        return
    stamps = run.stamps.reshape(-1, 4).astype(np.int64)
    sure = (spans["flags"].to_numpy() & int(SpanFlag.WRAPPED)) == 0
    uncertainty_ns = float(trace.launches["uncertainty_ns"][0])
    numbers |= {
        "uncertainty_ns": uncertainty_ns,
        "told_as_doubtful": int((~sure).sum()),
        "problems": sorted(set(trace.problems["kind"].to_list())),
    }
    allowed = bool(sure.all()) or run.may_doubt
    for unit, column, begin, slack in (("cycles", "duration_cycles", 1, 0.0), ("ns", "duration_ns", 0, MOST_RELATIVE)):
        own = stamps[:, begin + 2] - stamps[:, begin]
        added = spans[column].to_numpy().astype(np.int64) - own
        most = MOST_ADDED_CYCLES if unit == "cycles" else MOST_ADDED_NS
        most *= STAGED_TIMES if run.name == "staged" else 1
        bound = most + slack * own + (2 * uncertainty_ns if unit == "ns" else 0)  # of a begin and of an end
        right = np.abs(added) <= bound
        yield row(
            f"a kernel of {lasted_s:.0f} s, {run.name}, in {unit}",
            allowed and bool(right[sure].all()),
            **numbers,
            wrong=int((~right & sure).sum()),
            wrong_and_told=int((~right & ~sure).sum()),
            added_p50=float(np.median(added[sure])) if sure.any() else None,
            added_most=int(np.abs(added[sure]).max()) if sure.any() else None,
            relative_most_above_1_s=_relative(added, own, sure & (stamps[:, 2] - stamps[:, 0] > 10**9)),
        )


def _relative(added: Any, own: Any, which: Any) -> float | None:
    return float((np.abs(added[which]) / own[which]).max()) if which.any() else None
