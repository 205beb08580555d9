"""What torch.compile and CuPy compile, as they come: each kernel's PTX, for make.py. Needs a GPU, torch and CuPy.

    python tests/ptx/with_gpu.py FOLDER

Out: `inductor_<kernel>.ptx` and `cupy_<kernel>.ptx` for this GPU. torch.compile's are read from Triton's cache, which
is a new one; CuPy's from what NVRTC gave it, with lines asked for as `warplens record` asks for them.
"""

import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

OUT = Path(sys.argv[1])


def by_inductor() -> None:
    """A gated MLP and its gradient, a layer norm, a long softmax, a matmul and an attention of Inductor's templates."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def gated_mlp(x, gate, up, down):
        return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down

    def norm(x, weight):
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:], weight))

    def softmax(x):
        return torch.softmax(x.float(), -1).to(x.dtype)

    def causal(score, _batch, _head, query, key):
        return torch.where(query >= key, score, -1e9)

    def matrix(*shape, grad=False):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)

    x, gate, up, down = (matrix(*shape, grad=True) for shape in ((512, 256), (256, 1024), (256, 1024), (1024, 256)))
    torch.compile(gated_mlp)(x, gate, up, down).sum().backward()
    torch.compile(norm)(matrix(512, 1000), matrix(1000))
    torch.compile(softmax)(matrix(64, 200_000))
    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
    torch.compile(torch.matmul, options=options)(matrix(1024, 1024), matrix(1024, 1024))
    heads = [matrix(2, 4, 512, 64) for _ in range(3)]
    torch.compile(flex_attention)(*heads, score_mod=causal)
    torch.cuda.synchronize()


def by_cupy() -> None:
    """Raw kernels, an elementwise one and a reduction."""
    import cupy
    from cupy.cuda import compiler
    from cupy_backends.cuda.libs import nvrtc

    class Program(compiler._NVRTCProgram):
        def compile(self, options=(), log_stream=None):
            done = super().compile((*options, "-lineinfo"), log_stream)
            text = bytes(nvrtc.getPTX(self.ptr)).decode().rstrip("\0")
            if first := re.search(r"\.entry\s+(\w+)", text):
                OUT.joinpath(f"cupy_{first[1]}.ptx").write_text(text, encoding="utf-8")
            return done

    compiler._NVRTCProgram = Program
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "cupy" / "tiles.py"), run_name="__main__")
    x = cupy.arange(100_000, dtype=cupy.float32)
    cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * x - y", "squares")(x, x)
    cupy.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")(x)
    cupy.cuda.Device().synchronize()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {
            "TRITON_CACHE_DIR": cache,
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "CUPY_CACHE_DIR": f"{cache}/cupy",
            "CUPY_COMPILE_WITH_PTX": "1",
        }
        by_inductor()
        for path in sorted(Path(cache).rglob("*.ptx")):
            OUT.joinpath(f"inductor_{path.stem}.ptx").write_bytes(path.read_bytes())
        by_cupy()
    for path in sorted(OUT.glob("*.ptx")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
