"""Which marks kernels of the corpus get, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.unit.instrument.test_read import SMALL
from warplens.errors import PtxError, UsageError
from warplens.instrument import Instrumented, Mode, Selection, State, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import read

WAITING = """.version 8.0
.target {arch}
.address_size 64
.visible .entry k(.param .u64 n)
{{
	.reg .b32 %r<9>;
	.reg .pred %p<9>;
	mov.u32 %r1, %tid.x;
	{body}
	ret;
}}
"""

SLEEPING = """setp.lt.u32 %p1, %r1, {};
	@!%p1 bra $over;
	nanosleep.u32 10;
$over:
	st.global.u32 [%r1], 1;
	bar.sync 0;"""


def names(found: Instrumented, kernel: int = 0) -> list[str]:
    sites = found.kernels[kernel].site_set
    assert sites is not None
    return [site["name"] for site in sites["sites"]]


def marked(body: str, arch: str = "sm_90", level: str = "waits") -> Instrumented:
    return instrument(WAITING.format(body=body, arch=arch), Selection(level))


def sites_of(found: Instrumented) -> list[dict[str, Any]]:
    return [site for kernel in found.kernels if kernel.site_set for site in kernel.site_set["sites"]]


def test_names_read_like_the_source(corpus: dict[str, str]) -> None:
    found = names(instrument(corpus["triton_3.6.0_matmul_90"]))
    line = next(name for name in found if "wgmma" in name).partition(":")[2].partition(" ")[0]
    assert f"triton_kernels.py:{line} wait cp.async" in found
    assert f"triton_kernels.py:{line} wait barrier 0" in found
    assert len(set(found)) == len(found)


def test_a_wait_that_follows_at_once_ends_the_one_before(corpus: dict[str, str]) -> None:
    found = names(instrument(corpus["triton_3.6.0_matmul_90"]))
    at = next(n for n, name in enumerate(found) if name.endswith("wait cp.async"))
    assert "wait barrier 0" in found[at + 1]


def test_loops_that_ask_are_waits_for_their_barrier(corpus: dict[str, str]) -> None:
    resources = {site["resource"] for site in sites_of(instrument(corpus["triton_3.6.0_tma_90"]))}
    assert any(resource.startswith("mbarrier global_smem+") for resource in resources)
    cutlass = instrument(corpus["nvrtc_sm_90a"], kernels="produced")
    waits = [site for site in sites_of(cutlass) if site["kind"] == "wait"]
    barriers = {site["resource"] for site in waits if "mbarrier" in site["resource"]}
    assert len(barriers) > 2  # the loop is unrolled: full and empty of each stage
    assert {"earlier grid", "barrier 0"} <= {site["resource"] for site in waits}


def test_a_flag_that_is_asked_for_is_a_wait(corpus: dict[str, str]) -> None:
    found = instrument(corpus["nvrtc_sm_80"], kernels="after_flag")
    assert any(name.endswith("wait flag") for name in names(found))


def test_what_only_some_lanes_do_is_not_marked_and_that_is_told() -> None:
    some = marked(
        "setp.lt.u32 %p1, %r1, 5;\n@%p1 bra $over;\nmbarrier.arrive.shared.b64 _, [bar];\n$over:\nbar.sync 0;",
        level="all",
    )
    assert any("only some lanes" in line for line in some.kernels[0].left_out)


def test_levels_hold_each_other(some: dict[str, str]) -> None:
    for name, text in some.items():
        counts = [len(sites_of(instrument(text, Selection(level)))) for level in ("coarse", "waits", "all")]
        assert counts == sorted(counts), name


def test_sites_are_chosen_by_name_and_kind(corpus: dict[str, str]) -> None:
    text = corpus["triton_3.6.0_matmul_90"]
    only = sites_of(instrument(text, Selection("all", sites="wgmma")))
    assert {site["name"].partition(" ")[2] for site in only if site["kind"] != "phase"} == {"wait wgmma", "issue wgmma"}
    kinds = {site["kind"] for site in sites_of(instrument(text, Selection("all", kinds=("wait",))))}
    assert kinds == {"phase", "wait"}  # a wait needs an end
    wrongs: tuple[dict[str, Any], ...] = ({"level": "most"}, {"kinds": ("lock",)}, {"sites": "("})
    for wrong in wrongs:
        with pytest.raises(UsageError):
            Selection(**wrong)


def test_nothing_of_the_text_is_lost(some: dict[str, str]) -> None:
    """All stands where it stood; with arithmetic ahead of waits all is still there, as often as before."""
    for name, text in some.items():
        statements = [line.strip() for line in text.splitlines() if line.strip()]
        hoisted = Counter(instructions(lines_left(instrument(text, Selection("all")).text)))
        lost = Counter(instructions(statements)) - hoisted
        assert all("ret;" in line or "wl_" in line for line in lost), (name, lost)
        modes = {entry.name: Mode(Selection("all"), hoists=False) for entry in read(text).entries}
        kept = lines_left(instrument(text, modes=modes).text)
        at = 0
        for line in kept:
            if at < len(statements) and line == statements[at]:
                at += 1
        missing = statements[at : at + 1]
        assert at == len(statements) or "ret;" in missing[0] or "wl_" in missing[0], (name, missing)


def lines_left(text: str) -> list[str]:
    """Without those of marks."""
    left = re.sub(r"(?m)^\t\$?wl_\w+:$|^.*(?:wl_|warplens_).*\n?", "", text)
    return [line.strip() for line in left.splitlines() if line.strip()]


def instructions(lines: list[str]) -> list[str]:
    return [line.partition("//")[0].strip() for line in lines if not line.startswith((".loc", "//"))]


def test_directives_of_the_kernel_stay(some: dict[str, str]) -> None:
    pattern = r"\.(?:reqntid|maxntid|minnctapersm|maxnreg|maxclusterrank|explicitcluster|reqnctapercluster)[^\n]*"
    for text in some.values():
        assert re.findall(pattern, instrument(text).text) == re.findall(pattern, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no PTX module"),
        ("int main() {}", "no PTX module"),
        ("\x7fELF\x02\x01\x01\0\0", "machine code"),
        ("!<arch>\n", "machine code"),
        ("\x50\xed\x55\xba\x01\0", "machine code"),
        (SMALL + "\0", "bytes of 0"),
        (SMALL.replace("sm_90", "sm_70"), "sm_80 or newer"),
        (SMALL.replace(".address_size 64", ".address_size 32"), "addresses of 32 bits"),
        (SMALL.replace(".visible .entry", ".visible .func"), "no kernel"),
        (instrument(SMALL).text, "marks of warplens already"),
        (WAITING.format(body="bra $nowhere;", arch="sm_90"), "the target of bra"),
    ],
)
def test_what_cannot_be_marked_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(PtxError, match=words):
        instrument(text)


def test_two_kernels_of_one_name_are_refused_with_the_line_of_the_second() -> None:
    second = SMALL[SMALL.index(".visible") :]
    with pytest.raises(PtxError, match="line 10: a second kernel named k: ptxas takes no such module"):
        instrument(SMALL + second)


def test_a_name_that_no_kernel_has_lists_those_that_are_there() -> None:
    with pytest.raises(PtxError, match=r"there are k$"):
        instrument(SMALL, kernels="matmul")


LOADS_TENSORS = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r2, %r3}, [%r1];\n\t"


def test_behind_a_wait_for_tensor_memory_one_instruction_holds_the_clock_back() -> None:
    found = marked(LOADS_TENSORS + "tcgen05.wait::ld.sync.aligned;\n\tst.global.u32 [%r1], %r3;", "sm_100a")
    assert [name.partition(" ")[2] for name in names(found)][1] == "wait tensor memory loads"
    behind = found.text[found.text.index("tcgen05.wait::ld") :]
    assert behind.index("bar.warp.sync 0xffffffff;") < behind.index("%clock")


@pytest.mark.parametrize(
    ("head", "holds"), [("", True), (".reqnctapercluster 2\n", True), (".explicitcluster\n", False)]
)
def test_behind_a_cluster_barrier_the_clock_is_held_back_where_the_launch_may_be_of_no_cluster(
    head: str, holds: bool
) -> None:
    wait = "barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;"
    text = WAITING.format(body=wait, arch="sm_90").replace("{\n", f"{head}{{\n", 1)
    behind = instrument(text).text.partition("barrier.cluster.wait")[2]
    assert ("bar.warp.sync 0xffffffff;" in behind[: behind.index("%clock")]) == holds


@pytest.mark.parametrize(
    ("between", "over"),
    [
        ("add.u32 %r4, %r3, 1;", True),
        ("add.u32 %r4, %r5, 1;", False),
        ("add.u32 %r4, %r3, 1; " + LOADS_TENSORS.replace("%r2, %r3", "%r6, %r7"), False),
        ("tcgen05.wait::ld.sync.aligned;", False),
        ("add.u32 %r4, %r3, 1; bra $other; $other:", False),
    ],
)
def test_tensor_memory_that_was_used_before_is_waited_for_no_more(between: str, over: bool) -> None:
    found = marked(LOADS_TENSORS + between + "tcgen05.wait::ld.sync.aligned;\n\tst.global.u32 [%r1], %r3;", "sm_100a")
    assert any("tensor memory" in name for name in names(found)) == (not over)
    why = "1 waits for tensor memory not marked: the loaded values are used before"
    assert found.kernels[0].left_out == ([why] if over else [])


def test_an_instruction_of_the_future_passes_through_and_nothing_is_claimed_of_it() -> None:
    future = "@%p1 future.wait::all.v9.b128 {%r2, %r3}, [%r1 + 0x10], !%p2, 0f3F800000;"
    found = marked(f"bar.sync 0;\n\t{future}\n\tst.global.u32 [%r1], %r3;")
    assert found.text.count(future) == 1
    assert [name.partition(" ")[2] for name in names(found)] == ["", "wait barrier 0", "store"]


@pytest.mark.parametrize("jump", ["", "setp.lt.u32 %p1, %r1, 5; @%p1 bra $done;"])
def test_a_kernel_begins_ahead_of_the_numbers_that_a_loop_begins_with(jump: str) -> None:
    """Something between them and the loop keeps ptxas from unrolling it."""
    turn = "$next: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 10; @%p2 bra $next;"
    body = f"ld.global.u32 %r2, [%r1]; mov.u32 %r3, 0; setp.eq.u32 %p3, %r2, 7; mov.u32 %r4, %r2; {jump} {turn} $done:"
    text = marked(body).text
    assert "%wl_" not in text[text.index("mov.u32 %r3, 0;") : text.index("$next:")]


def test_a_kernel_with_no_wait_has_its_begin_and_end() -> None:
    found = instrument(SMALL)
    assert names(found) == ["ptx:7"]
    assert found.text.count("%clock64") == 2


def test_a_wait_of_some_lanes_alone_is_not_marked() -> None:
    body = SLEEPING.format(5)
    found = marked(body)
    assert "nanosleep" not in " ".join(names(found))
    assert found.kernels[0].left_out == ["1 waits not marked: only some lanes of a warp come there"]


def test_a_branch_by_the_warps_number_keeps_lanes_together() -> None:
    body = SLEEPING.format(64)
    text = WAITING.format(body=body, arch="sm_90").replace("(.param .u64 n)", "(.param .u64 n)\n.reqntid 128")
    found = instrument(text)
    assert "ptx:12 wait nanosleep" in names(found)


HALF = "and.b32 %r2, %r1, 16; shl.b32 %r3, 65535, %r2;"  # a mask of the half of the warp that a lane is in


@pytest.mark.parametrize(
    ("asks", "together"),
    [
        ("vote.sync.any.pred %p1, %p2, -1;", True),
        (f"{HALF} vote.sync.any.pred %p1, %p2, %r3;", False),
        (f"{HALF} redux.sync.add.s32 %r4, %r1, %r3; setp.ne.s32 %p1, %r4, 0;", False),
        ("redux.sync.add.s32 %r4, %r1, 0xffffffff; setp.ne.s32 %p1, %r4, 0;", True),
        ("shfl.sync.idx.b32 %r4, %r1, 0, 31, -1; setp.ne.s32 %p1, %r4, 0;", True),
        ("mov.u32 %r5, 31; shfl.sync.idx.b32 %r4|%p2, %r1, 0, %r5, -1; setp.ne.s32 %p1, %r4, 0;", True),
        ("shfl.sync.idx.b32 %r4, %r1, 0, 4127, -1; setp.ne.s32 %p1, %r4, 0;", False),
        ("mov.u32 %r5, 4127; shfl.sync.idx.b32 %r4|%p2, %r1, 0, %r5, -1; setp.ne.s32 %p1, %r4, 0;", False),
    ],
)
def test_what_a_part_of_a_warp_agrees_on_may_part_it(asks: str, together: bool) -> None:
    """A warp-wide vote of the recorder would wait for lanes that are elsewhere."""
    body = SLEEPING.format(5).partition(";")[2]
    assert any("nanosleep" in name for name in names(marked(f"{asks}{body}"))) == together


@pytest.mark.parametrize(
    ("head", "reads", "one"),
    [
        (".reqntid 128", "%tid.y", True),
        (".reqntid 64, 2", "%tid.x", False),
        (".maxntid 128, 1, 1", "%tid.x", True),
        (".maxntid 128, 1, 1", "%tid.y", False),
        (".maxntid 128", "%ntid.z", False),
        ("", "%tid.x", False),
    ],
)
def test_a_maximum_of_threads_allows_blocks_of_more_rows(head: str, reads: str, one: bool) -> None:
    body = f"mov.u32 %r2, {reads};\n{SLEEPING.format(64)}"
    text = WAITING.format(body=body, arch="sm_90").replace("(.param .u64 n)", f"(.param .u64 n)\n{head}")
    found = instrument(text)
    assert any("nanosleep" in name for name in names(found)) == one
    assert ("%ntid.x" in found.text) == (not one)


def test_constant_memory_that_is_used_up_is_not_asked_for_more() -> None:
    full = SMALL.replace(".visible .entry", ".const .align 4 .b8 much[65500];\n.visible .entry")
    assert ".visible .global .align 8 .b8 warplens_device" in instrument(full).text
    assert ".visible .const .align 8 .b8 warplens_device" in instrument(SMALL).text


def test_several_kernels_each_have_their_sites() -> None:
    two = SMALL + SMALL[SMALL.index(".visible") :].replace("entry k", "entry other")
    found = instrument(two)
    assert [kernel.name for kernel in found.kernels] == ["k", "other"]
    assert "warplens_sites_k[" in found.text
    assert "warplens_sites_other[" in found.text
    assert found.text.count("warplens_device[24]") == 1


def test_shared_memory_is_asked_for_only_before_sm_90() -> None:
    body = "bar.sync 0;\n\tst.global.u32 [%r1], 1;"
    assert "warplens_own" in marked(body, "sm_80").text
    assert "warplens_own" not in marked(body, "sm_90").text


LEAVING = """
.visible .entry {name}(.param .u64 n)
{head}
{{
	.reg .b32 %r<9>;
	.reg .pred %p1;
	{declared}
	mov.u32 %r1, %tid.x;
	setp.gt.u32 %p1, %r1, 50;
	@%p1 bra $end;
	{body}
	bar.sync 0;
	st.global.u32 [%r1], %r1;
$end:
	ret;
}}
"""
ARRAY = ".shared .align 4 .b8 {}[4096];"
OF_LAUNCH = ".extern .shared .align 16 .b8 asked_for[];"


def read_behind_the_barrier(text: str) -> list[str]:
    return re.findall(r"mov\.u32 %wl_r3, ([\w$]+);\n\s*ld\.volatile\.shared", text)


@pytest.mark.parametrize(
    ("arch", "declared", "before", "body", "head", "found"),
    [
        ("sm_90", "", "", "", "", "0"),
        ("sm_80", "", "", "", "", "warplens_own"),
        ("sm_80", ARRAY.format("own"), "", "st.shared.u32 [own], %r1;", "", "own"),
        ("sm_80", "", ARRAY.format("own"), "mov.u32 %r2, own;", "", "own"),
        ("sm_80", "", OF_LAUNCH + ARRAY.format("own"), "mov.u32 %r2, own; mov.u32 %r3, asked_for;", "", "own"),
        ("sm_80", "", OF_LAUNCH, "ld.shared.u32 %r2, [asked_for+8];", "", "asked_for"),
        ("sm_90", "", OF_LAUNCH, "ld.shared.u32 %r2, [asked_for+8];", "", "0"),
        ("sm_90", "", OF_LAUNCH, "ld.shared.u32 %r2, [asked_for+8];", ".reqnctapercluster 2", "asked_for"),
        ("sm_80", "", OF_LAUNCH + ARRAY.format("others"), "", "", "warplens_own"),
        ("sm_90", "", "", "", ".explicitcluster .reqnctapercluster 2", "warplens_own"),
        ("sm_90", "", "", "mov.u32 %r2, %cluster_ctaid.x;", "", "warplens_own"),
        ("sm_90", ARRAY.format("own"), "", "st.shared.u32 [own], %r1;", ".explicitcluster .reqnctapercluster 2", "own"),
    ],
    ids=[
        "none", "none, before sm_90", "in the kernel", "in the module", "beside that of a launch", "that of a launch",
        "that of a launch, from sm_90 on", "that of a launch, in a cluster", "that it does not use", "cluster",
        "place in a cluster", "cluster with an array",
    ],
)  # fmt: skip
def test_behind_a_barrier_a_kernel_reads_shared_memory_that_it_has(
    arch: str, declared: str, before: str, body: str, head: str, found: str
) -> None:
    """A variable of another kernel's cannot be seen, or takes its place here; in a cluster nothing stands at 0."""
    other = LEAVING.format(name="a", head="", declared=ARRAY.format("of_a"), body="st.shared.u32 [of_a], %r1;")
    kernel = LEAVING.format(name="k", head=head, declared=declared, body=body)
    text = f".version 8.0\n.target {arch}\n.address_size 64\n{before}{other}{kernel}"
    own = instrument(text).text
    at = own.index(".entry k(")
    assert read_behind_the_barrier(own[:at]) == ["of_a"]
    assert read_behind_the_barrier(own[at:]) == [found]


