"""How fast records decode, how small the file is, and how long `warplens summary` takes: results/decode.json.

Synthetic recordings of 10^6 events, as the reference encoder of the tests makes them: the phases of RMSNorm, a kernel
with nested ranges, payloads and tokens, and one whose warps all recorded sequences of their own.
`decode_s` is `decode.decode`; `all_columns_s` also writes every column of the spans, as `Trace.spans` asks it to.
Run from the checkout, on a quiet machine: `python benchmarks/decode.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import described

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.synthesis import FakeRecording, fake_recording, nested_recording  # noqa: E402
from warplens import decode  # noqa: E402
from warplens.decode.manifest import check  # noqa: E402
from warplens.layout import META_FLAGS_SHIFT, WORD_META, ChunkFlag  # noqa: E402
from warplens.trace import Trace  # noqa: E402
from warplens.trace.tables import ADDED, TABLES  # noqa: E402

ROUNDS = 20
SUMMARIES = 5
DECODED = [name for name in TABLES["spans"] if not name.startswith("corrected_") and name not in ADDED]
RESULTS = ROOT / "benchmarks" / "results" / "decode.json"


def irregular(recording: FakeRecording) -> FakeRecording:
    """The same recording with every third chunk gone: few warps are alike any more."""
    (member,) = recording.records
    chunks = recording.records[member]
    kept = np.random.default_rng(0).random(len(chunks)) > 1 / 3
    return FakeRecording(recording.manifest, {member: chunks[kept]}, {})


def marks(recording: FakeRecording, events: int) -> int:
    """Timestamps that arrived: records that are events, and the ends of warps."""
    return events + sum(
        int((c[:, WORD_META] >> META_FLAGS_SHIFT & ChunkFlag.LAST).sum()) for c in recording.records.values()
    )


def measure(name: str, recording: FakeRecording, folder: Path) -> dict[str, object]:
    manifest = check(recording.manifest)
    times, cpu, whole = [], [], []
    for _ in range(ROUNDS):
        begin, used = time.perf_counter(), time.process_time()
        decoded = decode.decode(manifest, recording.records)
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
        for column in DECODED:
            getattr(decoded.spans, column)
        whole.append(time.perf_counter() - begin)
    events = marks(recording, int(decoded.launches["events"].sum()))
    path = folder / f"{name}.wlens"
    begin = time.perf_counter()
    Trace.from_recording(recording).save(path)
    save_s = time.perf_counter() - begin
    return {
        "events": events,
        "spans": len(decoded.spans),
        "chunks": sum(len(chunks) for chunks in recording.records.values()),
        "decode_s": times,
        "decode_cpu_s": cpu,
        "all_columns_s": whole,
        "events_per_s": {
            "best": events / min(times),
            "median": events / statistics.median(times),
            "best_cpu": events / min(cpu),
            "all_columns_best": events / min(whole),
        },
        "decode_and_save_s": save_s,
        "file_bytes": path.stat().st_size,
        "file_bytes_per_event": path.stat().st_size / events,
        "summary_process_s": summary_s(path),
    }


def summary_s(path: Path) -> list[float]:
    """Wall time of whole `warplens summary` processes."""
    out = []
    for _ in range(SUMMARIES):
        begin = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "warplens", "summary", str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        out.append(time.perf_counter() - begin)
        if done.returncode not in (0, 4):
            raise RuntimeError(done.stderr.decode())
    return out


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    load = os.getloadavg()
    phases = fake_recording(blocks=5560, warps=20, phases=8, sms=132)
    nested = nested_recording(blocks=500, warps=20, iterations=10, distinct=64)
    with tempfile.TemporaryDirectory() as folder:
        results = {
            "phases": measure("phases", phases, Path(folder)),
            "nested": measure("nested", nested, Path(folder)),
            "irregular": measure("irregular", irregular(nested), Path(folder)),
        }
    facts = {
        **described("python benchmarks/decode.py", "numpy", "polars"),
        "load_average": {"begin": load, "end": os.getloadavg()},
        "rounds": ROUNDS,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({**facts, **results}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {RESULTS.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
