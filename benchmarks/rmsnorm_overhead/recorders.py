"""Source text of the kernels compared: the demo's RMSNorm, with one recorder or another.

In: the demo's rmsnorm.cu and the recorders beside this file. Out: CUDA C++ text and name expressions.
Every variant is made from the same kernel text, so that only the recorder differs. Touches no GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).parent
MARKS = 9  # eight phases and the end
RIVALS = {"document": "document.cuh", "flashinfer": "flashinfer.cuh", "warpscope": "warpscope_marks.cuh"}
_STORES = tuple(
    ("packed.cuh", store, f"if (word == 0x12345678u) {store}")
    for store in ("store_word(address, select(in_record", "store_word(address, word);")
)
_ASK = (
    "packed.cuh",
    "if (chosen.recorded && lane == 0) kept.index = ask_for_chunk(kept.sequence);",
    "if (lane == 0) kept.index = blockIdx.x * 20u + threadIdx.x / 32u;",
)
_END = ("packed.cuh", "    choice_.end_block();", "    if (kept_.time != 0x12345678u) return;")
_BARRIER = ("packed.cuh", "if (after_wait) settle();\n    if (is_counted())", "if (is_counted())")
ABLATIONS = {
    "without the store": _STORES,
    "clock not held behind barriers": (_BARRIER,),
    "marks alone": (_ASK, _END),
}
"""What can be left out of the recorder, as (header, text, replacement): the difference is what it costs."""


def marked_source() -> str:
    """The kernel with warplens marks, as it ships."""
    return (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8")


def rival_source(rival: str) -> str:
    """The same kernel with another recorder in place of warplens'; it takes one more argument, the trace buffer."""
    source = marked_source()
    replacements = (
        ("#include <warplens/warplens.cuh>", (HERE / RIVALS[rival]).read_text(encoding="utf-8")),
        ("WARPLENS_SITES_FROM(", "SITES_FROM("),
        ("warplens::Recorder<rmsnorm, kTrace> rec;", "Recorder rec(trace);"),
        ("float eps) {", "float eps, unsigned long long* trace) {"),
    )
    for old, new in replacements:
        if source.count(old) != 1:
            raise ValueError(f"rmsnorm.cu holds {old!r} {source.count(old)} times; expected once")
        source = source.replace(old, new)
    return source


def is_installed(rival: str) -> bool:
    """Whether the package is there that a rival's code comes from: warpscope's (`pip install warpscope`)."""
    return rival != "warpscope" or importlib.util.find_spec("warpscope") is not None


def rival_options(rival: str) -> tuple[str, ...]:
    """Options for NVRTC beside the common ones: where the header of an installed rival lies."""
    if rival != "warpscope":
        return ()
    header_folder = importlib.import_module("warpscope").include_dir()
    return f"--include-path={header_folder}", f"--include-path={HERE / 'nvrtc'}"


def name_expression(*, traced: bool) -> str:
    """Name of the bfloat16 kernel; the rivals are always `traced`."""
    return f"rmsnorm_fwd<__nv_bfloat16, {'true' if traced else 'false'}>"


def trace_bytes(rival: str, rows: int, warps: int) -> int:
    """Bytes of trace that a rival writes in one launch."""
    if rival == "document":
        return rows * (1 + warps * MARKS) * 16
    return (1 + rows * warps * MARKS) * 8