def test_a_predicated_return_is_stepped_over() -> None:
    found = marked("setp.lt.u32 %p1, %r1, 5;\n\t@%p1 ret;\n\tbar.sync 0;\n\tst.global.u32 [%r1], 1;")
    assert "@!%p1 bra $wl_stay_" in found.text
    module = read(found.text)
    assert Flow(module, module.entries[0]).unknown_branch is None


def module_of(*kernels: str) -> str:
    """A module of kernels: a name each, and behind a blank a body."""
    head = "(.param .u64 p) { .reg .b32 %r<9>; .reg .pred %p<4>; .reg .b64 %rd<9>; "
    text = "".join(f".visible .entry {k.partition(' ')[0]}{head}{k.partition(' ')[2]}\n}}\n" for k in kernels)
    return f".version 8.0\n.target sm_90\n.address_size 64\n{text}"


def test_kernels_whose_names_differ_in_signs_alone_have_tables_of_their_own() -> None:
    kernels = ("a$b", "a_b", "a_b_2", "a%b", "c")
    found = instrument(module_of(*(f"{name} ret;" for name in kernels)))
    sets = [kernel.site_set for kernel in found.kernels]
    assert [own["name"] for own in sets if own] == ["a_b_3", "a_b", "a_b_2", "a_b_4", "c"]
    assert len({own["hash"] for own in sets if own}) == 5
    assert sorted(re.findall(r"warplens_sites_(\w+)\[", found.text)) == ["a_b", "a_b_2", "a_b_3", "a_b_4", "c"]
    alone = instrument(module_of(*(f"{name} ret;" for name in kernels)), kernels=r"a\$b").kernels[0].site_set
    assert alone == sets[0]


