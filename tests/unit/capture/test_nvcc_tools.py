"""What `warplens nvcc` says of a build fits a terminal."""

from __future__ import annotations

from pathlib import Path

from warplens.capture.nvcc_tools import shortened, source_name


def test_a_mangled_name_of_a_thousand_characters_keeps_its_ends() -> None:
    name = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4" + "x" * 1000 + "_vvEEEEvNT_6ParamsE"
    line = shortened(f"gemm.cu (sm_90a): {name}: 46 sites")
    assert line.startswith("gemm.cu (sm_90a): _ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversal")
    assert line.endswith("_vvEEEEvNT_6ParamsE: 46 sites")
    assert len(line) < 120
    assert shortened("a.cu (sm_80): _Z4sumsPfi: 4 sites") == "a.cu (sm_80): _Z4sumsPfi: 4 sites"


def test_a_module_whose_lines_are_all_of_headers_has_the_name_of_its_source() -> None:
    ptx = '.target sm_90a\n.file 1 "/opt/cutlass/include/cute/tensor.hpp"\n'
    assert source_name(ptx, Path("/tmp/tmpxft_000056a2_00000000-6_gemm.ptx")) == "gemm.ptx (sm_90a)"
    assert source_name(ptx + '.file 2 "gemm/gemm.cu"\n', Path("x.ptx")) == "gemm.cu (sm_90a)"
