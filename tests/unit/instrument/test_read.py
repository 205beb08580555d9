"""The reader: what it reads it writes again, whatever stands there."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.odd_ptx import commented, without_its_comments
from warplens.errors import PtxError
from warplens.instrument import Selection, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import LABEL, OTHER, STATEMENT, read, splice, without_comments

SMALL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
{
	.reg .b32 %r<4>;
	ld.param.u32 %r1, [n];
	ret;
}
"""
ODD = """//;{ a comment in front
.version 8.0 .target sm_90, texmode_independent .address_size 64
/* { ; */ .visible /* between */ .entry
  k // {
  (.param .u64 n /* ) */)
.maxntid 32,1,1 { .reg .b32 %r<4>; .reg .pred p; $a:$b: /*;*/ add.u32 %r1, %r1, // ; {
 1; @ ! p bra $a; { .reg .b32 q; again : bra again; } .pragma "no;un{roll"; future.op.v9 {%r1, %r2}, [%r3+4], "}";
 @p ret; exit; }
.section .debug_str { info: .b8 1,2 .b8 "}" }
.func (.param .b32 out) f (.param .b32 in) { ret; }
.extern .func g (.param .b32 in);
.global .align 4 .b8 table[4] = {1,2,3,4};
"""


def test_every_byte_of_the_corpus_is_white_space_a_comment_or_a_known_statement(corpus: dict[str, str]) -> None:
    for name, text in corpus.items():
        module = read(text)
        assert module.entries, name
        at = 0
        for kind, start, end in module.statements:
            assert kind != OTHER, (name, text[start:end])
            assert not without_comments(text[at:start]).strip(), (name, text[at:start])
            at = end
        assert not without_comments(text[at:]).strip(), name


def test_statements_and_what_stands_between_make_the_text_again(corpus: dict[str, str]) -> None:
    for text in corpus.values():
        module = read(text)
        copies = [(start, end, text[start:end]) for _, start, end in module.statements]
        assert splice(text, copies) == text
        assert splice(text, []) == text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='.;{}/*"\\ \n@!%$:,[]()abrk0_entryfuncloc', max_size=120))
def test_any_text_is_cut_without_loss_or_refused_with_its_line(text: str) -> None:
    try:
        module = read(text)
    except PtxError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith("line ")
        return
    ends = 0
    for _, start, end in module.statements:
        assert start >= ends
        assert end > start
        ends = end


@pytest.mark.parametrize(
    "text",
    [
        "a" + " " * 200_000 + "b",
        "/* " * 70_000,
        '"' + "x " * 100_000,
        ".entry k (" * 20_000,
        "$label " + "// c\n" * 40_000,
        "@ " * 100_000 + ";",
        ".section s { " * 20_000 + "}" * 20_000,
        "mov.u32 %r1, " + " " * 200_000 + "1 ;" * 2,
        ".file 1 " + "\\" * 100_000,
    ],
    ids=["spaces", "comments", "string", "heads", "label", "predicates", "sections", "operands", "backslashes"],
)
def test_text_that_is_never_closed_takes_time_in_proportion(text: str) -> None:
    begin = time.process_time()
    for whole in (text, SMALL.replace("ret;", text)):
        with contextlib.suppress(PtxError):
            instrument(whole)
    assert time.process_time() - begin < 2


def test_damaged_modules_are_marked_or_refused(some: dict[str, str]) -> None:
    texts = [text for text in some.values() if len(text) < 30_000]
    chance = random.Random(7)
    ends = {"marked": 0, "refused": 0}
    for _ in range(60):
        lines = chance.choice(texts).splitlines(keepends=True)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(lines))
            if chance.random() < 0.5:
                del lines[at : at + chance.randint(1, 30)]
            else:
                cut = chance.randrange(len(lines[at]) + 1)
                piece = chance.choice(["{", "}", ";", "/*", '"', "//", ":", "@", "bra ", "ret;", ","])
                lines[at] = lines[at][:cut] + piece + lines[at][cut:]
        try:
            instrument("".join(lines), Selection("all"))
            ends["marked"] += 1
        except PtxError:
            ends["refused"] += 1
    assert min(ends.values()) > 5


def test_odd_spacing_comments_and_future_instructions() -> None:
    module = read(ODD)
    assert [(f.name, f.is_entry) for f in module.functions] == [("k", True), ("f", False)]
    flow = Flow(module, module.entries[0])
    assert [own.opcode for own in flow.code] == ["add.u32", "bra", "bra", "future.op.v9", "ret", "exit"]
    assert [module.bare(i) for i, s in enumerate(module.statements) if s.kind == LABEL][:2] == ["$a:", "$b:"]
    assert flow.code[1].negated
    assert flow.unknown_branch is None
    assert module.directive("target") == "sm_90, texmode_independent"


