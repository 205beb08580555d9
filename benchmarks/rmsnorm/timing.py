"""GPU time of functions of (x, weight): CUDA graphs over rotating buffers, replayed in interleaved rounds.

In: torch and functions that launch on the current stream. Out: ns a launch, per function and round. Between two uses
of a buffer lie others of three times the L2 at least, so that x comes from memory and y goes there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Call = Callable[[Any, Any, Any], Any]
"""(x, weight, y) -> y: writes into the y given, or returns one of its own."""

L2_MULTIPLE = 3
BUSY_CYCLES = 400_000  # 0.2 ms in front of a replay, so that submitting it is not timed
WANTED_NS = 1.5e6  # of a graph
GUESSED_BYTES_PER_NS = 3500
GUESSED_LAUNCH_NS = 2000
LAUNCHES = (8, 400)  # of a graph, at least and at most
SEED = 7


@dataclass(frozen=True)
class Buffers:
    """Rotating inputs and outputs of one size."""

    xs: list[Any]
    ys: list[Any]
    weight: Any
    launches: int


def make_buffers(rows: int, hidden: int, dtype: str, *, most_launches: int = LAUNCHES[1]) -> Buffers:
    """Pairs of x and y of L2_MULTIPLE times the L2 in all, two at least, filled with normal values."""
    torch_dtype = getattr(torch, dtype)
    pair_bytes = 2 * rows * hidden * torch_dtype.itemsize
    sets = max(2, 1 + -(-L2_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size // pair_bytes))
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    xs = [torch.empty(rows, hidden, device="cuda", dtype=torch_dtype).normal_(generator=generator) for _ in range(sets)]
    weight = torch.empty(hidden, device="cuda", dtype=torch_dtype).normal_(generator=generator)
    wanted = int(WANTED_NS / (GUESSED_LAUNCH_NS + pair_bytes / GUESSED_BYTES_PER_NS))
    launches = min(max(wanted, LAUNCHES[0], sets), most_launches)
    torch.cuda.synchronize()
    return Buffers(xs, [torch.empty_like(x) for x in xs], weight, launches)


def capture(call: Call, buffers: Buffers, stream: Any) -> Any:
    """A graph of all launches; one launch before it compiles and loads the kernel. Runs on `stream`, the current one.

    As many outputs stay alive as there are sets, so that functions that make their own y rotate as the others do.
    """
    sets = len(buffers.xs)
    call(buffers.xs[0], buffers.weight, buffers.ys[0])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    alive: list[Any] = [None] * sets
    with torch.cuda.graph(graph, stream=stream):
        for index in range(buffers.launches):
            alive[index % sets] = call(buffers.xs[index % sets], buffers.weight, buffers.ys[index % sets])
    return graph


def replay_rounds(
    graphs: dict[str, Any], stream: Any, launches: int, rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """ns a launch of each graph and round; every round replays all graphs once, in random order."""
    times_ns: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    generator = np.random.default_rng(SEED)
    for number in range(-warmup, rounds):
        for position in generator.permutation(len(names)):
            name = names[position]
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(BUSY_CYCLES)
            begin.record(stream)
            graphs[name].replay()
            end.record(stream)
            stream.synchronize()
            if number >= 0:
                times_ns[name].append(begin.elapsed_time(end) * 1e6 / launches)
    return times_ns


def time_calls(calls: dict[str, Call], buffers: Buffers, rounds: int) -> dict[str, list[float]]:
    """ns a launch of each function and round."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        graphs = {name: capture(call, buffers, stream) for name, call in calls.items()}
        return replay_rounds(graphs, stream, buffers.launches, rounds)


def time_cold(calls: dict[str, Call], buffers: Buffers, rounds: int) -> dict[str, list[float]]:
    """ns a launch with the L2 emptied before each: graphs of (flush, launch), less a graph of flushes, per round.

    The flush reads clean memory of twice the L2, long after the inputs were written: no dirty line is left to be
    written back while the kernel runs.
    """
    words = 2 * torch.cuda.get_device_properties(0).L2_cache_size // 4
    clean = torch.zeros(words, device="cuda", dtype=torch.float32)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def flushed(call: Call) -> Call:
        def both(x: Any, weight: Any, y: Any) -> Any:
            torch.sum(clean)
            return call(x, weight, y)

        return both

    with torch.cuda.stream(stream), torch.no_grad():
        graphs = {name: capture(flushed(call), buffers, stream) for name, call in calls.items()}
        graphs[""] = capture(flushed(lambda _x, _weight, y: y), buffers, stream)
        times_ns = replay_rounds(graphs, stream, buffers.launches, rounds)
    flush_ns = times_ns.pop("")
    return {name: [t - f for t, f in zip(times, flush_ns, strict=True)] for name, times in times_ns.items()}


def host_latency(calls: dict[str, Call], buffers: Buffers, repeats: int = 200) -> dict[str, dict[str, float]]:
    """ns from calling a function until its result is there (median), and a call of many in a row, host and GPU."""
    found = {}
    with torch.no_grad():
        for name, call in calls.items():
            arguments = buffers.xs[0], buffers.weight, buffers.ys[0]
            for _ in range(20):
                call(*arguments)
            alone = []
            for _ in range(repeats):
                torch.cuda.synchronize()
                begin = time.perf_counter_ns()
                call(*arguments)
                torch.cuda.synchronize()
                alone.append(time.perf_counter_ns() - begin)
            begin = time.perf_counter_ns()
            for _ in range(repeats):
                call(*arguments)
            torch.cuda.synchronize()
            found[name] = {
                "alone_median_ns": float(np.median(alone)),
                "in_a_row_ns": (time.perf_counter_ns() - begin) / repeats,
            }
    return found
