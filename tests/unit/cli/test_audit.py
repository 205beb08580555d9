"""`warplens audit`: a trace's table, a cubin's, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import synthesis
from tests.sass import Ins, at, mark, text
from warplens.capture import audited, modules
from warplens.capture.modules import Resources
from warplens.cli import main
from warplens.errors import FileError
from warplens.trace import Trace

LOAD = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, places=at(3))
COLUMNS: dict[str, list[Any]] = {
    "site": [0, 1, None],
    "verb": ["phase", "wait", "end"],
    "file": ["k.cu", "k.cu", ""],
    "line": [12, 15, 0],
    "address": [0x60, 0x120, None],
    "outstanding_loads": [0, 3, None],
    "waits_on": ["", "2 LDG line 13", ""],
    "finding": ["3 loads of line 13 are \x1b[31mstill under way", "", ""],
    "severity": ["warning", "", ""],
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120"})


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    recording = synthesis.fake_recording()
    traced = {"instructions": 560, "loads": 4, "loads_in_flight": 1}
    clean = {"instructions": 192, "loads": 4, "loads_in_flight": 2}
    facts = {"traced": traced, "clean": clean}
    recording.manifest["kernels"][0]["audit"] = {"columns": COLUMNS, "facts": facts, "not_audited": None}
    Trace.from_recording(recording).save(tmp_path / "run.wlens")
    return tmp_path / "run.wlens"


@pytest.fixture
def cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that begins as a cubin; what nvdisasm and the symbols would say of it is put in their place."""
    code = [mark(2, verb_line=1), LOAD, mark(4, verb_line=1), Ins("EXIT")]
    said = text(code, "k_true") + text([LOAD, Ins("EXIT")], "k_false")
    (tmp_path / "k.cu").write_text("\n  rec.phase(s::load);\n\n  rec.phase(s::use);\n", encoding="utf-8")
    said = said.replace("/src/k.cu", str(tmp_path / "k.cu"))
    names = ("load", "use")
    sites = [
        {"id": n, "name": s, "kind": "phase", "resource": "", "file": "k.cu", "line": 1} for n, s in enumerate(names, 1)
    ]
    monkeypatch.setattr(audited, "disassemble", lambda _: said)
    monkeypatch.setattr(audited, "ptx_lines", lambda _: [])
    monkeypatch.setattr(modules, "read_site_sets", lambda _: [{"name": "s", "hash": 1, "sites": sites}])
    takes = {"k_true": Resources(90, 40, 16, 96, (256, 1, 1), True), "k_false": Resources(90, 32, 0, 64)}
    monkeypatch.setattr(modules, "resources_of", lambda _, name: takes[name])
    path = tmp_path / "a.cubin"
    path.write_bytes(b"\x7fELF and more")
    return path


def test_a_traces_audit_is_printed_with_both_builds_marks_and_findings(recorded: Path) -> None:
    result = run("audit", recorded)
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[1].startswith("instructions 192 -> 560, loads 4, loads in flight at most 2 -> 1, registers ")
    assert "(clean -> traced)" in " ".join(lines[:3])
    assert any(line.split()[:3] == ["0x0060", "12", "phase"] for line in lines)
    assert any("unknown" in line and " end " in line for line in lines)
    assert any(line.startswith("warning: k.cu:12 phase ") and "3 loads of line 13" in line for line in lines)
    assert "\x1b" not in result.stdout
    assert f"next: warplens summary {recorded}" in result.stderr


def test_json_holds_the_same_rows_with_the_names_of_their_sites(recorded: Path) -> None:
    (kernel,) = json.loads(run("audit", recorded, "--json").stdout)["kernels"]
    assert [row["line"] for row in kernel["rows"]] == [12, 15, 0]
    assert kernel["rows"][0]["name"]
    assert kernel["facts"]["clean"]["instructions"] == 192


