"""Line information of marks, and of kernels whose PTX names no lines of a source."""

from __future__ import annotations

import random
import re

import pytest

from tests.odd_ptx import without_lines
from tests.unit.instrument.test_hoist import ADD, USE, loop
from warplens import layout
from warplens.instrument import Mode, Selection, State, instrument
from warplens.instrument.read import LINE, STATEMENT, read

LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s")
FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)


WORK = f"{USE}; " * 9


def own_lines(marked: str) -> list[tuple[str, int]]:
    """Lines of marked PTX that are the kernels', each with its line in the PTX as it was."""
    files = dict(FILE.findall(marked))
    file, moved = "", 0
    out = []
    for number, line in enumerate(marked.split("\n"), 1):
        if found := LOC.match(line):
            file, moved = files[found[1]], int(found[2])
        elif line.startswith("}"):
            file = ""
        elif file == layout.PTX_FILE and line.strip():
            out.append((line.strip(), (number - moved) % layout.PTX_LINES))
    return out


CALLS = """.version 8.0
.target sm_90
.address_size 64
.func apart(.param .b32 n)
{
	ret;
}
.visible .entry k(.param .u64 n) { .reg .b32 %r<9>; bar.sync 0; /* so
	many lines */ bar.sync 1; .reg .b32 %x; mov.u32 %r1, %tid.x;
	call.uni apart, (%r1);
	bar.sync 2; @%p1 ret; ret; }
"""


@pytest.mark.parametrize("name", ["nvcc_sm_90a", "nvcc_sm_100a"])
@pytest.mark.parametrize("level", ["waits", "all"])
def test_in_ptx_without_lines_each_statement_is_known_by_its_own(corpus: dict[str, str], name: str, level: str) -> None:
    text = without_lines(corpus[name])
    clean = [line.strip() for line in text.split("\n")]
    found = own_lines(instrument(text, Selection(level)).text)
    assert len(found) > 600
    assert [(text, number) for text, number in found if clean[number - 1] != text] == []


def test_several_statements_on_a_line_and_other_pieces_keep_count() -> None:
    modes = {"k": Mode(Selection(), most_registers=64)}
    found = own_lines(instrument(CALLS, modes=modes).text)
    numbers = dict(found)
    assert ("ret;", 6) in found  # of the function that is called
    assert ("ret;", 11) in found
    assert numbers["bar.sync 0; /* so"] == 8
    assert numbers["call.uni apart, (%r1);"] == 10
    assert numbers["bar.sync 2;"] == 11


def laid_out(text: str, seed: int) -> str:
    """The same kernel with other white space and comments, and a number in each of its instructions."""
    chosen = random.Random(seed)
    out = []
    for number, (kind, start, end) in enumerate(read(text).statements):
        own = text[start:end]
        if kind == STATEMENT and not own.startswith("."):
            own = f"{own[:-1].replace(', ', chosen.choice([', ', f',{chr(10)}']))}/*#{number}*/;"
        breaks = ["\n", "\n\n"] if kind == LINE else [" ", "\n", "\n\n\n", " // c\n", " /* a\n;b */ "]
        out += [own, chosen.choice(breaks)]
    return "".join(out)


def numbered(text: str) -> dict[str, int]:
    """The line of each instruction with a number: in marked PTX that in the PTX as it was."""
    module = read(text)
    moved = 0
    out = {}
    for kind, start, end in module.statements:
        if found := LOC.match(text, start):
            moved = int(found[2])
        elif kind == STATEMENT and (named := re.search(r"/\*#(\d+)\*/", text[start:end])):
            out[named[1]] = (module.line(start) - moved) % layout.PTX_LINES
    return out


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("seed", range(8))
def test_however_ptx_is_laid_out_each_instruction_is_known_by_its_line(seed: int, state: State) -> None:
    """A statement over several lines that went ahead of a wait left those behind it at lines before their own."""
    text = laid_out(loop(f"bar.sync 0; {ADD}; {USE}; bar.sync 1; {WORK} {{ {USE}; }} {ADD}; {USE};"), seed)
    found = instrument(text, Selection("all"), state=state)
    assert found.kernels[0].hoisted or state in (State.SHARED, State.LOCAL)
    assert numbered(found.text) == numbered(text)