def names(text: str) -> list[list[tuple[str, str, str, int | None]]]:
    """What there is to mark, without the numbers of lines of the PTX."""
    keys = ("kind", "resource", "arrivals")
    return [
        [(re.sub(r"ptx:\d+", "ptx", own["name"]), *(own[key] for key in keys)) for own in kernel.site_set["sites"]]
        for kernel in instrument(text, Selection("all")).kernels
        if kernel.site_set
    ]


def test_comments_between_all_tokens_lose_no_site_and_no_move(some: dict[str, str]) -> None:
    for name, text in some.items():
        bare = without_its_comments(text)
        odd = commented(bare)
        assert splice(odd, [(start, end, odd[start:end]) for _, start, end in read(odd).statements]) == odd
        assert names(odd) == names(bare), name
        moved = [[own.hoisted for own in instrument(each).kernels] for each in (bare, odd)]
        assert moved[0] == moved[1], name
        assert read(odd).files == read(bare).files


@pytest.mark.parametrize(
    "directive",
    [
        ".loc 1 /* c */ 5 0",
        ".loc 0x1 5 0",
        ".loc 01 5 0x3",
        ".loc 1U 5 0",
        ".loc\n1\n5\n0",
        ".loc // ;\n 1 5 0",
        ".loc 1 5 0, function_name $a /**/+/**/0x0, inlined_at /**/1 0x2 3",
        '# 3 "a.c"',
        "#line 3",
        ".future 3",
        ".future.v2 {1, 2}, [3]",
        ".loc 1 5",
        ".future .b8 x[2] = {\n1, 2 };",
    ],
)
def test_a_wait_behind_a_directive_is_seen_whatever_the_directive_looks_like(directive: str) -> None:
    text = SMALL.replace("\tret;", f"\t{directive}\n\tbar.sync 0;\n\tret;").replace("{\n", "{\n.loc 1 2 3\n", 1)
    text = text.replace(".visible", '.file 1 "a.cu"\n.visible')
    kernel = instrument(text).kernels[0]
    assert kernel.site_set is not None
    assert [site["resource"] for site in kernel.site_set["sites"] if site["kind"] == "wait"] == ["barrier 0"]
    unknown = [line for line in kernel.left_out if "is not known: nothing on its line is marked" in line]
    assert len(unknown) == (".future" in directive or directive == ".loc 1 5")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".target sm_90", ".target // c\n sm_90"),
        (".address_size 64", ".address_size/**/64"),
        (".visible", '.file /*c*/ 1 "a"\n.visible'),
        (".visible", '.file 1 "a.cu", 0x10, 20\n.visible'),
        (".visible", '.file 0x1 "a.cu" /**/, /**/ 1 // "\n , 20\n.visible'),
        (".visible", '.section .x\n{ // " {\n.b8 1\n}\n.visible'),
        (".visible", ".section /*{*/ .x /*}*/ { .b8 1 /* } */ }\n.visible"),
        (".visible", '.section .x, "a"\n{\n.b8 1\n}\n.visible'),
        (".visible", ".future\n.visible"),
        (".visible", ".future {\n.inner 1\n}\n.visible"),
        (".version", "/* c */ .version"),
    ],
)
def test_a_module_with_odd_directives_in_front_of_its_kernel_is_read(old: str, new: str) -> None:
    module = read(SMALL.replace(old, new))
    assert [entry.name for entry in module.entries] == ["k"]
    assert module.directive("target") == "sm_90"
    assert module.directive("address_size") == "64"
    assert instrument(SMALL.replace(old, new)).kernels[0].site_set


@pytest.mark.parametrize(
    ("head", "flat"),
    [
        (".reqntid 0x20", True),
        (".reqntid 32, 0x1 /* , 2 */, 01", True),
        (".reqntid 32 /* , 1 */ , 0x2", False),
        (".maxntid 0x40", True),
        (".maxntid 0x20, 0x20", False),
    ],
)
def test_sizes_of_blocks_are_read_in_all_bases(head: str, flat: bool) -> None:
    module = read(SMALL.replace("{", f"{head}\n{{", 1))
    assert Flow(module, module.entries[0]).one_dimensional() == flat


@pytest.mark.parametrize("declared", ["[4]", " [ 4 ]", "[0x4]", "/**/[/**/4/**/]", "[2][2]", "[2] /* ] */ [02]"])
def test_how_many_barriers_a_ring_has_is_read_in_all_forms(declared: str) -> None:
    body = f"""\t.shared .align 8 .b64 full{declared};
	.reg .pred %p<2>;
	mov.u32 %r0, full;
	mov.u32 %r3, %tid.x;
	add.u32 %r2, %r0, %r3;
	mbarrier.init.shared.b64 [full], 1;
	$w: mbarrier.try_wait.shared.b64 %p1, [%r2], %r1;
	@!%p1 bra $w;
	ret;"""
    kernel = instrument(SMALL.replace("\tret;", body)).kernels[0]
    assert kernel.site_set is not None
    assert "mbarrier full[4]" in [site["resource"] for site in kernel.site_set["sites"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALL.replace("ret;\n}", "ret;\n"), "line 5: this brace is never closed"),
        (SMALL + "}", "line 10: a closing brace without an opening one"),
        (SMALL.replace("ret;\n}", f"ret;\n{'{' * 100_000}{'}' * 100_000}}}"), "more than 256 braces within each other"),
        (SMALL.replace("ret;\n}", "ret;\n") + SMALL, "a function begins within another"),
    ],
)
def test_braces_that_do_not_match_are_told_with_their_line(text: str, words: str) -> None:
    with pytest.raises(PtxError, match=words):
        read(text)