def test_bulk_loads_stand_beside_the_loads_under_way(tmp_path: Path) -> None:
    recording = synthesis.fake_recording()
    facts = {"traced": {"instructions": 9, "loads": 0, "bulk_loads": 2}, "clean": None}
    columns = COLUMNS | {"bulk_loads": ["2 UTMALDG line 13", "", None]}
    recording.manifest["kernels"][0]["audit"] = {"columns": columns, "facts": facts, "not_audited": None}
    Trace.from_recording(recording).save(tmp_path / "run.wlens")
    result = run("audit", tmp_path / "run.wlens")
    assert "0 and 2 UTMALDG line 13" in " ".join(result.stdout.split())
    assert "loads 0, bulk loads 2" in result.stdout


def test_findings_of_ptx_without_lines_of_a_source_name_those_of_the_ptx(tmp_path: Path) -> None:
    recording = synthesis.fake_recording()
    columns = COLUMNS | {"file": [""] * len(COLUMNS["file"])}
    recording.manifest["kernels"][0]["audit"] = {"columns": columns, "facts": None, "not_audited": None}
    Trace.from_recording(recording).save(tmp_path / "run.wlens")
    assert "warning: ptx:12 phase " in run("audit", tmp_path / "run.wlens").stdout


def test_a_trace_from_before_there_was_an_audit_says_so(tmp_path: Path) -> None:
    Trace.from_recording(synthesis.fake_recording()).save(tmp_path / "old.wlens")
    result = run("audit", tmp_path / "old.wlens")
    assert result.exit_code == 0
    assert "not audited: the file was recorded before there was an audit" in result.stdout


def test_a_kernel_of_a_cubin_is_audited_and_compared(cubin: Path) -> None:
    result = run("audit", cubin, "-k", "true", "--clean", "false", "--json")
    assert result.exit_code == 0, result.output
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert kernel["kernel"] == "k_true"
    assert [(row["name"], row["line"], row["outstanding_loads"]) for row in kernel["rows"]] == [
        ("load", 2, 0),
        ("use", 4, 1),
    ]
    assert "1 load of line 3 is still under way" in kernel["rows"][0]["finding"]
    assert kernel["facts"]["clean"] == {
        "instructions": 2,
        "loads": 1,
        "loads_in_flight": 1,
        "bulk_loads": 0,
        "registers": 32,
        "local_bytes": 0,
        "shared_bytes": 64,
        "resident_blocks": None,
    }
    assert kernel["facts"]["traced"]["resident_blocks"] == 6
    printed = " ".join(run("audit", cubin, "-k", "true", "--clean", "false").stdout.split())
    assert "registers 32 -> 40, shared B 64 -> 96, local B (spills) 0 -> 16, resident blocks an SM 6" in printed
    assert "resident blocks: of blocks of at most 256 threads, without shared memory that a launch asks for" in printed
    assert "resident blocks: not known, the kernel does not say" in run("audit", cubin, "-k", "false").stdout


def test_the_clean_build_may_stand_in_another_cubin(cubin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = cubin.with_name("clean.cubin")
    other.write_bytes(b"\x7fELF the clean one")
    said = audited.disassemble(b"")
    clean = text([LOAD, LOAD, Ins("EXIT")], "k_true") + text([Ins("EXIT")], "k_other")
    monkeypatch.setattr(audited, "disassemble", lambda own: clean if own == other.read_bytes() else said)
    options = ["audit", cubin, "-k", "true", "--clean-file", other, "--json"]
    (kernel,) = json.loads(run(*options).stdout)["kernels"]
    assert kernel["facts"]["clean"]["instructions"] == 3
    monkeypatch.setattr(modules, "resources_of", lambda *_: Resources(90, 32, 0, 64))
    (kernel,) = json.loads(run(*options, "--clean", "other").stdout)["kernels"]
    assert kernel["facts"]["clean"]["instructions"] == 1
    monkeypatch.setattr(audited, "disassemble", lambda own: text([LOAD], "j") if own == other.read_bytes() else said)
    result = run(*options)
    assert result.exit_code == 2
    assert "--clean-file: expected one kernel, 0 fit" in result.stderr
    (cubin.parent / "odd").write_text("nothing", encoding="utf-8")
    for odd in ("odd", "none"):
        assert run("audit", cubin, "-k", "true", "--clean-file", cubin.parent / odd).exit_code == 3


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--clean", "true"], "--clean: k_true is the traced kernel itself"),
        (["--clean-file", "{cubin}"], "--clean-file: k_true is the traced kernel itself"),
        (["--clean", "more"], "--clean: k_more is a kernel with marks"),
    ],
)
def test_a_clean_build_with_marks_is_refused(
    cubin: Path, options: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = audited.disassemble(b"") + text([mark(2, verb_line=1), LOAD, LOAD, Ins("EXIT")], "k_more")
    monkeypatch.setattr(audited, "disassemble", lambda _: said)
    result = run("audit", cubin, "-k", "true", *(own.format(cubin=cubin) for own in options))
    assert result.exit_code == 2
    assert f"{what}: name the build without marks" in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "expected one kernel, 2 fit; choose by --kernel REGEX:\n  k_true\n  k_false"),
        (["-k", "other"], "expected one kernel, 0 fit"),
        (["-k", "["], "is no regular expression"),
        (["-k", "true", "--sites", "t"], "--sites: expected one of s"),
    ],
)
def test_a_choice_that_is_none_is_refused_with_what_there_is(cubin: Path, options: list[str], says: str) -> None:
    result = run("audit", cubin, *options)
    assert result.exit_code == 2
    assert says in result.stderr


