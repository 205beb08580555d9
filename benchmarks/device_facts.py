"""The facts about clocks, barriers and losses that docs/adr/0002-clocks.md and detail/device.cuh rest on, measured.

In: a GPU. Out: JSON with all raw numbers; all else of it is printed too. Needs cuda-bindings and NVRTC, no torch.
Above each kernel in device_facts.cu stands what it does. The GPU is kept busy before and between: an idle one lowers
its clocks. What is found is written whatever it is; afterwards losses that do not add up are an error.

    python benchmarks/device_facts.py -o benchmarks/results/device_facts.json
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from warplens import clock, decode
from warplens.capture import driver, machine
from warplens.capture.arguments import Arguments
from warplens.capture.calibrate import Calibrator
from warplens.capture.compile import compile_cubin, load_nvrtc
from warplens.capture.cuda import CudaKernel
from warplens.capture.library import Library
from warplens.decode.manifest import check

SOURCE = Path(__file__).with_suffix(".cu")
BARRIERS = {"bare": "barrier_delay<false>", "settled": "barrier_delay<true>"}
LOADED = {"bare": "barrier_loaded<false>", "settled": "barrier_loaded<true>"}
LOADED_WARPS, LOADED_TURNS, LOADED_BLOCKS_PER_SM, LOADED_ROWS = 8, 20, 4, 1024
KERNELS = ("keep_busy", "globaltimer_samples", "clock_reads", *BARRIERS.values(), *LOADED.values())
WARM_UP_NS, GAP_NS = 300_000_000, 50_000_000
SAMPLES, STEPS, READS = 1 << 16, 4096, 1000  # of globaltimer; steps kept of those found in them; of the other clocks
BLOCKS_PER_SM, LATE_CYCLES = 2, 3000
GROUP_GAP_NS = 200
SLIP_BYTES = 120_000_000
LOSSY = ((64, 256, 1000, 1 << 20), (2000, 96, 50, 1 << 20), (300, 100, 200, 1 << 18))
"""Blocks, threads, turns, bytes of capacity: whole warps, and then blocks whose last warp has four threads."""
EVENTS_A_TURN = 3


class Kernels:
    """device_facts.cu on the GPU, launched in the default stream."""

    def __init__(self, arch: str) -> None:
        options = ["-DWARPLENS_NO_CLUSTER"]
        text = SOURCE.read_text(encoding="utf-8")
        compiled = compile_cubin(text, KERNELS, arch=arch, options=options, filename=SOURCE.name)
        self._library = Library(compiled.cubin)  # its functions go with it
        self._functions = {name: self._library.function(compiled.names[name], name) for name in KERNELS}

    def launch(self, name: str, blocks: int, threads: int, *values: Any) -> None:
        """Launch; with arrays among the values: wait, and bring them back."""
        arguments = Arguments(values, self._functions[name].parameter_sizes())
        self._functions[name].launch((blocks, 1, 1), (threads, 1, 1), arguments.table, 0, 0)
        arguments.copy_back()

    def read(self, name: str, blocks: int, threads: int, shape: tuple[int, ...], value: int) -> clock.I64:
        """What the kernel writes, int64 of this shape, when it runs for the second time, its code in the caches."""
        out: clock.I64 = np.zeros(shape, np.int64)
        for _ in range(2):
            self.launch(name, blocks, threads, out, np.uint32(value))
        return out


def main() -> None:
    """Measure, write the JSON, print its facts; RuntimeError when losses do not add up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    output: Path = parser.parse_args().output
    device = driver.ensure_context()
    lossy = CudaKernel.from_file(SOURCE, "many_marks<true>", clean=None)
    kernels, calibrator = Kernels(lossy.arch), Calibrator(device, lossy.arch)
    described = machine.device_facts(device)
    sm_count = described["sm_count"]
    kernels.launch("keep_busy", sm_count, 32, np.uint32(WARM_UP_NS))
    driver.call("cuStreamSynchronize", 0, doing="keeping the GPU busy")
    before = machine.clock_state(device)
    steps = step_facts(kernels.read("globaltimer_samples", 1, 1, (SAMPLES, 2), SAMPLES))
    shape = (BLOCKS_PER_SM * sm_count, 2, 2)
    facts = {
        "globaltimer_steps_ns": {**steps, "calibrator_says": calibrator.step_ns(0)},
        "clock_reads_cycles": read_facts(kernels.read("clock_reads", 1, 1, (READS, 6), READS)),
        **sm_facts(calibrations(kernels, calibrator, sm_count), steps["median"]),
        "clock_slips_cycles": slip_facts(kernels, calibrator, sm_count),
        "losses": [loss_facts(lossy, *case) for case in LOSSY],
        "barrier_delay_cycles": {
            key: barrier_facts(kernels.read(name, shape[0], 64, shape, LATE_CYCLES)) for key, name in BARRIERS.items()
        },
        "barrier_delay_under_load_cycles": {
            key: loaded_facts(kernels, name, LOADED_BLOCKS_PER_SM * sm_count) for key, name in LOADED.items()
        },
    }
    about = {
        "benchmark": "device_facts",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/device_facts.py", f"-o={output.name}"],
        "device": described,
        "driver": described["driver"],
        "versions": {
            "python": platform.python_version(),
            "cuda_bindings": version("cuda-bindings"),
            "nvrtc": ".".join(map(str, load_nvrtc().nvrtcVersion()[1:])),
        },
        "clocks": {"before": before, "after": machine.clock_state(device)},
        "method": {"calibrations_apart_ns": GAP_NS, "group_gap_ns": GROUP_GAP_NS, "warp_1_late_cycles": LATE_CYCLES},
    }
    output.write_text(text_of({**about, **facts}) + "\n", encoding="utf-8")
    long = ("raw", "sms")
    shown = json.loads(json.dumps(facts), object_hook=lambda part: {k: v for k, v in part.items() if k not in long})
    print(f"{text_of(shown)}\nwrote {output}")
    if any(case["recorded_events"] + case["lost_events"] != case["expected_events"] for case in facts["losses"]):
        raise RuntimeError(f"recorded and lost events are not those expected: {facts['losses']}")