@pytest.mark.parametrize("name", ["$wl_stay_1", "%wl_p1", "warplens_own", "warplens_sites_k"])
def test_names_that_marks_use_are_refused_but_in_comments_and_strings(name: str) -> None:
    with pytest.raises(PtxError, match=f"{re.escape(name)}' is a name that marks use"):
        instrument(module_of(f"k {name}: bar.sync 0; @%p1 ret; ret;"))
    found = instrument(module_of(f'k x{name.lstrip("%")}: bar.sync 0; /* {name} */ .pragma "{name}"; ret;'))
    assert any(own.endswith("wait barrier 0") for own in names(found))


@pytest.mark.parametrize("state", State)
def test_all_names_that_marks_declare_are_refused_in_a_kernel(state: State) -> None:
    """A kernel that had one of its own read and wrote the marks' memory, or was refused by ptxas."""
    text = instrument(module_of("k bar.sync 0; $own: st.global.u32 [%r1], 1; @%p1 bra $own; ret;"), state=state).text
    body = text.partition("{\n")[2]
    declared = re.findall(r"\.(?:reg|local|shared)\s+(?:\.align \d+ )?\.\w+ ([^;]+);", body)
    declared = [re.split(r"[<\[]", own.strip())[0] for names in declared for own in names.split(",")]
    used = {*declared, *re.findall(r"^\s*([$\w]+):", body, re.M)} - {"%r", "%p", "%rd", "$own"}
    assert len(used) > 20
    for name in used:
        with pytest.raises(PtxError, match=f"{re.escape(name)}' is a name that marks use"):
            instrument(module_of(f"k {name}: bar.sync 0; @%p1 ret; ret;"))