def test_places_of_inlined_code_are_those_of_the_kernel(corpus: dict[str, str]) -> None:
    module = read(corpus["triton_3.6.0_layer_norm_90"])
    flow = Flow(module, module.entries[0])
    files = {module.files[own.place[0]] for own in flow.code if own.place[1]}
    assert files == {"src/triton_kernels.py"}
    assert sum(s.kind == STATEMENT for s in module.statements) > len(flow.code)


MANY = "9" * 5000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\tret;", f"\t.loc 1 {MANY} 1\n\t.loc {MANY} 1 1\n\t.loc 1 1 {MANY}\n\tret;"),
        ("\tret;", f"\t.loc 1 1 1, function_name $x, inlined_at {MANY} 1 1\n\tret;"),
        ("\tret;", f"\t.loc 1 1 1 // a.py:1:1 @[ a.py:{MANY}:1 ]\n\tret;"),
        (".visible", f'.file {MANY} "a.py"\n.const .b8 c[{MANY}];\n.visible'),
    ],
    ids=["loc", "inlined", "outer", "file"],
)
def test_numbers_of_thousands_of_digits_are_passed_over(old: str, new: str) -> None:
    found = instrument(SMALL.replace(old, new).replace(".visible", '.file 1 "a.py"\n.visible', 1))
    assert found.kernels[0].site_set is not None
    assert MANY in found.text


def test_a_gpu_of_thousands_of_digits_is_none() -> None:
    with pytest.raises(PtxError, match=r"or no \.target with a GPU"):
        instrument(SMALL.replace("sm_90", f"sm_{MANY}"))


@pytest.mark.parametrize(
    ("declared", "space"),
    [
        ("", "const"),
        (".const .align 4 .b8 c[65280];", "const"),
        (".visible .const .align 4 .b8 c[65281];", "global"),
        (".const .v4 .f32 c[4081];", "global"),
        (".const .b64 c[02][0x1000];", "global"),
        (f".const .b8 c[{'9' * 5000}];", "global"),
        (".const .b32 c[] = {" + "1," * 16383 + "1};", "global"),
        (".const .b32 c[65536] ".replace(".const", "// .const"), "const"),
        (".global .b8 c[4] = {1, 2, 3, 4}; /* .const .b8 d[65536]; */", "const"),
    ],
)
def test_the_descriptor_stands_in_constant_memory_where_there_is_room(declared: str, space: str) -> None:
    found = instrument(SMALL.replace(".visible", f"{declared}\n.visible"))
    assert f".visible .{space} .align 8 .b8 warplens_device[" in found.text


@pytest.mark.parametrize(
    "body",
    [
        "//" + ".const " * 12_000 + "\nbar.sync 0; ret;",
        f".loc 1 1 1 mov.u32 %r1,0;{' ' * 200}" * 6_000 + "ret;",
        "".join(f"L{i}: bra L{i + 1};\n" for i in range(10_000)) + "L10000: ret;",
    ],
    ids=["constants in a comment", "lines on one line", "a chain of branches"],
)
def test_large_kernels_take_time_in_proportion(body: str) -> None:
    text = SMALL.replace("ret;", body)
    begin = time.process_time()
    assert instrument(text).kernels[0].site_set is not None
    assert time.process_time() - begin < 2


def test_a_block_dominates_what_is_not_reached_without_it(corpus: dict[str, str]) -> None:
    text = re.sub(r"ret;(?!.*ret;)", "ret; bra $no; $no: ret;", corpus["nvcc_sm_80"], flags=re.DOTALL)
    module = read(corpus["nvrtc_sm_90a"] + text)
    for flow in (Flow(module, entry) for entry in module.entries):
        _check_dominance(flow)
    assert any(len(flow.blocks) > len(flow.reached) for flow in (Flow(module, entry) for entry in module.entries))


def _check_dominance(flow: Flow) -> None:
    for first in range(len(flow.blocks)):
        seen, pending = {first}, [0] if first else []
        while pending:
            block = pending.pop()
            if block not in seen:
                seen.add(block)
                pending += flow.blocks[block].after
        for then in range(len(flow.blocks)):
            led = first in flow.reached and then in flow.reached and then not in seen
            assert flow.dominates(first, then) == (then == first or led), (first, then)
