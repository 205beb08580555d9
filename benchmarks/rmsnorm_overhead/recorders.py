"""Source text of the kernels compared: the demo's RMSNorm, with one recorder or another.

In: the demo's rmsnorm.cu and the recorders beside this file. Out: CUDA C++ text and name expressions.
Every variant is made from the same kernel text, so that only the recorder differs. Touches no GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).parent
SHARED = "  __shared__ float partial[kMaxWarps];\n  __shared__ float total;\n"
MARKS = 9  # eight phases and the end
BARE = {
    "bare: kept in lanes": (1, 0, 0, ""),
    "bare: kept in shared memory": (2, 0, 0, ""),
    "bare: ... 32 bytes a warp written": (2, 32, 0, ""),
    "bare: ... 64 bytes a warp written": (2, 64, 0, ""),
    "bare: ... 32 bytes a warp, by the block's last one": (2, 32, 1, ""),
    "bare: two bodies, one block in eight": (2, 64, 0, "blockIdx.x % 8u == 0"),
    "bare: two bodies, a parameter says none": (2, 64, 0, "reinterpret_cast<unsigned long long>(trace) % 8u != 0"),
    "bare: two bodies, constant memory says none": (2, 64, 0, "bare_flag != 0"),
}
"""What recording costs at least: where a clock is kept (bare.cuh), bytes a warp, whether the block's last warp writes,
and which blocks run the body with marks, where another has none."""
RIVALS = {"document": "document.cuh", "flashinfer": "flashinfer.cuh", "warpscope": "warpscope_marks.cuh"}
_STORES = tuple(
    ("kept.cuh", store, f"if (word == 0x12345678u) {store}")
    for store in ("store_word(address, select(in_record", "store_word(address, word);")
)
_ASK = (
    "packed.cuh",
    "if (chosen.recorded && lane == 0) kept.index = ask_for_chunk(kept.sequence);",
    "if (lane == 0) kept.index = blockIdx.x * 20u + threadIdx.x / 32u;",
)
_END = ("packed.cuh", "    choice_.end_block();", "    if (kept_.time != 0x12345678u) return;")
_BARRIER = ("packed.cuh", "if (after_wait) settle();\n    if (is_counted())", "if (is_counted())")
_BOUNDS = ("kept.cuh", "(!kKeepNewest && index < shared_chunks() ? 0u : 1u)", "(kKeepNewest ? 1u : 0u)")
_LANES = ("kept.cuh", "u32 odd = (active ^ kFullMask) | ", "u32 odd = ")
_REACH = ("kept.cuh", "near ? kept.index : kNone", "kept.index")
_LOSSES = tuple(
    ("arena.cuh", f"  add_to_counter(kKeepNewest ? beside + layout::kCursorLost{what};", "")
    for what in (
        "Events : control + layout::kControlLostEvents, events)",
        "Chunks : control + layout::kControlLostChunks, 1u)",
    )
)
_ANCHORS = (
    ("device.cuh", "mov.u32 t, %%globaltimer_lo; ", "mov.u32 t, 0; "),
    ("packed.cuh", "    if (linear_warp() == 0) block_.globaltimer = read_globaltimer();\n", ""),
    ("packed.cuh", "  if (linear_warp() == 0) block.sm = read_smid();\n  const Chosen chosen", "  const Chosen chosen"),
    ("kept.cuh", "chunk_address(index), word, kLast && warp == 0, block", "chunk_address(index), word, false, block"),
)
ABLATIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "without the store": _STORES,
    "clock not held behind barriers": (_BARRIER,),
    "marks alone": (_ASK, _END),
    "without bounds": (_BOUNDS,),
    "without the loss count": _LOSSES,
    "without the check for missing lanes": (_LANES,),
    "without the check of the clock's reach": (_REACH,),
    "without block anchors": _ANCHORS,
    "without any of these": (_BOUNDS, *_LOSSES, _LANES, _REACH, *_ANCHORS),
}
"""What can be left out of the recorder, as (header, text, replacement): the difference is what it costs."""


def marked_source() -> str:
    """The kernel with warplens marks, as it ships."""
    return (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8")


def paid_source() -> str:
    """The kernel with a payload at each of its marks."""
    return re.sub(r"(rec\.(?:phase|wait)\(rmsnorm::\w+)\)", r"\1, blockIdx.x)", marked_source())


def split_source() -> str:
    """The kernel with its body twice: with marks for the blocks that are recorded, without for the others."""
    source = marked_source()
    recorder = "  warplens::Recorder<rmsnorm, kTrace> rec;\n"
    head = f"{SHARED}  warplens::split<rmsnorm, kTrace>([&](auto& rec) {{\n"
    for old, new in ((SHARED, ""), (recorder, head)):
        if source.count(old) != 1:
            raise ValueError(f"rmsnorm.cu holds {old!r} {source.count(old)} times; expected once")
        source = source.replace(old, new)
    return source.rstrip().removesuffix("}") + "  });\n}\n"


def rival_source(rival: str) -> str:
    """The same kernel with another recorder in place of warplens'; it takes one more argument, the trace buffer."""
    return _with_recorder((HERE / RIVALS[rival]).read_text(encoding="utf-8"), "Recorder rec(trace);")


def bare_source(name: str) -> str:
    """The same kernel with marks that have nothing but what they cost at least."""
    keep, words, by_block, when = BARE[name]
    defines = f"#define BARE_KEEP {keep}\n#define BARE_BYTES {words}u\n#define BARE_BY_BLOCK {by_block}\n"
    text = defines + (HERE / "bare.cuh").read_text(encoding="utf-8")
    if not when:
        return _with_recorder(text, "Recorder rec(trace);")
    source = _with_recorder(text, "", move_shared="  const auto body = [&](auto& rec) {\n")
    choice = f"  if ({when}) {{\n    Recorder rec(trace);\n    body(rec);\n"
    return (
        source.rstrip().removesuffix("}")
        + f"  }};\n{choice}  }} else {{\n    NoRecorder rec;\n    body(rec);\n  }}\n}}\n"
    )


def _with_recorder(text: str, declared: str, *, move_shared: str = "") -> str:
    """rmsnorm.cu with `text` in place of warplens' header, and what is `declared` in place of the recorder.

    `move_shared`: what stands there, behind the shared variables, which then come first.
    """
    source = marked_source()
    replacements = (
        ("#include <warplens/warplens.cuh>", text),
        ("WARPLENS_SITES_FROM(", "SITES_FROM("),
        *(((SHARED, ""),) if move_shared else ()),
        ("  warplens::Recorder<rmsnorm, kTrace> rec;", f"{SHARED}{move_shared}" if move_shared else f"  {declared}"),
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