ASK = "$w: mbarrier.try_wait.shared.b64 %p1, [{}], %r2; @!%p1 bra $w;"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("bar.sync 01;", "barrier 1"),
        ("bar.sync 0b11;", "barrier 3"),
        ("bar.sync 0x0aU;", "barrier 10"),
        ("mov.u32 %r3, 017; bar.sync %r3;", "barrier 15"),
        ("bar.sync 08;", "barrier ?"),
        ("bar .sync /* all */ 1;", "barrier 1"),  # blanks and comments within an opcode
        ("bra .uni $on; $on: bar/* */.sync 1;", "barrier 1"),
        (f"bar.sync {'1' * 5000};", "barrier ?"),
        (ASK.format("%r1+010"), "mbarrier shared+8[]"),
        (ASK.format("%r1+foo"), "mbarrier"),
        (ASK.format("%r1+" + "9" * 5000), "mbarrier"),
        (ASK.format("9" * 5000), "mbarrier"),
        (ASK.format("0x10+8"), "mbarrier shared+24"),
    ],
    ids=[
        "octal",
        "binary",
        "hex",
        "register",
        "none",
        "blanks",
        "jump",
        "digits",
        "offset",
        "symbol",
        "far",
        "where",
        "plain",
    ],
)
def test_integers_are_read_as_ptx_writes_them(body: str, name: str) -> None:
    sites = sites_of(instrument(module_of(f"k mov.u32 %r1, %tid.x; {body} ret;")))
    assert [site["resource"] for site in sites if site["kind"] == "wait"] == [name]


