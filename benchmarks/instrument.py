"""How fast PTX is read, written and marked, and what marks add to ptxas' time.

In: the corpus (tests/ptx). Out: JSON with the fastest of several runs of each. Needs no GPU; with `--ptxas PROGRAM` the
assembler is timed too, on the clean and on the marked text.

    python benchmarks/instrument.py -o benchmarks/results/instrument.json --ptxas ptxas
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warplens.instrument import instrument
from warplens.instrument.read import read, splice

sys.path.insert(0, str(Path(__file__).parent))
from machine import described

CORPUS = Path(__file__).parents[1] / "tests" / "ptx"
RUNS = 7


def fastest_s(run: Callable[[], Any], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def assembler_s(ptxas: str, text: str, folder: Path) -> float:
    source = folder / "kernel.ptx"
    source.write_text(text, encoding="utf-8")
    target = re.search(r"\.target\s+(\w+)", text)
    assert target
    command = [ptxas, f"--gpu-name={target[1]}", str(source), "-o", str(folder / "kernel.cubin")]
    return fastest_s(lambda: subprocess.run(command, check=True, capture_output=True), 3)


def measured(text: str, ptxas: str | None, folder: Path) -> dict[str, Any]:
    found = instrument(text)
    own = {
        "bytes": len(text),
        "kernels": len(found.kernels),
        "sites": sum(len(kernel.site_set["sites"]) for kernel in found.kernels if kernel.site_set),
        "read_and_write_s": fastest_s(lambda: splice(read(text).text, [])),
        "instrument_s": fastest_s(lambda: instrument(text)),
    }
    if ptxas:
        own["ptxas_clean_s"] = assembler_s(ptxas, text, folder)
        own["ptxas_marked_s"] = assembler_s(ptxas, found.text, folder)
    return own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ptxas")
    arguments = parser.parse_args()
    result = described("python benchmarks/instrument.py --ptxas ptxas")
    with tempfile.TemporaryDirectory() as folder:
        files = {
            path.name.partition(".ptx")[0]: measured(
                gzip.decompress(path.read_bytes()).decode(), arguments.ptxas, Path(folder)
            )
            for path in sorted(CORPUS.glob("*.ptx.gz"))
        }
    size, spent = sum(own["bytes"] for own in files.values()), sum(own["read_and_write_s"] for own in files.values())
    result |= {
        "read_and_write_bytes_a_second": size / spent,
        "instrument_s_a_kernel_at_most": max(own["instrument_s"] / own["kernels"] for own in files.values()),
        "files": files,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"read and write {size / spent / 1e6:.1f} MB/s")
    print(f"marks: at most {result['instrument_s_a_kernel_at_most']:.3f} s a kernel")


if __name__ == "__main__":
    main()