def test_the_set_that_is_named_after_the_kernel_is_the_kernels(cubin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = modules.read_site_sets(b"")
    both = [{**own, "name": "k_true"}, {**own, "name": "another", "sites": []}]
    monkeypatch.setattr(modules, "read_site_sets", lambda _: both)
    (kernel,) = json.loads(run("audit", cubin, "-k", "true", "--json").stdout)["kernels"]
    assert [row["name"] for row in kernel["rows"]] == ["load", "use"]
    refused = run("audit", cubin, "-k", "false")
    assert refused.exit_code == 2
    assert "k_false may have any of 2 sets of sites: choose by --sites k_true, another" in refused.stderr


def test_choosing_within_a_trace_is_refused(recorded: Path) -> None:
    result = run("audit", recorded, "-k", "x")
    assert result.exit_code == 2
    assert "choose within a cubin" in result.stderr


def test_files_that_are_neither_are_refused(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"nothing")
    for path in (odd, tmp_path / "none", tmp_path):
        assert run("audit", path).exit_code == 3
    assert "expected a trace (.wlens) or a cubin" in run("audit", odd).stderr
    broken = tmp_path / "broken.cubin"
    broken.write_bytes(b"\x7fELF")
    result = run("audit", broken)
    assert result.exit_code == 3
    assert "not a 64-bit ELF file" in result.stderr


def test_of_ptx_and_of_programs_it_says_where_their_cubins_come_from(tmp_path: Path, cubin: Path) -> None:
    """ELF's machine is 62 (x86-64) in a program, and 190 in a cubin."""
    ptx = tmp_path / "a b.ptx"
    ptx.write_text("// by hand\n.version 8.7\n.target sm_90a\n.address_size 64\n", encoding="utf-8")
    assert f"`ptxas -lineinfo -arch=sm_90a '{ptx}' -o '{tmp_path / 'a b.cubin'}'`" in run("audit", ptx).stderr
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\2\1\1".ljust(18, b"\0") + b"\x3e\0".ljust(46, b"\0"))
    for arguments in (["audit", program], ["audit", cubin, "-k", "k_true", "--clean-file", program]):
        result = run(*arguments)
        assert result.exit_code == 3
        assert f"found a program or library: `cuobjdump -xelf all {program}`" in result.stderr


def test_a_cubin_without_sites_or_one_that_nvdisasm_does_not_read_is_a_file_that_cannot_be_used(
    cubin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: bytes) -> str:
        raise FileError("nvdisasm does not read this machine code: it is damaged")

    monkeypatch.setattr(audited, "disassemble", refuses)
    damaged = run("audit", cubin)
    assert (damaged.exit_code, "does not read" in damaged.stderr) == (3, True)
    monkeypatch.setattr(modules, "read_site_sets", lambda _: [])
    without = run("audit", cubin)
    assert (without.exit_code, "declares no sites" in without.stderr) == (3, True)
