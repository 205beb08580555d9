"""Compiles the corpus's Triton kernels with the Triton that is imported, without a GPU: one file of PTX each.

In: a folder. Out: `<kernel>_<arch>.ptx` in it. Run by make.py.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

try:
    import torch  # noqa: F401
except ImportError:  # the examples need it where they run alone
    sys.modules["torch"] = SimpleNamespace(Tensor=type("Tensor", (), {}))

import gluon_kernels
import marked_matmul
import specialized_matmul
import triton_kernels as kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from warplens.capture.triton import TritonCapture

BF16 = "*bf16"
TILES = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
MATMUL = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), BF16) | dict.fromkeys(
    ("rows", "columns", "depth", "stride_a", "stride_b", "stride_c"), "i32"
)
TMA = {f"{name}_desc": f"tensordesc<bf16[128, {width}]>" for name, width in (("a", 64), ("b", 64), ("c", 128))} | (
    dict.fromkeys(("rows", "columns", "depth"), "i32")
)
NORM = dict.fromkeys(("x_ptr", "y_ptr", "w_ptr", "b_ptr"), BF16) | {"width": "i32", "eps": "fp32"}
ATTENTION = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "o_ptr"), BF16) | {"length": "i32", "scale": "fp32"}
ALL = (80, 90, 100)
GLUON = ("gluon", "hopper")
ROW, COPY = {"flag_ptr": "*i32", "out_ptr": "*i32"}, {"x_ptr": "*fp32", "y_ptr": "*fp32", "steps": "i32"}
SHAPES = {"a_desc": [128, 64], "b_desc": [64, 128]}
HOPPER = {
    name: f"tensordesc<bf16{shape},{gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16)!r}>"
    for name, shape in SHAPES.items()
} | {"c_ptr": BF16, "depth": "i32", "columns": "i32"}
# name: kernel, types, constants, options, architectures
KERNELS = {
    "matmul": (kernels.matmul, MATMUL, TILES, {"num_warps": 8, "num_stages": 3}, ALL),
    "layer_norm": (kernels.layer_norm, NORM, {"BLOCK": 4096}, {"num_warps": 8}, ALL),
    "attention": (kernels.attention, ATTENTION, {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD": 64}, {"num_stages": 3}, ALL),
    "spin": (kernels.spin, ROW, {"BLOCK": 128}, {}, ALL),
    "tma": (kernels.matmul_tma, TMA, TILES | {"PROGRAMS": 132, "SPECIALIZED": False}, {"num_stages": 3}, (90, 100)),
    "specialized": (kernels.matmul_tma, TMA, TILES | {"PROGRAMS": 132, "SPECIALIZED": True}, {"num_stages": 3}, (100,)),
    "gluon": (gluon_kernels.copy, COPY, {"BLOCK": 1024}, {}, ALL),
    "marked": (marked_matmul.marked_matmul, MATMUL, TILES, {"num_warps": 8, "num_stages": 3}, (80, 90)),
    "hopper": (specialized_matmul.specialized_matmul, HOPPER, {"STAGES": 3, "num_warps": 8}, {"num_warps": 8}, (90,)),
}


def ptx(name: str, arch: int) -> str:
    kernel, types, constants, options, _ = KERNELS[name]
    order = kernel.arg_names
    signature = {own: types.get(own, "constexpr") for own in order}
    values = {(order.index(own),): value for own, value in constants.items()}
    aligned = [own for own, kind in types.items() if kind.startswith("*") or kind == "i32"]
    attributes = {(order.index(own),): [["tt.divisibility", 16]] for own in aligned if own not in ("rows", "columns")}
    source = (GluonASTSource if name in GLUON else ASTSource)(kernel, signature, values, attributes)
    return str(triton_compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"])


def main() -> None:
    for arch in (80, 90, 100):
        for name, (*_, archs) in KERNELS.items():
            if arch not in archs:
                continue
            try:
                if name == "marked":
                    with TritonCapture(quiet=True) as capture:
                        capture.door.hooks._of_options = False  # this compiles past what has the key
                        text = ptx(name, arch)
                else:
                    text = ptx(name, arch)
            except RuntimeError as error:  # Triton 3.6 cannot specialize this matmul
                sys.stdout.write(f"{name} for {arch}: {error}\n")
                continue
            Path(sys.argv[1], f"{name}_{arch}.ptx").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
