"""What the audit costs, and what it finds in the demo's kernel, on four architectures. No GPU.

In: NVRTC and nvdisasm. Out: benchmarks/results/audit.json: seconds are the best of ROUNDS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from machine import described

from warplens.audit import audit, pick_section, read_sass
from warplens.capture.audited import LINE_INFO, disassemble, ptx_lines, texts_of
from warplens.capture.compile import Compiled, compile_cubin
from warplens.capture.modules import read_site_sets

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
ROUNDS = 5
SOURCE = (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8")
TRACED, CLEAN = "rmsnorm_fwd<__nv_bfloat16, true>", "rmsnorm_fwd<__nv_bfloat16, false>"
RESULT = Path(__file__).parent / "results" / "audit.json"


def best(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest of ROUNDS calls, and what it returned."""
    seconds, value = float("inf"), None
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        value = call()
        seconds = min(seconds, time.perf_counter() - begin)
    return round(seconds, 3), value


def compiled(arch: str, name: str, *options: str) -> Compiled:
    return compile_cubin(SOURCE, [name], arch=arch, options=["-DWARPLENS_1D", *options], filename="rmsnorm.cu")


def measured(arch: str) -> dict[str, Any]:
    plain_s, plain = best(lambda: compiled(arch, TRACED))
    lines_s, traced = best(lambda: compiled(arch, TRACED, LINE_INFO))
    clean = compiled(arch, CLEAN, LINE_INFO)
    nvdisasm_s, text = best(lambda: disassemble(traced.cubin))
    other = pick_section(read_sass(disassemble(clean.cubin)), clean.names[CLEAN])
    sites = read_site_sets(traced.cubin)[0]["sites"]

    def run() -> Any:
        section = pick_section(read_sass(text), traced.names[TRACED])
        return audit(section, sites, texts_of({"rmsnorm.cu": SOURCE}), ptx=ptx_lines(traced.cubin), clean=other)

    audit_s, found = best(run)
    rows = [dict(zip(found.columns, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    return {
        "compile_s": plain_s,
        "compile_with_lines_s": lines_s,
        "cubin_bytes": len(plain.cubin),
        "cubin_with_lines_bytes": len(traced.cubin),
        "nvdisasm_s": nvdisasm_s,
        "audit_s": audit_s,
        "facts": found.facts,
        "rows": rows,
    }


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    head = described("python benchmarks/audit.py", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy")
    load = os.getloadavg()[0]
    architectures = {arch: measured(arch) for arch in ARCHITECTURES}
    loads = [round(load, 2), round(os.getloadavg()[0], 2)]
    result = {**head, "load_before_and_after": loads, "rounds": ROUNDS, "architectures": architectures}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {RESULT}\n")


if __name__ == "__main__":
    main()
