"""CUDA code in the documentation compiles, with tracing on and off. Needs NVRTC, no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

KERNEL = """
template <bool kTrace> __global__ void kernel(unsigned value, float4 other) {{
  warplens::Recorder<{sites}, kTrace> rec;
{body}
}}
"""


def cuda_blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [re.sub(r"^  ", "", block, flags=re.MULTILINE) if indent else block for indent, block in fenced(text)]


def fenced(text: str) -> list[tuple[str, str]]:
    """(indent, content) of each block of CUDA code."""
    return re.findall(r"^( *)```cuda\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def compiles(source: str, kernel: str) -> bool:
    from warplens.capture.compile import compile_cubin

    names = [f"{kernel}<{on}>" for on in ("true", "false")]
    return len(compile_cubin(source, names, arch="sm_90a").names) == 2


def test_the_kernel_of_the_tutorial_compiles(checkout: Path) -> None:
    blocks = cuda_blocks(checkout / "docs/tutorials/mark-a-kernel.md")
    assert compiles(blocks[0], "row_sum_kernel")


def test_the_long_form_of_the_tutorial_fits_its_kernel(checkout: Path) -> None:
    kernel, sites = cuda_blocks(checkout / "docs/tutorials/mark-a-kernel.md")
    with_resource, short_forms = re.subn(r"^WARPLENS_SITES\(.*\n", lambda _: sites, kernel, flags=re.MULTILINE)
    with_wait = with_resource.replace("rec.phase(row_sum::barrier)", "rec.wait(row_sum::barrier)")
    assert short_forms == 1
    assert with_wait != with_resource
    assert compiles(with_wait, "row_sum_kernel")


def test_declarations_and_verbs_of_the_device_page_compile(checkout: Path) -> None:
    page = checkout / "docs/reference/device.md"
    sites = next(block for block in cuda_blocks(page) if "WARPLENS_SITES_FROM" in block)
    cells = re.findall(r"^\| (`(?:Token|rec).*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    verbs = [verb for cell in cells for verb in re.findall(r"`(.+?)`", cell) if "(" in verb and "rec." in verb]
    assert len(verbs) >= 15
    body = "\n".join(f"  {verb};" for verb in verbs)
    body = body.replace("Token t", "warplens::Token t").replace("(site", "(gemm::multiply")
    body = (
        body.replace("payload", "value").replace("join(id)", "join(value)").replace("iteration(i)", "iteration(value)")
    )
    assert compiles("#include <warplens/warplens.cuh>\n" + sites + KERNEL.format(sites="gemm", body=body), "kernel")


def test_the_example_that_hangs_compiles(checkout: Path) -> None:
    assert compiles((checkout / "examples/deadlock/add_tiles.cu").read_text(encoding="utf-8"), "add_tiles")


def test_the_kernel_of_the_readme_compiles(checkout: Path) -> None:
    (block,) = cuda_blocks(checkout / "README.md")
    assert compiles(block, "rmsnorm_fwd")
