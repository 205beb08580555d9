"""What zlib's levels make of records: bytes and seconds, of the recordings of Triton programs in recordings/.

In: chunks in the order in which a file has them. Out: JSON, of each file bytes and the least seconds by level.

    python benchmarks/pack.py -o benchmarks/results/pack.json
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from pathlib import Path

from machine import described

from warplens.trace.file import read_file

RECORDINGS = Path(__file__).parents[1] / "recordings"
LEVELS, ROUNDS = range(1, 10), 20


def packed(records: list[bytes], level: int) -> dict[str, float]:
    """Bytes of all members, and seconds."""
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        size = sum(len(zlib.compress(own, level)) for own in records)
        seconds.append(time.perf_counter() - begin)
    return {"bytes": size, "seconds": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    result = described("python benchmarks/pack.py", "numpy") | {"zlib": zlib.ZLIB_RUNTIME_VERSION, "rounds": ROUNDS}
    files = {}
    for path in sorted(RECORDINGS.glob("triton_*.wlens")):
        records = [chunks.tobytes() for chunks in read_file(path).records.values()]
        levels = {level: packed(records, level) for level in LEVELS}
        files[path.name] = {"records_bytes": sum(map(len, records)), "levels": levels}
        four, six = levels[4], levels[6]
        more, faster = four["bytes"] / six["bytes"] - 1, six["seconds"] / four["seconds"]
        print(f"{path.name:44} level 4 beside 6: {more:+.1%} bytes, {faster:.2f} times as fast", flush=True)
    arguments.output.write_text(json.dumps(result | {"files": files}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
