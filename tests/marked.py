"""Small marked kernels for tests on a GPU, and how they are recorded.

In: a body in CUDA C++. Out: source text, a Trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

import warplens
from warplens.trace import Trace

HEAD = "#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, a, b, c);\n"
LOOP = (
    HEAD
    + """template <bool T> __global__ void k(float* p, int n) {
  warplens::Recorder<s, T> r;
  for (int i = 0; i < n; ++i) {
    r.range_push(s::a, i);
    p[threadIdx.x] += 1;
    auto token = r.range_start(s::b);
    r.mark(s::c);
    r.range_end(token);
    r.range_pop();
  }
}"""
)
EVENTS_A_TURN = 5


def kernel(body: str, parameters: str = "float* p") -> str:
    """Source of a kernel `k<T>` with the sites a, b and c and the recorder `r`."""
    return f"{HEAD}template <bool T> __global__ void k({parameters}) {{ warplens::Recorder<s, T> r; {body} }}"


def record(source: str, grid: Any, block: Any, *args: Any, **options: Any) -> Trace:
    """Its trace; the first argument is 4096 floats."""
    options = {"rounds": 1, "warmup": 1, **options}
    return warplens.Kernel(source, "k<true>").record(grid, block, np.zeros(4096, np.float32), *args, **options)


def losses(trace: Trace) -> pl.DataFrame:
    """Problems that are more than a note."""
    return trace.problems.filter(pl.col("severity") != "note")