def test_a_kernel_without_instructions_is_left_out_with_a_note() -> None:
    found = instrument(module_of("empty .reg .b32 %q;", "k bar.sync 0; ret;"))
    assert found.kernels[0].site_set is None
    assert found.kernels[0].left_out == ["not marked: it has no instructions"]
    assert "warplens_sites_empty" not in found.text
    assert any(own.endswith("wait barrier 0") for own in names(found, 1))
    with pytest.raises(PtxError, match="empty has no instructions"):
        instrument(module_of("empty "))


CALLEE = """.func f () {{
	.reg .pred %p;
	{body}
	ret;
}}
"""


@pytest.mark.parametrize(
    ("callee", "call", "found"),
    [
        (CALLEE.format(body="bar.sync 2;"), "call f, ();", "0"),
        (CALLEE.format(body="barrier.cluster.arrive;"), "call f, ();", "warplens_own"),
        (CALLEE.format(body="barrier.cluster.arrive;"), "", "0"),
        (".extern .func f ();\n", "call f, ();", "warplens_own"),
        (".extern .func f ();\n", "call %rd1, (), f;", "warplens_own"),
    ],
    ids=["no cluster", "cluster", "never called", "elsewhere", "through a pointer"],
)
def test_what_a_kernel_calls_may_be_for_clusters(callee: str, call: str, found: str) -> None:
    """To read shared memory at 0 there is an illegal instruction, and a launch alone may say that it is in one."""
    kernel = LEAVING.format(name="k", head="", declared="", body=call)
    text = f".version 8.0\n.target sm_90\n.address_size 64\n{callee}{kernel}"
    assert read_behind_the_barrier(instrument(text).text) == [found]


def test_behind_a_barrier_a_variable_may_stand_at_any_byte() -> None:
    text = LEAVING.format(name="k", head="", declared=".shared .b8 own;", body="st.shared.u8 [own], %r1;")
    found = re.findall(r"ld\.volatile\.shared\.(\w+)", instrument(f".version 8.0\n.target sm_80\n{text}").text)
    assert found == ["u8"]
