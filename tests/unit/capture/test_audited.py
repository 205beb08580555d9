"""Asking nvdisasm: where there is none, or it fails, a recording says so and goes on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.sass import Ins, at, mark, text
from warplens.audit import COLUMNS
from warplens.capture import audited
from warplens.capture.compile import get_include
from warplens.errors import FileError, MissingDependencyError

SITES = [{"id": 1, "name": "load", "kind": "phase", "resource": "", "file": "k.cu", "line": 1}]


def program(path: Path, content: str) -> str:
    path.write_text(f"#!/bin/sh\n{content}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_nvdisasm_the_entry_says_so_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "find_nvdisasm", lambda: None)
    entry = audited.audit_builds((b"\x7fELF", "kernel"), None, SITES, {})
    assert entry["not_audited"].startswith("nvdisasm is not found")
    assert "pip install" in entry["not_audited"]
    assert entry["columns"] == {name: [] for name in COLUMNS}
    with pytest.raises(MissingDependencyError):
        audited.disassemble(b"")


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for nvdisasm")
def test_an_nvdisasm_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = program(tmp_path / "nvdisasm", "echo 'nvdisasm fatal: not a cubin' >&2; exit 1")
    monkeypatch.setattr(audited, "find_nvdisasm", lambda: tool)
    with pytest.raises(FileError, match="does not read this machine code: nvdisasm fatal: not a cubin"):
        audited.disassemble(b"nonsense")
    assert "not a cubin" in audited.audit_builds((b"nonsense", "kernel"), None, SITES, {})["not_audited"]


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for nvdisasm")
def test_what_nvdisasm_says_is_audited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, places=at(3))
    said = tmp_path / "said.sass"
    said.write_text(text([mark(2, verb_line=1), load, mark(4, verb_line=1), Ins("EXIT")]), encoding="utf-8")
    tool = program(tmp_path / "nvdisasm", f"cat {said}")
    monkeypatch.setattr(audited, "find_nvdisasm", lambda: tool)
    monkeypatch.setattr(audited, "ptx_lines", lambda _: [])
    source = "\n  rec.phase(s::load);\n\n  rec.phase(s::load);\n"
    entry = audited.audit_builds((b"", "kernel"), (b"", "kernel"), SITES, {"k.cu": source})
    assert entry["not_audited"] is None
    assert (entry["columns"]["site"], entry["columns"]["line"]) == ([0, 0], [2, 4])
    assert entry["columns"]["outstanding_loads"] == [0, 1]
    assert entry["facts"]["clean"] == entry["facts"]["traced"]


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for nvdisasm")
def test_of_a_module_with_several_kernels_nvdisasm_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, asked = tmp_path / "said.sass", tmp_path / "asked"
    kernels = [text([mark(2, verb_line=1), Ins("EXIT")], name) for name in ("first", "second")]
    said.write_text("".join(kernels), encoding="utf-8")
    tool = program(tmp_path / "nvdisasm", f"echo >> {asked}; cat {said}")
    monkeypatch.setattr(audited, "find_nvdisasm", lambda: tool)
    monkeypatch.setattr(audited, "ptx_lines", lambda _: [])
    for name in ("first", "second"):
        entry = audited.audit_builds((b"a module of two kernels", name), None, SITES, {"k.cu": "\n\n"})
        assert entry["not_audited"] is None
    assert asked.read_text(encoding="utf-8") == "\n"


def test_lines_are_asked_for_unless_the_options_do() -> None:
    assert audited.line_options(["-DX=1"]) == ("-lineinfo",)
    for option in ("-lineinfo", "--generate-line-info", "-G", "--device-debug"):
        assert audited.line_options([option]) == ()


def test_texts_of_a_recording_are_its_sources_and_the_headers_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "secret.h"
    other.write_text("secret", encoding="utf-8")
    find = audited.texts_of({"k.cu": "source"})
    assert find("/anywhere/k.cu") == "source"
    assert find(str(other)) is None
    header = Path(get_include(), "warplens", "warplens.cuh")
    assert find(str(header)) == header.read_text(encoding="utf-8")


def test_texts_of_a_cubin_are_regular_files_of_a_bearable_size(tmp_path: Path) -> None:
    find = audited.texts_of({})
    small, large = tmp_path / "small.cu", tmp_path / "large.cu"
    small.write_text("text", encoding="utf-8")
    large.write_bytes(bytes((1 << 20) + 1))
    assert find(str(small)) == "text"
    assert [find(str(path)) for path in (large, tmp_path, tmp_path / "none.cu", Path("/dev/zero"))] == [None] * 4
    assert find("zero\0byte") is None
