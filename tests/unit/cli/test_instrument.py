"""`warplens instrument`: what it writes and says, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.instrument import test_thin as thin
from tests.unit.instrument.test_read import SMALL
from tests.unit.instrument.test_recorder import run as run_on_cpu
from warplens.cli import main

BARRIER = SMALL.replace("\tret;", "\tbar.sync 0;\n\tst.global.u32 [%r1], 1;\n\tret;")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120"})


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    path = tmp_path / "k.ptx"
    path.write_bytes(BARRIER.replace("\n", "\r\n").encode() + b"// \xff\n")
    return path


def test_it_writes_the_marked_module_and_lists_its_sites(ptx: Path) -> None:
    out = ptx.with_name("marked.ptx")
    done = run("instrument", ptx, "-o", out)
    assert done.exit_code == 0, done.output
    assert "ptx:8 wait barrier 0" in done.output
    assert "barrier 0" in done.output
    assert f"wrote {out}" in done.output
    data = out.read_bytes()
    assert b"warplens_sites_k" in data
    assert data.endswith(b"// \xff\n")
    assert b"\tbar.sync 0;" in data


def test_json_has_every_site(ptx: Path) -> None:
    done = run("instrument", ptx, "-o", ptx.with_name("b.ptx"), "--json", "--sites", "barrier")
    sites = json.loads(done.stdout)["kernels"][0]["sites"]
    assert [site["kind"] for site in sites] == ["phase", "wait", "phase"]
    assert sites[1]["resource"] == "barrier 0"


def test_comments_in_front_of_version_and_target_are_passed_over(ptx: Path) -> None:
    odd = (
        BARRIER.replace(".version", "/* c */ .version")
        .replace(".target", ".target // sm_70\n")
        .replace("sm_90", "sm_90a")
    )
    ptx.write_text(odd)
    done = run("instrument", ptx, "-o", ptx.with_name("b.ptx"))
    assert done.exit_code == 0, done.output
    assert "ptxas -lineinfo -arch=sm_90a " in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere.ptx", "-o", "b.ptx"), 3, "cannot open"),
        (("{ptx}", "-o", "{ptx}"), 2, "name another file"),
        (("{ptx}", "-o", "b.ptx", "-k", "("), 2, "no regular expression"),
        (("{ptx}", "-o", "b.ptx", "-k", "other"), 3, "there are k"),
        (("{ptx}",), 2, "--output"),
        (("k.cu", "-o", "b.ptx"), 3, "expected a PTX module, found no .version in it"),
        (("k.gz", "-o", "b.ptx"), 3, "found one that gzip has packed: gunzip it first"),
    ],
)
def test_what_cannot_be_done_ends_with_its_code(
    ptx: Path, arguments: tuple[str, ...], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ptx.parent)
    Path("k.cu").write_text("__global__ void k() {}\n", encoding="utf-8")
    Path("k.gz").write_bytes(gzip.compress(ptx.read_bytes()))
    done = run("instrument", *(part.format(ptx=ptx) for part in arguments))
    assert done.exit_code == code
    assert words in done.output
    assert not Path("b.ptx").exists()


def test_a_choice_of_sites_that_fits_none_is_told(ptx: Path) -> None:
    none, some = (run("instrument", ptx, "-o", ptx.with_name(f"{s}.ptx"), "--sites", s) for s in ("wgmma", "barrier"))
    assert (none.exit_code, some.exit_code) == (0, 0)
    assert "no site has a name that holds 'wgmma': begin and end alone are marked" in none.stderr
    assert "no site has" not in some.stderr


def test_a_file_that_is_there_is_written_over_with_f_alone(ptx: Path) -> None:
    out = ptx.with_name("notes.txt")
    out.write_text("notes")
    done = run("instrument", ptx, "-o", out)
    assert done.exit_code == 2
    assert "is there already: -f writes over it" in done.output
    assert out.read_text() == "notes"
    assert run("instrument", ptx, "-o", out, "-f").exit_code == 0
    assert b"warplens_sites_k" in out.read_bytes()
    assert run("instrument", ptx, "-o", ptx, "-f").exit_code == 2


def test_functions_that_a_kernel_calls_are_named_as_not_marked(ptx: Path) -> None:
    function = ".func f() { bar.sync 1; ret; }\n.visible .entry"
    ptx.write_text(BARRIER.replace(".visible .entry", function).replace("\tbar.sync 0;", "\tcall f;"))
    out = ptx.with_name("b.ptx")
    told = "call of f (ptx:9): what it does is not marked, 1 wait among it"
    assert f"note: {told}" in run("instrument", ptx, "-o", out).output
    done = run("instrument", ptx, "-o", out, "-f", "--json")
    assert json.loads(done.stdout)["kernels"][0]["left_out"] == [told]


def test_with_counts_of_a_first_run_events_stand_beside_sites_and_a_budget_is_kept(tmp_path: Path) -> None:
    first, ptx, out = tmp_path / "run.wlens", tmp_path / "k.ptx", tmp_path / "b.ptx"
    run_on_cpu(thin.KERNEL, turns=thin.TURNS).trace.save(first)
    ptx.write_text(thin.KERNEL)
    done = run("instrument", ptx, "-o", out, "--budget", "50", "--counts", first)
    assert done.exit_code == 0, done.output
    assert "events a launch, first run" in done.output
    assert "left out for the budget: ptx:15 wait barrier 1: 20 events a launch" in done.output
    assert "50 of 110 events a launch stay" in done.output
    done = run("instrument", ptx, "-o", out, "-f", "--json", "--budget", "50", "--counts", first)
    events = {site["name"]: site["events"] for site in json.loads(done.stdout)["kernels"][0]["sites"]}
    assert (events[thin.TWO], events[thin.FIRST]) == (20, 2)
    for arguments, words in (
        (("--budget", "5"), "--budget without --counts"),
        (("--counts", first), "--counts without --budget"),
        (("--budget", "lots", "--counts", first), "expected a part of the first run's events"),
        (("--budget", "5", "--counts", ptx), "k.ptx"),
    ):
        failed = run("instrument", ptx, "-o", out, "-f", *arguments)
        assert failed.exit_code in (2, 3)
        assert words in failed.output
