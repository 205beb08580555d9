"""PTX of NVRTC becomes machine code, with marks and without, by each assembler that there is."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from typing import Any

import pytest

from warplens.capture import assemble as assembling
from warplens.capture.assemble import Wish, assemble
from warplens.capture.chosen import Built, choose
from warplens.capture.modules import read_site_sets, registers_and_frame
from warplens.errors import PtxError
from warplens.instrument import Selection

pytestmark = pytest.mark.compile
PTX = gzip.decompress((Path(__file__).parents[1] / "ptx" / "nvrtc_sm_90a.ptx.gz").read_bytes()).decode()


def nvjitlink_is_missing() -> bool:
    try:
        importlib.import_module("cuda.bindings.nvjitlink").version()
    except Exception:  # there are many ways in which a library is not found
        return True
    return False


NVJITLINK = pytest.mark.skipif(nvjitlink_is_missing(), reason="needs nvJitLink: pip install nvidia-nvjitlink")
WAYS = [pytest.param("_by_nvjitlink", marks=NVJITLINK), "_by_ptxas"]


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One assembler alone."""

    def missing(*_: Any) -> Any:
        raise PtxError("not asked")

    for name in {"_by_nvjitlink", "_by_ptxas", "_by_driver"} - {request.param}:
        monkeypatch.setattr(assembling, name, missing)
    return str(request.param)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_kernel_keeps_its_sites_and_its_log_tells_of_it(way: str) -> None:
    assert way
    made: dict[str, bytes] = {}

    def log_of(text: str) -> str:
        made[text], log = assemble(text)
        return log

    chosen = choose(PTX, Selection(), log_of)
    assert chosen.text is not None
    names = [own.site_set["name"] for own in chosen.kernels if own.site_set]
    assert names
    assert [own["name"] for own in read_site_sets(made[chosen.text])] == sorted(names)
    assert set(chosen.clean.registers) >= {own.name for own in chosen.kernels}
    assert max(chosen.clean.registers.values()) == registers_and_frame(made[PTX])[0]


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_what_the_compiler_was_told_for_ptxas_is_obeyed(way: str) -> None:
    assert way
    log = assemble(PTX, Wish.of(("-std=c++17", "--maxrregcount=24", "-Xptxas=-O1")))[1]
    assert max(Built.of(log).registers.values()) <= 24


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_what_is_no_ptx_for_a_gpu_is_refused_with_what_each_assembler_says(way: str) -> None:
    with pytest.raises(PtxError, match=r"nothing here turns PTX into machine code for sm_90a: .*not asked") as refused:
        assemble(PTX.replace("ld.param", "ld.parameter"))
    assert ("nvJitLink: not asked" in str(refused.value)) == (way != "_by_nvjitlink")
    with pytest.raises(PtxError, match=r"no \.target with a GPU"):
        assemble("no PTX")
