"""Functions that a kernel calls: not marked, which is said by name, with the lines of their calls and their waits."""

from __future__ import annotations

import pytest

from warplens.instrument import calls, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import Function, Module

MODULE = """.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func far() { call.uni vprintf, (a, b); ret; }
.func again() { bar.sync 2; call.uni again; ret; }
.func (.param .b32 r) outer(.param .b32 a)
{
	cp.async.wait_all;
	call.uni again;
	ret;
}
.func quiet() { ret; }
.visible .entry k(.param .u64 n)
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.loc 1 7 0
	bar.sync 0;
	BODY
	ret;
}
.visible .entry other() { bar.sync 0; ret; }
.file 1 "/src/k.cu"
"""


def told(body: str) -> list[str]:
    kernel, other = instrument(MODULE.replace("BODY", body)).kernels
    assert other.left_out == []
    assert kernel.site_set is not None
    assert kernel.site_set["left_out"] == kernel.left_out
    return kernel.left_out


def test_each_function_is_named_with_the_lines_that_call_it() -> None:
    body = "call.uni quiet;\n\t.loc 1 9 0\n\t{ call (r0), outer, (p0); }\n\t.loc 1 12 0\n\tcall.uni quiet;"
    assert told(body) == [
        "call of quiet (k.cu:7, k.cu:12): what it does is not marked",
        "call of outer (k.cu:9): what it does is not marked, 2 waits among it",  # its own and that of what it calls
    ]


def test_what_is_not_in_the_module_may_do_anything_and_that_is_said() -> None:
    assert told("call (r0), vprintf, (a, b);") == [
        "call of vprintf (k.cu:7): it stands in another module and is not marked"
    ]
    assert told("call.uni far;") == [
        "call of far (k.cu:7): what it does is not marked, nor what it calls in other modules"
    ]
    assert told("call (r0), %rd1, (a), proto;\n\tcall %rd1, (a), proto;") == [
        "call through a pointer (k.cu:7): what is called there is not marked"
    ]


def test_a_function_that_calls_itself_is_looked_at_once() -> None:
    assert told("call.uni again;") == ["call of again (k.cu:7): what it does is not marked, 1 wait among it"]


def test_without_lines_of_a_source_those_of_the_ptx_are_told() -> None:
    text = MODULE.replace("BODY", "call.uni quiet;").replace("\t.loc 1 7 0\n", "")
    assert instrument(text).kernels[0].left_out == ["call of quiet (ptx:19): what it does is not marked"]


def test_long_lists_end_with_how_many_are_left() -> None:
    many = "\n\t".join(f"call.uni f{n};" for n in range(20))
    lines = told(many)
    assert len(lines) == 17
    assert lines[-1] == "4 more functions are called: none is marked"
    often = "\n\t".join(f".loc 1 {n} 0\n\tcall.uni quiet;" for n in range(10, 18))
    assert told(often) == [
        "call of quiet (k.cu:10, k.cu:11, k.cu:12, k.cu:13, k.cu:14, k.cu:15 and 2 more): what it does is not marked"
    ]


def test_each_function_is_looked_at_once_however_many_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [f".func f{n}() {{ bar.sync 0; {f'call f{n - 1}, ();' if n else ''} ret; }}" for n in range(40)]
    body = "\n".join(f"call f{n}, ();" for n in reversed(range(40)))
    looked: list[str] = []

    def counted(module: Module, function: Function) -> Flow:
        looked.append(function.name)
        return Flow(module, function)

    monkeypatch.setattr(calls, "Flow", counted)
    text = MODULE.replace(".visible .entry k", "\n".join([*chain, ".visible .entry k"])).replace("BODY", body)
    lines = instrument(text).kernels[0].left_out
    assert lines[0].endswith("what it does is not marked, 40 waits among it")
    assert lines[-1] == "24 more functions are called: none is marked"
    assert len(looked) == 40
