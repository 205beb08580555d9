"""Corpus kernels with marks, assembled for their targets: nothing spills, ptxas says nothing new, each site is a mark.

Needs the ptxas of the wheel nvidia-cuda-nvcc, of CUDA 13.4 or newer for the newest PTX; no GPU.
"""

from __future__ import annotations

import gzip
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.machine_code import audited_build, text_section, tool, yields
from tests.odd_ptx import commented, without_its_comments, without_lines
from warplens import layout
from warplens.capture.audited import audit_builds, disassemble
from warplens.capture.modules import read_site_sets, registers_and_frame, shared_bytes
from warplens.instrument import Instrumented, Mode, Selection, State, instrument
from warplens.instrument.head import target
from warplens.instrument.read import read, without_comments
from warplens.instrument.selection import ALSO

pytestmark = pytest.mark.compile
FOLDER = Path(__file__).parents[1] / "ptx"
FULL = "triton_3.9.0_specialized_100"
"""It takes all 255 registers: there is room for marks only where their state is in shared memory."""
FULLER = "inductor_flex_attention_90"
"""So does this one, and has room there for marks outside of loops alone: so `warplens record` says."""
MODES = {FULL: (Selection(), State.SHARED), FULLER: (Selection("coarse"), State.SHARED)}
"""Of those that do not get the marks asked for with their state in registers."""
STAGED = [
    *(f"triton_3.6.0_{kernel}_90" for kernel in ("attention", "gluon", "hopper", "marked", "matmul", "tma")),
    *(f"triton_3.9.0_{kernel}_100" for kernel in ("attention", "matmul", "tma")),
    "triton_3.9.0_attention_80",
]
"""Of those whose records wait in shared memory, as all of Triton's do that have loops."""
NAMES = sorted(path.name.partition(".ptx")[0] for path in FOLDER.glob("*.ptx.gz"))

UNFOLLOWED = {"nvcc_sm_80": {"reduce", "pipelined", "after_flag", "guarded", "calls"}}
"""nvcc -G leaves calls of functions that have a section of their own, votes too: what those do is not looked at."""
PARTED = {
    **{f"triton_3.6.0_layer_norm_{arch}": {"layer_norm"} for arch in (80, 90, 100)},
    "triton_3.9.0_layer_norm_80": {"layer_norm"},
    "inductor_persistent_reduction_90": {"triton_per_fused_gelu_native_layer_norm_0"},
    "cupy_raw_90": {"_Z6matmulILi16EEvPKfS1_Pfi"},
    "nvcc_sm_90a": {"produced"},
    "nvrtc_sm_90a": {"produced"},
    "triton_3.9.0_marked_80": {"marked_matmul"},
    "triton_3.9.0_matmul_80": {"matmul"},
    "triton_3.9.0_attention_100": {"attention"},
}
"""Loads that the clean kernel has under way together stand on both sides of a mark, and none crosses a clock read."""
FULL_MEMORY = """
.version 8.7
.target {target}
.address_size 64
.{space} .align 4 .b8 all[{most}];
.visible .entry k(.param .u64 out)
{{
	.reg .b32 %r<9>;
	.reg .b64 %rd1;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, all;
	add.u32 %r2, %r2, %r1;
	bar.sync 0;
	ld.{space}.u32 %r3, [%r2+4];
	st.global.u32 [%rd1], %r3;
	ret;
}}
"""


CLUSTER = """
.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{head}
{{
	.reg .b32 %r1;
	.reg .b64 %rd1;
	.reg .pred %p1;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	{before}
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	st.global.u32 [%rd1], %r1;
	ret;
}}
"""


@dataclass
class Assembled:
    cubin: bytes
    warnings: set[str]
    log: str