def test_with_lines_of_a_source_those_are_given_again(corpus: dict[str, str]) -> None:
    marked = instrument(corpus["triton_3.6.0_matmul_90"]).text
    assert own_lines(marked) == []
    place = re.compile(r"\.loc\s+1\s+\d+\s+\d+")
    assert set(place.findall(marked)) == set(place.findall(corpus["triton_3.6.0_matmul_90"]))


def test_the_files_of_marks_are_no_other_files(some: dict[str, str]) -> None:
    for text in some.values():
        files = FILE.findall(instrument(text).text)
        assert len(dict(files)) == len(files) == len(FILE.findall(text)) + 2


WRAPPED = """.version 8.0
.target sm_90
.address_size 64
.file 1 "wrapper.h"
.file 2 "matmul.hpp"
.file 3 "barrier.h"
.visible .entry k(.param .u64 n)
{{
	.reg .b32 %r<9>;
	.loc 1 5 1
	mov.u32 %r1, %tid.x;
{calls}	ret;
}}
$L__info_string0:
"""


def call(*lines: tuple[int, int], barrier: int) -> str:
    """A barrier that was inlined through calls at these places, file and line, and what it is called with."""
    chain = [*lines, (3, 7)]
    out = [f"\t.loc {file} {line} 1\n" for file, line in chain[:1]]
    for (file, line), (around, at) in zip(chain[1:], chain, strict=False):
        out.append(f"\t.loc {file} {line} 1, function_name $L__info_string0, inlined_at {around} {at} 1\n")
    work = "".join(f"\tadd.u32 %r{n}, %r1, {n};\n" for n in range(2, 9))
    return f"{''.join(out)}{work}\tbar.sync {barrier};\n"


def waits(text: str) -> list[str]:
    (kernel,) = instrument(text).kernels
    assert kernel.site_set is not None
    return [site["name"] for site in kernel.site_set["sites"] if site["kind"] == "wait"]


def test_sites_of_a_kernel_that_is_a_wrapper_have_lines_of_what_it_wraps() -> None:
    """The same barrier, called from two lines: where it is written would name both alike."""
    calls = call((1, 5), (2, 10), barrier=1) + call((1, 5), (2, 20), barrier=2)
    assert waits(WRAPPED.format(calls=calls)) == ["matmul.hpp:10 wait barrier 1", "matmul.hpp:20 wait barrier 2"]
    twice = "".join(call((1, 5), (2, 10), (2, line), barrier=line) for line in (3, 4))  # a wrapper in a wrapper
    assert waits(WRAPPED.format(calls=twice)) == ["matmul.hpp:3 wait barrier 3", "matmul.hpp:4 wait barrier 4"]


def test_a_template_that_calls_itself_where_it_stands_is_still_of_the_line_that_called_it() -> None:
    """As CUTE's do for each member of a tuple: the chain of calls to it was taken for a circle without a beginning."""
    deep = "".join(
        call((1, 5), (2, 10 * n), *[(3, 130)] * 40, barrier=n) + call((1, 5), (2, 10 * n), (3, 7), barrier=n + 2)
        for n in (1, 2)
    )
    assert waits(WRAPPED.format(calls=deep)) == [
        "matmul.hpp:10 wait barrier 1",
        "matmul.hpp:10 wait barrier 3",
        "matmul.hpp:20 wait barrier 2",
        "matmul.hpp:20 wait barrier 4",
    ]


def test_sites_of_any_other_kernel_have_its_own_lines() -> None:
    calls = call((1, 5), (2, 10), barrier=1) + call((1, 6), (2, 20), barrier=2)
    assert waits(WRAPPED.format(calls=calls)) == ["wrapper.h:5 wait barrier 1", "wrapper.h:6 wait barrier 2"]
    alone = "".join(call((1, 5), barrier=n) for n in (1, 2)).replace(".loc 3 7 1, f", "// f")
    assert waits(WRAPPED.format(calls=alone)) == ["wrapper.h:5 wait barrier 1", "wrapper.h:5 wait barrier 2"]