def calibrations(kernels: Kernels, calibrator: Calibrator, sm_count: int) -> list[dict[str, Any]]:
    """Pairs of every SM's clocks, and again GAP_NS later, with every SM busy until then."""
    taken = []
    for when in ("before", "after"):
        kernels.launch("keep_busy", sm_count, 32, np.uint32(GAP_NS))
        taken.append((calibrator.begin(0), when))
    return [calibrator.read(memory, when, 0) for memory, when in taken]


def slip_facts(kernels: Kernels, calibrator: Calibrator, sm_count: int) -> dict[str, Any]:
    """Cycles that each SM's clock fell behind its own rate between two calibrations, by what ran in between."""
    memory = driver.DeviceMemory(SLIP_BYTES)
    between = {
        "nothing": lambda: None,
        "one SM busy for 10 us": lambda: kernels.launch("keep_busy", 1, 32, np.uint32(10_000)),
        "all SMs busy for 10 us": lambda: kernels.launch("keep_busy", 8 * sm_count, 256, np.uint32(10_000)),
        "memset": lambda: driver.call("cuMemsetD8Async", memory.address, 0, SLIP_BYTES, 0),
    }
    return {
        name: series(np.median([slips(calibrator, run) for _ in range(9)], axis=0)) for name, run in between.items()
    }


def slips(calibrator: Calibrator, run: Callable[[], Any]) -> clock.F64:
    """Cycles lost per SM while `run` ran, by the median rate of both calibrations."""
    before = calibrator.begin(0)
    run()
    after = calibrator.begin(0)
    pairs = [calibrator.read(memory, when, 0) for memory, when in ((before, "before"), (after, "after"))]
    tables = []
    for pair in pairs:
        order = np.lexsort((pair["clock_cycles"], pair["sm"]))
        columns = (clock.int64(pair[name])[order] for name in ("globaltimer_ns", "clock_cycles"))
        tables.append(tuple(column.reshape(len(np.unique(pair["sm"])), -1) for column in columns))
    rate = np.median([(cycles[:, -1] - cycles[:, 0]) / (ns[:, -1] - ns[:, 0]) for ns, cycles in tables])
    (ns, cycles), (later_ns, later_cycles) = tables
    return np.asarray((later_ns[:, 0] - ns[:, -1]) * rate - (later_cycles[:, 0] - cycles[:, -1]))


def step_facts(samples: clock.I64) -> dict[str, Any]:
    """Steps of globaltimer, and cycles between the two reads around each; `samples` as the kernel writes them."""
    change = np.flatnonzero(np.diff(samples[:, 0]))[: STEPS + 1]
    around = np.diff(samples[:, 1])[change[1:]]
    return {**series(np.diff(samples[change + 1, 0])), "cycles_between_reads": series(around)}


def read_facts(reads: clock.I64) -> dict[str, Any]:
    """Cycles between the outer two of reads that stand side by side; `reads` as the kernel writes them."""
    return {
        "clock64_globaltimer_clock64": series(reads[:, 2] - reads[:, 0]),
        "clock64_clock64": series(reads[:, 4] - reads[:, 3]),
        "clock_clock": series(((reads[:, 5] >> 32) - reads[:, 5]) & 0xFFFFFFFF),
    }


