"""What recording costs a Triton kernel: warplens beside Proton, Triton's own profiler of kernels.

In: a GPU, torch, Triton 3.6 or newer with Proton. Out: JSON with all raw times and counts, and a table. Both record the
same kernels below: Proton at its scopes, warplens at the waits that it finds in their PTX, all of them or as many as
give the number of records that the scopes give. A round times each variant once, in random order, each a batch of
launches between two events, behind a pause in which they are submitted. Proton's copy and parse behind each launch is
left out of these times; a whole recording of one launch, until the file is written, is timed by the wall clock
apart. What is dropped is counted: records that the scopes should have made and that are not in the file.

    python benchmarks/triton_proton.py -o benchmarks/results/triton_proton.json
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.profiler as proton
import triton_proton_kernels as kernels
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_marks import PAUSE_CYCLES, Case, bound, chunks_taken, noise, nvidia_smi

from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.instrument import Selection
from warplens.trace import Trace

LAUNCHES = 5
SEED = 20261130
SPAN = re.compile(r'"ph":\s*"X"')
RESAMPLES = 10_000


@dataclass
class Compared:
    """A case, the records that its scopes make in a warp, its warps, a selection of waits that makes about as many, and
    the scopes, a regular expression.

    `records`: of one launch, where its warps do not make as many each.
    """

    case: Case
    records_a_warp: int
    warps: int
    chosen: Selection
    scopes: str
    warps_a_block: int = 8
    records: int = 0

    def __post_init__(self) -> None:
        self.records = self.records or self.records_a_warp * self.warps


def matmul_case(size: int, depth: int) -> Compared:
    a, b = noise(size, depth), noise(depth, size)
    c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    grid = (size // 128, size // 128)

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
        return kernels.matmul[grid](a, b, c, size, size, depth, **blocks)

    case = Case(f"matmul {size} x {size} x {depth}", launch, c)
    return Compared(case, 4 * depth // 64, 8 * math.prod(grid), Selection(sites=r"wait (cp\.async|wgmma)"), "load|dot")


def rms_norm_case(rows: int, width: int) -> Compared:
    x, w = noise(rows, width), noise(width)
    y = torch.empty_like(x)

    def launch() -> Any:
        return kernels.rms_norm[(rows,)](x, y, w, width, 1e-6, BLOCK=triton.next_power_of_2(width), num_warps=8)

    scopes = "load|reduce|weight|store"
    return Compared(Case(f"RMSNorm {rows} x {width}", launch, y), 8, 8 * rows, Selection(sites="wait"), scopes)


def layer_norm_case(rows: int, width: int) -> Compared:
    x, w, b = noise(rows, width), noise(width), noise(width)
    y = torch.empty_like(x)

    def launch() -> Any:
        return kernels.layer_norm[(rows,)](x, y, w, b, width, 1e-5, BLOCK=width, num_warps=8)

    scopes = "load|mean|variance|weight|store"
    return Compared(Case(f"layer norm {rows} x {width}", launch, y), 10, 8 * rows, Selection(sites="wait"), scopes)


def attention_case(heads: int, length: int) -> Compared:
    q, k, v = (noise(heads, length, 64) for _ in range(3))
    out = torch.empty_like(q)

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD": 64, "num_warps": 4, "num_stages": 3}
        return kernels.attention[(length // 128, heads)](q, k, v, out, length, 0.18, **blocks)

    case = Case(f"attention {heads} x {length}", launch, out)
    chosen = Selection(sites=r"wait (cp\.async|wgmma)")
    scopes = "scores|softmax|values"
    return Compared(case, 6 * length // 64, 4 * heads * length // 128, chosen, scopes, warps_a_block=4)


def matmul_tma_case(size: int) -> Compared:
    a, b = noise(size, size), noise(size, size)
    c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    descriptors = [TensorDescriptor.from_tensor(t, [128, s]) for t, s in ((a, 64), (b, 64), (c, 128))]
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = (size // 128) ** 2

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
        return kernels.matmul_tma[(programs,)](*descriptors, size, size, size, PROGRAMS=programs, **blocks)

    case = Case(f"persistent TMA matmul {size}", launch, c)
    records = 4 * size // 64 * tiles * 4
    chosen = Selection(sites=r"wait (mbarrier|wgmma)")
    return Compared(case, records // (4 * programs), 4 * programs, chosen, "load|dot", warps_a_block=4, records=records)


CASES: dict[str, Callable[[], Compared]] = {
    "matmul": lambda: matmul_case(2048, 4096),
    "rms_norm": lambda: rms_norm_case(4096, 5120),
    "layer_norm": lambda: layer_norm_case(16384, 4096),
    "attention": lambda: attention_case(64, 4096),
    "matmul_tma": lambda: matmul_tma_case(4096),
}


@dataclass
class Variant:
    """A way to record. `on` is a context in which `launch` runs the build; `clear` lets the launches find space, and
    `check` raises if they were not recorded."""

    name: str
    launch: Callable[[], Any]
    on: Callable[[], Any] = nullcontext
    clear: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def without_copies() -> Iterator[None]:
    """Proton's hooks around a launch do nothing: neither the copy nor the parse of what was recorded."""
    hook = proton.hooks.InstrumentationHook
    before = hook.enter, hook.exit
    hook.enter = hook.exit = lambda *_: None
    try:
        yield
    finally:
        hook.enter, hook.exit = before


