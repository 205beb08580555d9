"""Recording on the GPU machine: compile, buffers, launches, clock pairs, clean and traced times.

In: CUDA C++ source and launch arguments. Out: `Recording` (plain data). Nothing here may import Polars or
matplotlib: this package runs inside of the traced process.
"""