def assembled(text: str, folder: Path, name: str) -> Assembled:
    source, out = folder / f"{name}.ptx", folder / f"{name}.cubin"
    source.write_text(text, encoding="utf-8")
    found = target(without_comments(text))
    assert found
    command = [tool("ptxas"), "-v", "-lineinfo", f"--gpu-name={found[0]}", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return Assembled(out.read_bytes(), set(re.findall(r"\bC\d{4}\b", done.stderr)), done.stderr)


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


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, MODES.get(name, (Selection(), State.REGISTERS))) for name in NAMES),
        *((name, (Selection(), State.STAGED)) for name in STAGED),
        (FULL, (Selection(), State.STAGED_FEWER)),
    ],
    ids=[*NAMES, *(f"{name} staged" for name in (*STAGED, FULL))],
)
def test_marked_at_waits_a_kernel_assembles_nothing_spills_and_it_audits_clean(
    name: str, mode: tuple[Selection, State], tmp_path: Path
) -> None:
    """Of every kernel in every file of the corpus, for the target that the file names.

    Nothing spills: no byte of local memory more than the clean kernel's, and no C75xx or C76xx that it has not.
    It audits clean: each clock read is one of a site of this kernel, or of its end, with that site's line; each site
    has one; and no mark has a warning or is said to be unknown. So faults are a name that claims more than is measured
    (loads under way at the end of their phase, copies that are only issued, a wait in which nothing waits, a clock
    that is read before a barrier has opened), a mark or line that cannot be told, and paths that cannot be followed.
    What is no fault: the note that stores are issued; that marks changed the kernel's own schedule, which is true of
    the kernels in PARTED and no others; and paths that nobody can follow, of those in UNFOLLOWED.
    """
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    selection, state = mode
    found = instrument(text, selection, state=state)
    assert any(kernel.staged_bytes for kernel in found.kernels) == (state in (State.STAGED, State.STAGED_FEWER))
    marked, clean = assembled(found.text, tmp_path, "marked"), assembled(text, tmp_path, "clean")
    if spills(marked.cubin) > spills(clean.cubin):
        found, marked = without_spills(text, clean, tmp_path)
    assert spills(marked.cubin) <= spills(clean.cubin)
    assert marked.warnings <= clean.warnings
    sets = {own["name"]: own["sites"] for own in read_site_sets(marked.cubin)}
    told = {k.site_set["name"]: k.site_set["sites"] for k in found.kernels if k.site_set is not None}
    assert sets == told
    assert len(told) == len(read(text).entries)
    parted, unfollowed = set(), set()
    for kernel in found.kernels:
        assert kernel.site_set is not None
        sites = kernel.site_set["sites"]
        marks, _ = audited_build((marked.cubin, kernel.name), (clean.cubin, kernel.name), sites)
        assert {mark["site"] for mark in marks} - {None} == set(range(len(sites))), kernel.name
        verbs = {(mark["site"], mark["verb"]) for mark in marks}
        begins = {(n, {"range": "range_push"}.get(site["kind"], site["kind"])) for n, site in enumerate(sites)}
        ends = {(None, "range_pop")} if any(site["kind"] == "range" for site in sites) else set()
        assert verbs == {*begins, *ends, (None, "end")}
        for mark in marks:
            site = {"file": "", "line": 0} if mark["site"] is None else sites[mark["site"]]
            assert mark["line"] == site["line"]
            assert mark["file"] == site["file"]
            for finding in filter(None, mark["finding"].split("; ")):
                if finding.startswith("marking changed the schedule"):
                    parted.add(kernel.name)
                elif finding.startswith("unknown: not every path"):
                    unfollowed.add(kernel.name)
                else:
                    assert finding.startswith("issue: stores are not waited for"), (kernel.name, mark)
    assert parted == PARTED.get(name, set())
    assert unfollowed == UNFOLLOWED.get(name, set())


def test_lines_that_marks_bring_change_no_machine_code(tmp_path: Path) -> None:
    text = without_lines(gzip.decompress((FOLDER / "nvcc_sm_90a.ptx.gz").read_bytes()).decode())
    found = instrument(text)
    without = re.sub(r"(?m)^\s*\.(?:loc|file) .*$", "", found.text)
    with_lines, plain = (assembled(own, tmp_path, "kernel").cubin for own in (found.text, without))
    for kernel in found.kernels:
        assert text_section(with_lines, kernel.name) == text_section(plain, kernel.name)


@pytest.mark.parametrize("name", ["nvrtc_sm_90a", "triton_3.9.0_hopper_90"])
def test_without_lines_of_its_source_a_kernel_audits_as_with_them(name: str, tmp_path: Path) -> None:
    """In functions that were inlined too, of one file and of two."""
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    both = [instrument(own) for own in (text, without_lines(text))]
    cubins = [assembled(own.text, tmp_path, "marked").cubin for own in both]
    for kernels in zip(*(own.kernels for own in both), strict=True):
        assert text_section(cubins[0], kernels[0].name) == text_section(cubins[1], kernels[0].name)
        audits = []
        for cubin, kernel in zip(cubins, kernels, strict=True):
            assert kernel.site_set is not None
            marks, _ = audited_build((cubin, kernel.name), None, kernel.site_set["sites"])
            keys = ("address", "verb", "site", "outstanding_loads", "severity")
            audits.append([tuple(mark[key] for key in keys) for mark in marks])
        assert audits[0] == audits[1]


@pytest.mark.parametrize("name", ["nvcc_sm_90a", "nvrtc_sm_90a", "triton_3.9.0_matmul_90"])
def test_comments_between_all_tokens_change_no_machine_code(name: str, tmp_path: Path) -> None:
    """The last two have `.loc`, some of inlined code, `.file` and `.section`; the first is without."""
    text = without_its_comments(gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode())
    text = without_lines(text) if name == "nvcc_sm_90a" else text
    cubins = [assembled(instrument(own).text, tmp_path, "kernel").cubin for own in (text, commented(text))]
    for entry in read(text).entries:
        assert text_section(cubins[0], entry.name) == text_section(cubins[1], entry.name)