def start_proton(name: str, mode: str, folder: Path, data: str) -> None:
    """A session; there can be one alone, of one mode, at a time."""
    proton.start(str(folder / name.replace(" ", "_")), data=data, backend="instrumentation", mode=mode)


def proton_variant(compared: Compared, name: str, mode: str, folder: Path) -> Variant:
    """Proton with `mode`; what a launch leaves in its file is counted first."""
    case = compared.case

    @contextmanager
    def on() -> Iterator[None]:
        start_proton(name, mode, folder, "tree")
        try:
            with without_copies():
                yield
        finally:
            proton.finalize()

    with on():
        compiled = case.launch()
    facts = {"mode": mode, "registers": compiled.n_regs, "spills": compiled.n_spills}
    facts["shared_bytes"] = compiled.metadata.shared
    begin_s = time.monotonic()
    start_proton("counted", mode, folder, "trace")
    case.launch()
    torch.cuda.synchronize()
    proton.finalize()
    facts["whole_recording_s"] = time.monotonic() - begin_s
    files = list(folder.glob("counted*"))
    facts["file_bytes"] = sum(file.stat().st_size for file in files)
    records = 2 * sum(len(SPAN.findall(file.read_text(encoding="utf-8"))) for file in files)
    for file in files:
        file.unlink()
    return Variant(name, case.launch, on, facts=facts | {"records": records, "dropped": compared.records - records})


def warplens_variant(compared: Compared, name: str, selection: Selection, folder: Path) -> Variant:
    """warplens at the sites of a selection; what a launch leaves in its file is counted first."""
    case, options = compared.case, PythonOptions(selection=selection, capacity_bytes=2 << 30)
    path, facts = folder / "whole.wlens", dict[str, Any](level=selection.level, sites=selection.sites)
    own: list[Any] = []
    begin_s = time.monotonic()
    with TritonCapture(options) as whole:
        case.launch()
    recording = whole.recording()
    assert recording is not None
    trace = Trace.from_recording(recording)
    trace.save(path)
    facts["whole_recording_s"] = time.monotonic() - begin_s
    events, lost = (int(trace.launches[key].sum()) for key in ("events", "lost_events"))
    facts |= {"file_bytes": path.stat().st_size, "records": events, "dropped": lost, "spans": trace.spans.height}

    capture = TritonCapture(options)
    capture.start()
    launch = bound(case, own)
    facts |= {"registers": own[0].n_regs, "spills": own[0].n_spills, "shared_bytes": own[0].metadata.shared}
    facts["notes"] = capture.notes
    capture.put_back()

    def clear() -> None:
        if capture._gpu is not None:
            capture._gpu.arena.clear_cursors(torch.cuda.current_stream().cuda_stream)

    def check() -> None:
        if not chunks_taken(capture):
            raise RuntimeError(f"{name}: the launches were not recorded")

    return Variant(name, launch, clear=clear, check=check, facts=facts)