def sm_facts(calibration: list[dict[str, Any]], step_ns: float) -> dict[str, Any]:
    """Rate of each SM's clock64, its offset against the first SM's in the middle, and the groups of the offsets."""
    lines = clock.fit([], [], [], step_ns=step_ns, calibration=calibration)
    sms = np.flatnonzero(lines.known)
    rates = lines.cycles_per_ns(sms)
    since_ns = np.median(lines.offset_ns[sms]) - lines.offset_ns[sms]
    shown = lines.base_cycles[sms] + np.rint(since_ns * rates).astype(np.int64)
    reached_ns = lines.to_ns(sms, shown[0])  # when each clock shows what the first SM's shows in the middle
    order = np.argsort(reached_ns, kind="stable")
    groups = [
        {"sms": np.sort(sms[of]).tolist(), "offset_cycles": spread(shown[of] - shown[0]), "rate": spread(rates[of])}
        for of in np.split(order, np.flatnonzero(np.diff(reached_ns[order]) > GROUP_GAP_NS) + 1)
    ]
    return {
        "sm_rates": {"unit": "cycles/ns", **series(rates), "max_over_min_minus_1": float(np.ptp(rates) / rates.min())},
        "sm_offsets": {"unit": "cycles", **series(shown - shown[0]), "group_count": len(groups), "groups": groups},
        "sm_lines": {
            "half_width_ns": spread(lines.half_width_ns[sms]),
            "problems": [problem.text for problem in lines.problems],
            "raw": {"sms": sms.tolist(), "calibration": calibration},
        },
    }


def barrier_facts(clocks: clock.I64) -> dict[str, Any]:
    """When warp 0 read the clock behind a barrier, and warp 1 arrived; `clocks` as the kernel writes them."""
    before, behind, arrival = clocks[:, 0, 0], clocks[:, 0, 1], clocks[:, 1, 0]
    return {
        "blocks": len(clocks),
        "blocks_behind_before_arrival": int((behind < arrival).sum()),
        "behind_minus_before": spread(behind - before),
        "behind_minus_arrival": spread(behind - arrival),
        "raw": {"before": before.tolist(), "behind": behind.tolist(), "arrival": arrival.tolist()},
    }


def loaded_facts(kernels: Kernels, name: str, blocks: int) -> dict[str, Any]:
    """When the warps of a block read the clock behind a barrier, and the last of them came to it."""
    out: clock.I64 = np.zeros((blocks * LOADED_TURNS, LOADED_WARPS, 2), np.int64)
    source = np.zeros((LOADED_ROWS, 32 * LOADED_WARPS, 2), np.int64)
    kernels.launch(name, blocks, 32 * LOADED_WARPS, out, source, np.uint32(LOADED_TURNS))
    before, behind = out[..., 0], out[..., 1]
    last = before.max(axis=1, keepdims=True)
    first = (behind - last).min(axis=1)
    return {
        "barriers": len(out),
        "reads": int(behind.size),
        "reads_before_the_last_arrival": int((behind < last).sum()),
        "first_behind_minus_last_arrival": series(first),
    }


def loss_facts(kernel: CudaKernel, blocks: int, threads: int, turns: int, capacity_bytes: int) -> dict[str, Any]:
    """One recording of a known number of events into too little memory."""
    recording = kernel.capture(blocks, threads, np.uint32(turns), rounds=0, warmup=0, capacity_bytes=capacity_bytes)
    manifest = check(recording.manifest)
    return {
        "launch": f"{blocks} x {threads}, {turns} turns, {capacity_bytes} bytes, {manifest['policy']}",
        "expected_events": blocks * -(-threads // 32) * turns * EVENTS_A_TURN,
        "recorded_events": int(decode.decode(manifest, recording.records).launches["events"][0]),
        "lost_events": int(manifest["launches"][0]["lost_events"]),
    }


def spread(values: clock.I64 | clock.F64) -> dict[str, float]:
    return {"median": float(np.median(values)), "min": values.min().item(), "max": values.max().item()}


def series(values: clock.I64 | clock.F64) -> dict[str, Any]:
    return {**spread(values), "raw": values.tolist()}


def text_of(value: Any) -> str:
    """JSON in which a list of numbers takes one line."""
    lists = re.compile(r"\[\s+([-+.,\de\s]+?)\s+\]")
    return lists.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(value, indent=1))


if __name__ == "__main__":
    main()