@pytest.mark.parametrize("before", ["", "setp.lt.u32 %p1, %r1, 5; @%p1 ret;"])
@pytest.mark.parametrize("head", ["", ".reqnctapercluster 2, 1, 1", ".explicitcluster"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_behind_a_cluster_barrier_no_clock_is_read_early(target: str, head: str, before: str, tmp_path: Path) -> None:
    """Without `.explicitcluster` ptxas makes a second way with BAR.SYNC, for launches without clusters."""
    found = instrument(CLUSTER.format(target=target, head=head, before=before))
    cubin = assembled(found.text, tmp_path, "marked").cubin
    code = disassemble(cubin)
    assert "UCGABAR_WAIT" in code
    assert ("BAR.SYNC" in code) == (head != ".explicitcluster")
    assert found.kernels[0].site_set is not None
    marks, _ = audited_build((cubin, "k"), None, found.kernels[0].site_set["sites"])
    assert [mark["verb"] for mark in marks if mark["site"] is not None] == ["phase", "wait", "phase"]
    assert [mark["finding"] for mark in marks if mark["severity"] == "warning"] == []


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("space", "most"), [("shared", 49152), ("const", 65536)])
def test_with_all_shared_memory_or_constants_used_a_kernel_still_gets_its_marks(
    target: str, space: str, most: int, tmp_path: Path
) -> None:
    text = FULL_MEMORY.format(target=target, space=space, most=most)
    clean = assembled(text, tmp_path, "clean").cubin
    found = instrument(text)
    marked = assembled(found.text, tmp_path, "marked").cubin
    assert any("wait barrier 0" in site["name"] for site in read_site_sets(marked)[0]["sites"])
    assert shared_bytes(marked, "k") == shared_bytes(clean, "k")


@pytest.mark.parametrize("level", ["coarse", "all"])
@pytest.mark.parametrize("name", ["nvrtc_sm_90a", "triton_3.6.0_tma_90", FULL])
def test_other_levels_assemble_too(name: str, level: str, tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    marked = assembled(instrument(text, Selection(level)).text, tmp_path, "marked")
    assert layout.DESCRIPTOR_SYMBOL.encode() in marked.cubin


@pytest.mark.parametrize("name", MODES)
def test_a_kernel_with_all_registers_spills_even_with_the_fewest_marks_in_registers(name: str, tmp_path: Path) -> None:
    text = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    assert registers_and_frame(assembled(text, tmp_path, "clean").cubin) == (255, 0)
    assert spills(assembled(instrument(text, Selection("off", kinds=())).text, tmp_path, "marked").cubin) > 0


def test_a_loop_in_front_of_which_a_kernel_begins_is_unrolled_as_without_marks(tmp_path: Path) -> None:
    """Ten turns, of which five have their loads under way together."""
    text = gzip.decompress((FOLDER / "inductor_reduction_90.ptx.gz").read_bytes()).decode()
    builds = [assembled(own, tmp_path, "kernel").cubin for own in (text, instrument(text).text)]
    assert [disassemble(cubin).count("LDG.E.EF.64") for cubin in builds] == [10, 10]


@pytest.mark.parametrize("hoists", [True, False])
@pytest.mark.parametrize("state", State)
def test_with_more_marks_the_fuller_kernel_spills_wherever_the_state_is(
    state: State, hoists: bool, tmp_path: Path
) -> None:
    text = gzip.decompress((FOLDER / f"{FULLER}.ptx.gz").read_bytes()).decode()
    modes = {own.name: Mode(Selection(), state=state, hoists=hoists) for own in read(text).entries}
    assert spills(assembled(instrument(text, modes=modes).text, tmp_path, "marked").cubin) > 0


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


def test_what_a_matmul_computes_beside_its_product_is_not_left_between_its_waits(tmp_path: Path) -> None:
    """Of the loop's addresses nothing stands between the wait for wgmma and the barrier, as in the clean kernel."""
    text = gzip.decompress((FOLDER / "triton_3.6.0_matmul_90.ptx.gz").read_bytes()).decode()
    in_place = instrument(text, modes={"matmul": Mode(Selection(), hoists=False)}).text
    found = [between(assembled(own, tmp_path, "kernel").cubin) for own in (text, in_place, instrument(text).text)]
    assert len(found[0]) == 0
    assert len(found[1]) > 15
    assert len(found[2]) == 0


def between(cubin: bytes) -> list[str]:
    """What computes addresses and numbers between the first wait for wgmma and the barrier behind it."""
    code = disassemble(cubin).partition("WARPGROUP.DEPBAR")[2].partition("BAR.SYNC")[0]
    return re.findall(r"\b(?:IADD3|IMAD\.X|IMAD\.WIDE\.U32|UIADD3|UISETP|USEL|ULEA)\b", code)