def prepare(compared: Compared, folder: Path) -> list[Variant]:
    """All variants, each launched, with the results compared bit by bit."""
    case, own = compared.case, list[Any]()
    variants = [Variant("clean", bound(case, own))]
    torch.cuda.synchronize()
    expected = case.out.clone()
    variants[0].facts = {"registers": own[0].n_regs, "spills": own[0].n_spills, "shared_bytes": own[0].metadata.shared}
    room = triton.next_power_of_2(8 * compared.warps_a_block * compared.records_a_warp)  # 8 bytes a record
    modes = {"proton": "default", "proton, room for all": f"default:buffer_size={room}"}
    made = [attempt(name, proton_variant, compared, name, mode, folder) for name, mode in modes.items()]
    ours = {"waits": Selection(), "chosen sites": compared.chosen, "scopes": Selection(sites=f"^({compared.scopes})$")}
    for name, selection in ((f"warplens, {what}", selection) for what, selection in ours.items()):
        made.append(attempt(name, warplens_variant, compared, name, selection, folder))
    for variant in filter(None, made):
        case.out.zero_()
        with variant.on():
            variant.clear()
            variant.launch()
        torch.cuda.synchronize()
        variant.facts["identical"] = bool(torch.equal(expected.view(torch.int16), case.out.view(torch.int16)))
        variants.append(variant)
    return variants


def attempt(name: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` gives; None, and the reason printed, where it fails: the others are still measured."""
    try:
        return make(*arguments)
    except Exception:
        print(f"{name}: {traceback.format_exc()}", flush=True)
        return None


def timed(variant: Variant) -> float:
    """ns of one launch, the mean of a batch."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with variant.on():
        variant.clear()
        torch.cuda._sleep(PAUSE_CYCLES)
        begin.record()
        for _ in range(LAUNCHES):
            variant.launch()
        end.record()
        if begin.query():
            raise RuntimeError(
                f"{variant.name}: the pause was over before the batch was submitted; its time is the host's"
            )
        end.synchronize()
        variant.check()
    return float(begin.elapsed_time(end)) * 1e6 / LAUNCHES


def measure(variants: list[Variant], rounds: int) -> dict[str, list[float]]:
    order = random.Random(SEED)
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for variant in variants:
        timed(variant)
    for _ in range(rounds):
        for variant in order.sample(variants, len(variants)):
            times[variant.name].append(timed(variant))
    return times


def ratio(own: list[float], clean: list[float]) -> dict[str, float]:
    """Median of the rounds' ratios, and its 95 % interval by bootstrap over rounds."""
    ratios = np.asarray(own) / np.asarray(clean)
    picks = np.random.default_rng(SEED).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return {"median": float(np.median(ratios)), "low_95": float(low), "high_95": float(high)}


def one(name: str, rounds: int) -> dict[str, Any]:
    """What is measured of one case."""
    torch.manual_seed(SEED)
    compared = CASES[name]()
    with tempfile.TemporaryDirectory() as folder:
        variants = prepare(compared, Path(folder))
        times = measure(variants, rounds)
    rows = [
        {"name": v.name, **v.facts, "ratio": ratio(times[v.name], times["clean"]), "times_ns": times[v.name]}
        for v in variants
    ]
    print(f"{compared.case.name}: the scopes make {compared.records:,} records a launch")
    for row in rows:
        told = {key: value for key, value in row.items() if key not in ("name", "ratio", "times_ns", "notes")}
        interval = "[{low_95:.3f}, {high_95:.3f}]".format(**row["ratio"])
        median_us = np.median(row["times_ns"]) / 1e3
        print(f"  {row['name']:24} {median_us:8.1f} us {row['ratio']['median']:.3f} {interval} {told}")
    return {
        "case": compared.case.name,
        "warps": compared.warps,
        "records_of_scopes": compared.records,
        "rows": rows,
    }


def main() -> None:
    """Measure the cases, write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default=",".join(CASES))
    arguments = parser.parse_args()
    before = nvidia_smi()
    result: dict[str, Any] = {
        "benchmark": "triton_proton",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/triton_proton.py --rounds={arguments.rounds} -o {arguments.output.name}",
        "device": before,
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "method": {"launches_a_sample": LAUNCHES, "seed": SEED},
        "cases": [],
    }
    for name in arguments.only.split(","):
        result["cases"].append(one(name, arguments.rounds))
        result["clocks"] = {"before": before, "after": nvidia_smi()}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
