"""What the marks that warplens puts into Triton kernels cost, and whether the kernels compute the same.

In: a GPU, torch, Triton. Out: JSON with all raw times, and traces of each kernel with `--traces`. A round times each
variant once, in random order, each a batch of launches between two events; ratios to the clean kernel are paired by
round. Results of clean and marked kernels are compared bit by bit.

    python benchmarks/triton_marks.py -o benchmarks/results/triton_marks.json
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ptx"))
import triton_kernels as kernels
from triton.tools.tensor_descriptor import TensorDescriptor

from warplens import layout
from warplens.capture import driver
from warplens.capture.chosen import Ways
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.instrument import Mode, Selection, State
from warplens.instrument.recorder import Recorder
from warplens.instrument.staged import StagedRecorder
from warplens.instrument.straight import StraightRecorder
from warplens.trace import Trace

LAUNCHES = 5
TRIES = 5
PAUSE_CYCLES = 6_000_000  # 3 ms, in which a batch is submitted
SEED = 20261130


@dataclass
class Case:
    """A kernel with its arguments. `launch` starts it once, and returns what Triton compiled; `out`: what it writes."""

    name: str
    launch: Callable[[], Any]
    out: torch.Tensor


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(torch.bfloat16)


def matmul(size: int) -> Case:
    a, b = noise(size, size), noise(size, size)
    c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    grid = (size // 128, size // 128)

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
        return kernels.matmul[grid](a, b, c, size, size, size, size, size, size, **blocks)

    return Case(f"matmul {size}", launch, c)


def matmul_tma(size: int) -> Case:
    a, b = noise(size, size), noise(size, size)
    c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    descriptors = [TensorDescriptor.from_tensor(t, [128, s]) for t, s in ((a, 64), (b, 64), (c, 128))]
    programs = torch.cuda.get_device_properties(0).multi_processor_count

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
        return kernels.matmul_tma[(programs,)](
            *descriptors, size, size, size, PROGRAMS=programs, SPECIALIZED=False, **blocks
        )

    return Case(f"persistent TMA matmul {size}", launch, c)


def layer_norm(rows: int, width: int) -> Case:
    x, w, b = noise(rows, width), noise(width), noise(width)
    y = torch.empty_like(x)

    def launch() -> Any:
        return kernels.layer_norm[(rows,)](x, y, w, b, width, 1e-5, BLOCK=width, num_warps=8)

    return Case(f"layer norm {rows} x {width}", launch, y)


def attention(heads: int, length: int) -> Case:
    q, k, v = (noise(heads, length, 64) for _ in range(3))
    out = torch.empty_like(q)

    def launch() -> Any:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD": 64, "num_warps": 4, "num_stages": 3}
        return kernels.attention[(length // 128, heads)](q, k, v, out, length, 0.18, **blocks)

    return Case(f"attention {heads} x {length}", launch, out)


CASES: dict[str, Callable[[], Case]] = {
    "layer_norm": lambda: layer_norm(16384, 4096),
    "matmul": lambda: matmul(4096),
    "matmul_tma": lambda: matmul_tma(4096),
    "attention": lambda: attention(64, 4096),
}
BUILDS: dict[str, PythonOptions] = {
    "coarse": PythonOptions(selection=Selection("coarse"), capacity_bytes=1 << 30),
    "waits": PythonOptions(capacity_bytes=1 << 30),
    "waits, at once": PythonOptions(capacity_bytes=1 << 30, staged=False),
    "all": PythonOptions(selection=Selection("all"), capacity_bytes=1 << 30),
    # Selections that take every site too, and so mark alike, but are kept apart in Triton's caches.
    "waits, large slabs": PythonOptions(selection=Selection(sites="(?:)"), capacity_bytes=1 << 30, slab_chunks=64),
    "waits, switched off": PythonOptions(selection=Selection(sites="(?:)?"), capacity_bytes=1 << 30),
    "waits, unsettled": PythonOptions(selection=Selection(sites="(?:)*"), capacity_bytes=1 << 30),
    "waits, arithmetic in place": PythonOptions(selection=Selection(sites="(?:)(?:)*"), capacity_bytes=1 << 30),
    "waits, no record stored": PythonOptions(selection=Selection(sites="(?:)*(?:)"), capacity_bytes=1 << 30),
    "waits, nothing stored": PythonOptions(
        selection=Selection(sites="(?:)*(?:)?"), capacity_bytes=1 << 30, staged=False
    ),
    "waits, fewer registers": PythonOptions(selection=Selection(sites="(?:)(?:)(?:)"), capacity_bytes=1 << 30),
    "waits, state in shared memory": PythonOptions(selection=Selection(sites="(?:)(?:)"), capacity_bytes=1 << 30),
    "waits, state in local memory": PythonOptions(selection=Selection(sites="(?:)(?:)?"), capacity_bytes=1 << 30),
    "copies and products alone": PythonOptions(
        selection=Selection(sites=r"wait (cp\.async|mbarrier|wgmma)"), capacity_bytes=1 << 30
    ),
}


LEFT_OUT = {
    "no record stored": ("put", "group"),
    "nothing stored": ("put", "group", "open", "next", "end"),
}
OF_RECORDS = ("put", "group")
RECORDERS = (Recorder, StraightRecorder, StagedRecorder)
STATES = {
    State.FEWER_REGISTERS: "fewer registers",
    State.SHARED: "state in shared memory",
    State.LOCAL: "state in local memory",
}


def unsettled(run: Callable[[], Any]) -> Any:
    """With marks that do not wait for a barrier to take effect: what that wait costs."""
    settle = Recorder.settle

    def nothing(_: Recorder, together: bool) -> list[str]:  # noqa: ARG001  (as settle has it)
        return []

    Recorder.settle = nothing  # type: ignore[method-assign]
    try:
        return run()
    finally:
        Recorder.settle = settle  # type: ignore[method-assign]


def never(store: str) -> list[str]:
    """A store in lanes where the low bits of the place are 1, which ptxas cannot know to be none."""
    return ["setp.eq.u32 %wl_p3, %wl_lo, 1;", f"@%wl_p3 {store.partition(' ')[2]}"]


def without(parts: Sequence[str], run: Callable[[], Any]) -> Any:
    """With parts of the recorder's text left out: what it records cannot be read, its time tells what they cost.

    Records are made all the same: they are for stores that never happen, or ptxas would leave out their clocks, too.
    """
    before = {(kind, name): vars(kind)[name] for kind in RECORDERS for name in parts if name in vars(kind)}

    def silent(name: str, made: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def own(*values: Any, **named: Any) -> list[str]:
            lines = made(*values, **named)
            if name not in OF_RECORDS:
                return [line for line in lines if " st." not in line]
            return [text for line in lines for text in (never(line) if " st." in line else [line])]

        return own

    for (kind, name), made in before.items():
        setattr(kind, name, silent(name, made))
    try:
        return run()
    finally:
        for (kind, name), made in before.items():
            setattr(kind, name, made)


def kept_in(state: State, run: Callable[[], Any], *, hoists: bool = True) -> Any:
    """With the recorder's state there, whether it has registers or not, and with arithmetic ahead of waits or not."""
    modes = Ways.modes

    def forced(self: Ways, what: str, selection: Selection) -> list[tuple[str, Mode]]:
        own = replace(self, shared=state is State.SHARED)
        found = [(name, mode) for name, mode in modes(own, what, selection) if mode.state is state]
        return [entry for entry in found if entry[1].hoists == hoists] or found

    Ways.modes = forced  # type: ignore[method-assign,assignment]
    try:
        return run()
    finally:
        Ways.modes = modes  # type: ignore[method-assign]


