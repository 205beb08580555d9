"""The others: RMSNorm of torch, Liger-Kernel, QuACK and FlashInfer, and a device copy as the ceiling.

In: what is installed. Out: functions of (x, weight, y), with their versions and what they write besides y; for those
that are not there, the reason. Each is called as its own documentation says.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from timing import Call

EPS = 1e-6
COPY = "copy"


def _copy() -> Call:
    return lambda x, _weight, y: y.copy_(x)


def _torch() -> Call:
    return lambda x, weight, _y: torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, EPS)


def _liger() -> Call:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    # offset 0, casting mode "llama" and no row mode: the defaults of LigerRMSNorm.
    return lambda x, weight, _y: rms_norm_forward(x, weight, EPS, 0.0, "llama", None)[0]


def _quack() -> Call:
    from quack.rmsnorm import rmsnorm_fwd

    return lambda x, weight, _y: rmsnorm_fwd(x, weight, eps=EPS)[0]


def _flashinfer() -> Call:
    from flashinfer.norm import rmsnorm

    return lambda x, weight, y: rmsnorm(x, weight, EPS, out=y)


PEERS: dict[str, tuple[str, Callable[[], Call], str]] = {
    "torch": ("torch", _torch, "y and rstd (float32, one a row)"),
    "Liger-Kernel": ("liger-kernel", _liger, "y and rstd (float32, one a row)"),
    "QuACK": ("quack-kernels", _quack, "y"),
    "FlashInfer": ("flashinfer-python", _flashinfer, "y"),
    COPY: ("torch", _copy, "y, a copy of x"),
}
"""Name -> distribution, maker, what it writes."""


def load() -> tuple[dict[str, Call], dict[str, dict[str, Any]]]:
    """The peers that work here, each tried once; and for every peer version and writes, or why it is left out."""
    x = torch.randn(4, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Call] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name, (distribution, make, writes) in PEERS.items():
        try:
            found = version(distribution)
            call = make()
            with torch.no_grad():
                y = call(x, weight, torch.empty_like(x))
            torch.cuda.synchronize()
            expected = x if name == COPY else torch.nn.functional.rms_norm(x.float(), (1024,), weight.float(), EPS)
            torch.testing.assert_close(y.float(), expected.float(), rtol=2e-2, atol=2e-2)
        except PackageNotFoundError:
            facts[name] = {"left_out": f"{distribution} is not installed"}
        except Exception as error:  # a peer that fails is reported, it does not end the benchmark
            facts[name] = {"left_out": f"{type(error).__name__}: {error}"[:400]}
        else:
            calls[name] = call
            facts[name] = {"version": found, "writes": writes}
    return calls, facts
