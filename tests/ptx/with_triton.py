"""Compiles the corpus's Triton kernels with the Triton that is imported, without a GPU: one file of PTX each.

In: a folder. Out: `<kernel>_<arch>.ptx` in it. Run by make.py.
"""

import sys
from pathlib import Path

import gluon_kernels
import triton_kernels as kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile
from triton.experimental.gluon._runtime import GluonASTSource

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
ROW, COPY = {"flag_ptr": "*i32", "out_ptr": "*i32"}, {"x_ptr": "*fp32", "y_ptr": "*fp32", "steps": "i32"}
# name: kernel, types, constants, options, the least architecture
KERNELS = {
    "matmul": (kernels.matmul, MATMUL, TILES, {"num_warps": 8, "num_stages": 3}, 80),
    "layer_norm": (kernels.layer_norm, NORM, {"BLOCK": 4096}, {"num_warps": 8}, 80),
    "attention": (kernels.attention, ATTENTION, {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD": 64}, {"num_stages": 3}, 80),
    "spin": (kernels.spin, ROW, {"BLOCK": 128}, {}, 80),
    "tma": (kernels.matmul_tma, TMA, TILES | {"PROGRAMS": 132, "SPECIALIZED": False}, {"num_stages": 3}, 90),
    "specialized": (kernels.matmul_tma, TMA, TILES | {"PROGRAMS": 132, "SPECIALIZED": True}, {"num_stages": 3}, 100),
    "gluon": (gluon_kernels.copy, COPY, {"BLOCK": 1024}, {}, 80),
}


def ptx(name: str, arch: int) -> str:
    kernel, types, constants, options, _ = KERNELS[name]
    order = kernel.arg_names
    signature = {own: types.get(own, "constexpr") for own in order}
    values = {(order.index(own),): value for own, value in constants.items()}
    aligned = [own for own, kind in types.items() if kind.startswith("*") or kind == "i32"]
    attributes = {(order.index(own),): [["tt.divisibility", 16]] for own in aligned if own not in ("rows", "columns")}
    source = (GluonASTSource if name == "gluon" else ASTSource)(kernel, signature, values, attributes)
    return str(triton_compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"])


def main() -> None:
    for arch in (80, 90, 100):
        for name, (*_, least) in KERNELS.items():
            if arch < least:
                continue
            try:
                text = ptx(name, arch)
            except RuntimeError as error:  # Triton 3.6 cannot specialize this matmul
                sys.stdout.write(f"{name} for {arch}: {error}\n")
                continue
            Path(sys.argv[1], f"{name}_{arch}.ptx").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
