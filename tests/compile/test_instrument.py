"""Corpus kernels with marks, assembled for their targets: nothing spills, ptxas says nothing new, each site is a mark.

Needs the ptxas of the wheel nvidia-cuda-nvcc, of CUDA 13.4 or newer for the newest PTX; no GPU.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.machine_code import tool, yields
from warplens import layout
from warplens.capture.audited import audit_builds
from warplens.capture.modules import read_site_sets, registers_and_frame
from warplens.instrument import Instrumented, Selection, instrument
from warplens.instrument.asked import ALSO

pytestmark = pytest.mark.compile
FOLDER = Path(__file__).parents[1] / "ptx"
FULL = "triton_3.9.0_specialized_100"
"""It takes all 255 registers: there is room for marks only where their state is in shared memory."""
CORPUS = [path for path in sorted(FOLDER.glob("*.ptx.gz")) if not path.name.startswith(FULL)]


@dataclass
class Assembled:
    cubin: bytes
    warnings: set[str]
    log: str


def assembled(text: str, folder: Path, name: str) -> Assembled:
    source, out = folder / f"{name}.ptx", folder / f"{name}.cubin"
    source.write_text(text, encoding="utf-8")
    target = re.search(r"\.target\s+(\w+)", text)
    assert target
    command = [tool("ptxas"), "-v", "-lineinfo", f"--gpu-name={target[1]}", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return Assembled(out.read_bytes(), set(re.findall(r"\bC\d{4}\b", done.stderr)), done.stderr)


@cache
def marked_at_waits(name: str) -> tuple[str, Instrumented, Assembled]:
    """A kernel of the corpus, the same with marks, and what ptxas makes of them."""
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    found = instrument(text)
    with tempfile.TemporaryDirectory() as folder:
        return text, found, assembled(found.text, Path(folder), "marked")


def spills(cubin: bytes) -> int:
    return registers_and_frame(cubin)[1]


def without_spills(text: str, clean: Assembled, folder: Path) -> tuple[Instrumented, Assembled]:
    """As capture/triton.py does it: where ptxas spills by its own choice, a limit of registers is set."""
    registers = -(-registers_and_frame(clean.cubin)[0] // 8) * 8
    found = instrument(text, most_registers=registers)
    return found, assembled(found.text, folder, "limited")


@pytest.mark.parametrize("name", ["triton_3.6.0_layer_norm_90", "nvcc_sm_90a", "nvrtc_sm_80", "triton_3.9.0_tma_100"])
def test_with_all_that_can_be_asked_for_it_assembles(name: str, tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    found = instrument(text, Selection("all", also=ALSO))
    sites = [site["name"] for kernel in found.kernels if kernel.site_set for site in kernel.site_set["sites"]]
    assert any("wait load" in site for site in sites) == ("tma" not in name)  # those copies are bulk loads
    assert len(read_site_sets(assembled(found.text, tmp_path, "asked").cubin)) == len(found.kernels)


@pytest.mark.parametrize("name", [path.name.partition(".ptx")[0] for path in CORPUS])
def test_marked_at_waits_a_kernel_assembles_and_nothing_spills(name: str, tmp_path: Path) -> None:
    text, found, marked = marked_at_waits(name)
    if spills(marked.cubin) or marked.warnings:
        clean = assembled(text, tmp_path, "clean")
        if spills(marked.cubin) > spills(clean.cubin):
            found, marked = without_spills(text, clean, tmp_path)
        assert spills(marked.cubin) <= spills(clean.cubin)
        assert marked.warnings <= clean.warnings
    sets = {own["name"]: own["sites"] for own in read_site_sets(marked.cubin)}
    told = {k.site_set["name"]: k.site_set["sites"] for k in found.kernels if k.site_set is not None}
    assert sets == told


@pytest.mark.parametrize("level", ["coarse", "all"])
@pytest.mark.parametrize("name", ["nvrtc_sm_90a", "triton_3.6.0_tma_90", FULL])
def test_other_levels_assemble_too(name: str, level: str, tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    marked = assembled(instrument(text, Selection(level)).text, tmp_path, "marked")
    assert layout.DESCRIPTOR_SYMBOL.encode() in marked.cubin


def test_a_kernel_with_all_registers_spills_even_with_the_fewest_marks_in_registers(tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / f"{FULL}.ptx.gz").read_bytes()).decode()
    assert registers_and_frame(assembled(text, tmp_path, "clean").cubin) == (255, 0)
    assert spills(assembled(instrument(text, Selection("coarse", kinds=())).text, tmp_path, "marked").cubin) > 0


@pytest.mark.parametrize("name", sorted(path.name.partition(".ptx")[0] for path in FOLDER.glob("*.ptx.gz")))
def test_the_audit_names_every_mark_by_its_site(name: str) -> None:
    """Or says that it cannot, where the PTX has no line information."""
    text, found, marked = marked_at_waits(name)
    for kernel in found.kernels:
        assert kernel.site_set is not None
        sites = kernel.site_set["sites"]
        audit = audit_builds((marked.cubin, kernel.name), None, sites, {})
        assert audit["not_audited"] is None
        columns = audit["columns"]
        if ".file" not in text:
            assert set(columns["finding"]) == {"no line information: compile with -lineinfo"}
            continue
        assert {site for site in columns["site"] if site is not None} == set(range(len(sites))), kernel.name
        verbs = {(site, verb) for site, verb in zip(columns["site"], columns["verb"], strict=True)}
        begins = {(n, {"range": "range_push"}.get(site["kind"], site["kind"])) for n, site in enumerate(sites)}
        ends = {(None, "range_pop")} if any(site["kind"] == "range" for site in sites) else set()
        assert verbs == {*begins, *ends, (None, "end")}
        assert not any("cannot be told from the machine code" in finding for finding in columns["finding"])


def test_the_audit_tells_that_a_mark_parts_loads(tmp_path: Path) -> None:
    """The clean layer norm asks for weights before its last barriers; a clock read holds them back."""
    text = gzip.decompress((FOLDER / "triton_3.6.0_layer_norm_90.ptx.gz").read_bytes()).decode()
    found = instrument(text)
    builds = [assembled(own, tmp_path, name).cubin for own, name in ((found.text, "marked"), (text, "clean"))]
    sites = found.kernels[0].site_set
    assert sites is not None
    audit = audit_builds((builds[0], "layer_norm"), (builds[1], "layer_norm"), sites["sites"], {})
    assert any("marking changed the schedule" in finding for finding in audit["columns"]["finding"])


def test_the_audit_tells_which_copies_by_tma_are_under_way(tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / "triton_3.6.0_tma_90.ptx.gz").read_bytes()).decode()
    found = instrument(text, Selection("all"))
    (kernel,) = found.kernels
    assert kernel.site_set is not None
    cubin = assembled(found.text, tmp_path, "marked").cubin
    audit = audit_builds((cubin, kernel.name), None, kernel.site_set["sites"], {})
    rows = list(zip(audit["columns"]["verb"], audit["columns"]["bulk_loads"], strict=True))
    asking = next(own for verb, own in rows if verb == "wait" and own)
    assert "UTMALDG line 57" in asking  # the loads of the turns to come, which this one does not wait for
    assert rows[0] == ("phase", "")
    assert audit["facts"]["traced"]["bulk_loads"] == 6


@pytest.mark.parametrize("name", ["triton_3.6.0_matmul_90", "nvrtc_sm_90a", "nvrtc_sm_80"])
def test_marks_let_no_lanes_go_that_wait(name: str, tmp_path: Path) -> None:
    """A YIELD releases lanes that wait where their warp meets again: marks may add none (ADR 12)."""
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    clean, marked = (assembled(own, tmp_path, "kernel").cubin for own in (text, instrument(text).text))
    assert yields(marked) <= yields(clean)
