"""A kernel that hangs, recorded: which warp waits where, and a file to look at afterwards.

In: a GPU machine with an installed warplens. Out: where each warp last was, and stopped.wlens in the current folder.
`--tiles 16` does not hang.

    python examples/deadlock/deadlock.py
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

import warplens
from warplens.errors import StoppedError

WARPS = 4


def main() -> None:
    """Record; end with exit code 1 when the kernel was stopped."""
    parser = argparse.ArgumentParser(description="Record a kernel that hangs.")
    parser.add_argument("--tiles", type=int, default=15, help="tiles to add; a multiple of 4 does not hang")
    parser.add_argument("-o", "--output", type=Path, default=Path("stopped.wlens"))
    given = parser.parse_args()
    kernel = warplens.Kernel.from_file(Path(__file__).with_name("add_tiles.cu"), "add_tiles<true>")
    x = np.arange(given.tiles * 32, dtype=np.float32)
    y = np.zeros(32, np.float32)
    try:
        trace = kernel.record(1, WARPS * 32, x, y, given.tiles, policy="live", timeout_s=2)
    except StoppedError as error:
        print(error)
        error.trace.save(given.output)
        print(f"wrote {given.output}")
        sys.stdout.flush()
        os._exit(1)  # no exit handler of CUDA gets the chance to wait for a kernel that never ends
    assert np.array_equal(y, x.reshape(given.tiles, 32).sum(axis=0))
    trace.save(given.output)
    print(f"the kernel ended\nwrote {given.output}")


if __name__ == "__main__":
    main()
