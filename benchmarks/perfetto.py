"""How fast a trace becomes a Perfetto file, and how large: results/perfetto.json.

The recording of RMSNorm (528 x 5120, an H200) as it is, and tiled to 10^6 spans (as many launches one after the other);
10^6 spans that nest, of the tests' reference encoder; and the tiled recording with a range over the second half of each
phase and the first of the next, which all cross.
`export_s` is `warplens.export` to a file in the temporary folder, from tables in memory; `cpu_s` is what the process
used of its CPUs for that (packing runs beside writing), which other programs on the machine change less; `levels` packs
the same bytes with each level of zlib.
Run from the checkout, on a quiet machine: `python benchmarks/perfetto.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from machine import described

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import warplens  # noqa: E402
from tests.synthesis import nested_recording  # noqa: E402
from tests.unit.render.fake import tiled  # noqa: E402
from warplens.render.export import GZIP_LEVEL, GZIP_LEVEL_OF_ARGUMENTS  # noqa: E402

ROUNDS = 7
LEVELS = (1, 2, 3, 4, 5, 6, 9)
RESULTS = ROOT / "benchmarks" / "results" / "perfetto.json"
RECORDING = ROOT / "recordings" / "rmsnorm_528x5120_h200.wlens"


def measure(trace: Any, folder: Path) -> dict[str, object]:
    spans = trace.spans.height
    result: dict[str, object] = {"spans": spans, "warps": trace.spans.select("launch", "block", "warp").n_unique()}
    for arguments in (False, True):
        for gzip in (False, True):
            name = f"{'with' if arguments else 'without'}_arguments_{'gzipped' if gzip else 'plain'}"
            times, cpu = [], []
            for _ in range(ROUNDS):
                begin, cpu_begin = time.perf_counter(), time.process_time()
                path = warplens.export(trace, folder / "a.pftrace", arguments=arguments, gzip=gzip)
                times.append(time.perf_counter() - begin)
                cpu.append(time.process_time() - cpu_begin)
            size = path.stat().st_size
            result[name] = {
                "export_s": times,
                "cpu_s": cpu,
                "spans_per_cpu_s": {"best": spans / min(cpu), "median": spans / statistics.median(cpu)},
                "spans_per_s": {"best": spans / min(times), "median": spans / statistics.median(times)},
                "bytes": size,
                "bytes_per_span": size / spans,
            }
    return result


def crossing(trace: Any) -> Any:
    """The trace with one more range a phase, from its middle to the middle of the next."""
    half = pl.col("start_ns") + pl.col("duration_ns") // 2
    ranges = trace.spans.with_columns(start_ns=half, sequence=pl.col("sequence") + 100)
    spans = pl.concat([trace.spans, ranges]).sort("launch", "block", "warp", "start_ns")
    return replace(trace, spans=spans.with_columns(sequence=pl.int_range(pl.len(), dtype=pl.UInt32)))


def levels(trace: Any, folder: Path) -> dict[str, object]:
    """Bytes a span and seconds of packing alone, by zlib's level."""
    out: dict[str, object] = {}
    for arguments in (False, True):
        path = warplens.export(trace, folder / "a.pftrace", arguments=arguments, gzip=False)
        data = path.read_bytes()
        for level in LEVELS:
            begin = time.perf_counter()
            packed = zlib.compress(data, level)
            seconds = time.perf_counter() - begin
            name = f"{'with' if arguments else 'without'}_arguments_level_{level}"
            out[name] = {"bytes_per_span": len(packed) / trace.spans.height, "pack_s": seconds}
    return out


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    load = os.getloadavg()
    recorded = warplens.open(RECORDING)
    nested = warplens.Trace.from_recording(nested_recording(blocks=834, warps=20, iterations=10, distinct=64))
    traces = {
        "rmsnorm": recorded,
        "rmsnorm_tiled": tiled(recorded, 12),
        "nested": nested,
        "crossing": crossing(tiled(recorded, 6)),
    }
    with tempfile.TemporaryDirectory() as folder:
        results = {name: measure(trace, Path(folder)) for name, trace in traces.items()}
        by_level = {f"levels_of_{name}": levels(traces[name], Path(folder)) for name in ("rmsnorm_tiled", "nested")}
    facts = {
        **described("python benchmarks/perfetto.py", "numpy", "polars", zlib=zlib.ZLIB_RUNTIME_VERSION),
        "load_average": {"begin": load, "end": os.getloadavg()},
        "rounds": ROUNDS,
    }
    facts |= {"recording": RECORDING.relative_to(ROOT).as_posix(), "gzip_level": GZIP_LEVEL}
    facts["gzip_level_of_arguments"] = GZIP_LEVEL_OF_ARGUMENTS
    text = json.dumps({**facts, **results, **by_level}, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {RESULTS.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