@dataclass
class Variant:
    """A build of the case's kernel; `capture` of one with marks stays open until its times are taken."""

    name: str
    launch: Callable[[], Any]
    capture: TritonCapture | None = None

    def clear(self) -> None:
        """Lets the launches that follow find space."""
        if self.capture is not None and self.capture._gpu is not None:
            self.capture._gpu.arena.clear_cursors(torch.cuda.current_stream().cuda_stream)


def bound(case: Case, compiled: list[Any]) -> Callable[[], Any]:
    """Launches one build, whatever Triton would choose now: its caches are asked for it by the key it was made with."""
    key = triton.knobs.compilation.instrumentation_mode
    hook = triton.knobs.runtime.add_stages_inspection_hook

    def launch() -> Any:
        before = triton.knobs.compilation.instrumentation_mode, triton.knobs.runtime.add_stages_inspection_hook
        triton.knobs.compilation.instrumentation_mode, triton.knobs.runtime.add_stages_inspection_hook = key, hook
        try:
            return case.launch()
        finally:
            triton.knobs.compilation.instrumentation_mode, triton.knobs.runtime.add_stages_inspection_hook = before

    compiled.append(launch())
    return launch


def prepare(case: Case, builds: Sequence[str]) -> tuple[list[Variant], dict[str, Any]]:
    """All builds, each launched once; whether their results agree bit by bit, and their registers."""
    compiled: list[Any] = []
    variants = [Variant("clean", bound(case, compiled))]
    torch.cuda.synchronize()
    expected = case.out.clone()
    facts: dict[str, Any] = {"clean": {"registers": compiled[0].n_regs, "spills": compiled[0].n_spills}}
    for name in builds:
        own: list[Any] = []
        capture = TritonCapture(BUILDS[name])
        capture.start()
        case.out.zero_()
        run = partial(bound, case, own)
        ways = {f"waits, {what}": partial(kept_in, state) for state, what in STATES.items()}
        ways |= {f"waits, {what}": partial(without, parts) for what, parts in LEFT_OUT.items()}
        ways |= {
            "waits, unsettled": unsettled,
            "waits, arithmetic in place": partial(kept_in, State.REGISTERS, hoists=False),
        }
        launch = ways[name](run) if name in ways else run()
        if "off" in name and capture._gpu is not None:
            capture._gpu.arena.switch_off(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        facts[name] = {
            "registers": own[0].n_regs,
            "spills": own[0].n_spills,
            "identical": bool(torch.equal(expected.view(torch.int16), case.out.view(torch.int16))),
            "notes": capture.notes,
        }
        capture.put_back()
        variants.append(Variant(name, launch, capture))
    return variants, facts


def chunks_taken(capture: TritonCapture) -> int:
    """Chunks that launches have taken since the cursors were set back: none if they are not recorded."""
    memory = capture._gpu
    assert memory is not None
    memory.enter()
    words = layout.CURSOR_COUNT * layout.CURSOR_STRIDE // 4
    stream = torch.cuda.current_stream().cuda_stream
    cursors = driver.copy_from_device(memory.arena.address + layout.CONTROL_CURSORS, (words,), "<u4", stream)
    begun = cursors[:: layout.CURSOR_STRIDE // 4] - np.arange(layout.CURSOR_COUNT, dtype=np.uint32)
    return int(begun.sum()) // layout.CURSOR_COUNT


def timed(variant: Variant) -> float:
    """ns of one launch, the mean of a batch, which is submitted while the GPU pauses: no time of the host is in it."""
    for _ in range(TRIES):
        variant.clear()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PAUSE_CYCLES)
        begin.record()
        for _ in range(LAUNCHES):
            variant.launch()
        end.record()
        submitted_late = begin.query()
        end.synchronize()
        if variant.capture is not None and (chunks_taken(variant.capture) > 0) == ("off" in variant.name):
            raise RuntimeError(f"{variant.name}: {chunks_taken(variant.capture)} chunks were taken")
        if not submitted_late:
            return float(begin.elapsed_time(end)) * 1e6 / LAUNCHES
    raise RuntimeError(f"{variant.name}: in {TRIES} batches the pause was over before they were submitted")


def measure(variants: list[Variant], rounds: int) -> dict[str, list[float]]:
    order = random.Random(SEED)
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for variant in variants:
        timed(variant)
    for _ in range(rounds):
        for variant in order.sample(variants, len(variants)):
            times[variant.name].append(timed(variant))
    return times


def ratios(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    out = {}
    for name, own in times.items():
        paired = np.array(own) / np.array(times["clean"])
        out[name] = {f"p{q}": float(np.percentile(paired, q)) for q in (10, 50, 90)}
    return out


def recorded(case: Case, folder: Path | None) -> dict[str, Any]:
    """A trace of two launches, and what it says of itself."""
    with TritonCapture(PythonOptions(selection=Selection("all"))) as capture:
        for _ in range(2):
            case.launch()
    recording = capture.recording()
    assert recording is not None
    trace = Trace.from_recording(recording)
    if folder is not None:
        trace.save(folder / f"{case.name.replace(' ', '_')}.wlens")
    spans = trace.spans.group_by("site").len().sort("site")
    return {
        "spans": len(trace.spans),
        "launches": len(trace.launches),
        "problems": trace.problems.group_by("kind").len().to_dicts(),
        "texts": trace.problems["text"].unique().to_list()[:5] if "text" in trace.problems.columns else [],
        "events_by_site": dict(zip(spans["site"].to_list(), spans["len"].to_list(), strict=True)),
        "sites": [site["name"] for site in trace.manifest["site_sets"][0]["sites"]],
        "lost_events": [launch["lost_events"] for launch in trace.manifest["launches"]],
    }


def nvidia_smi() -> dict[str, str]:
    names = ["name", "driver_version", "clocks.sm", "clocks.mem", "power.limit", "temperature.gpu"]
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(names, (part.strip() for part in done.stdout.splitlines()[0].split(",")), strict=True))


def one(name: str, builds: Sequence[str], rounds: int, traces: Path | None) -> dict[str, Any]:
    torch.manual_seed(SEED)
    case = CASES[name]()
    out: dict[str, Any] = {"case": case.name}
    try:
        variants, out["builds"] = prepare(case, builds)
        times = measure(variants, rounds)
        out |= {"times_ns": times, "ratio_to_clean": ratios(times)}
        del variants
        out["trace"] = recorded(case, traces)
    except Exception as error:
        traceback.print_exc()
        out["failed"] = f"{type(error).__name__}: {error}"
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument(
        "--builds", default=";".join(BUILDS), help="those beside the clean one, semicolons between them"
    )
    parser.add_argument("--traces", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/triton_marks.py",
        "device": nvidia_smi(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "launches_a_sample": LAUNCHES,
        "cases": [],
    }
    for name in arguments.only.split(","):
        own = one(name, arguments.builds.split(";"), arguments.rounds, arguments.traces)
        result["cases"].append(own)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(own["case"], own.get("failed", ""), flush=True)
        for build, ratio in own.get("ratio_to_clean", {}).items():
            clean = np.median(own["times_ns"][build]) / 1e3
            print(f"  {build:18} {clean:8.1f} us {ratio['p50']:.3f} ({ratio['p10']:.3f} to {ratio['p90']:.3f})")
        print("  builds", json.dumps(own.get("builds")))
        print("  trace", json.dumps(own.get("trace"))[:3000], flush=True)


if __name__ == "__main__":
    main()
