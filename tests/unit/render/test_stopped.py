"""What is shown of a kernel that was stopped: summary, facts, info, exit code; also from a file of tables alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import live, synthesis
from warplens.cli import main
from warplens.render.stopped import SITES_SHOWN, last_sites, last_sites_table, stopped_text
from warplens.render.trust import trust_lines
from warplens.trace import Trace


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "stopped.wlens"
    Trace.from_recording(live.stopped_recording(6, whole_blocks=2)).save(path)  # tables alone
    return path


def warplens(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120"})
    return done.exit_code, done.stdout


def test_the_summary_begins_with_why_and_where_and_ends_with_exit_code_4(path: Path) -> None:
    code, text = warplens("summary", path)
    assert code == 4
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1].startswith("BAD kernel the kernel was stopped after 2 s: it had not ended by the time-out;")
    at = lines.index("last seen in warps the first")
    assert lines[at + 1 : at + 4] == ["b 4 block 2 warp 1", "c 12 block 2 warp 0", "(ended) 8 block 0 warp 0"]
    assert "losses not known: the kernel was stopped before its count could be read" in text.replace("  ", "")


def test_the_summary_as_json_has_the_same_facts(path: Path) -> None:
    code, text = warplens("summary", path, "--json")
    facts = json.loads(text)
    assert (code, facts["exit_code"]) == (4, 4)
    assert facts["stopped"]["after_s"] == live.AFTER_S
    assert facts["stopped"]["last_sites"] == [
        {"site": "b", "warps": 4, "block": 2, "warp": 1},
        {"site": "c", "warps": 12, "block": 2, "warp": 0},
        {"site": None, "warps": 8, "block": 0, "warp": 0},
    ]
    assert facts["trust"][0]["level"] == "BAD"


def test_info_says_that_the_kernel_was_stopped(path: Path) -> None:
    code, text = warplens("info", path)
    assert code == 0
    assert "INCOMPLETE: the kernel was stopped after 2 s: it had not ended by the time-out" in " ".join(text.split())
    assert json.loads(warplens("info", path, "--json")[1])["manifest"]["stopped"]["last"][0][:2] == [0, 0]


def test_losses_of_a_launch_before_the_one_that_was_stopped_are_known() -> None:
    recording = live.stopped_recording()
    recording.manifest["launches"].insert(0, recording.manifest["launches"][0] | {"records": "records/000001.u32"})
    trace = Trace.from_recording(recording)
    level = {launch: {t.label: t.level for t in trust_lines(trace, launch)}["losses"] for launch in (0, 1)}
    assert level == {0: "ok", 1: "note"}


def test_names_of_strangers_and_many_sites_stay_readable() -> None:
    recording = live.stopped_recording()
    sites = [{"id": i, "name": f"\x1b[31msite {i}", "kind": "phase", "resource": "", "file": "", "line": 0}
             for i in range(1, 31)]  # fmt: skip
    recording.manifest["site_sets"][0]["sites"] = sites
    recording.manifest["stopped"]["last"] = [[0, i, 0, i << 5] for i in range(1, 31)]
    trace = Trace.from_recording(recording)
    rows = last_sites(trace)
    assert len(rows) == 30
    assert rows[0]["site"] == "\\x1b[31msite 1"
    assert "…" in str(stopped_text(trace))
    assert last_sites_table(trace) is not None
    assert SITES_SHOWN < 30


def test_a_trace_of_a_kernel_that_ended_shows_nothing_of_this() -> None:
    trace = Trace.from_recording(synthesis.fake_recording())
    assert stopped_text(trace) is None
    assert last_sites_table(trace) is None
