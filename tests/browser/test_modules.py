"""The page's JavaScript in Node, and its types."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import warplens
from tests import synthesis
from tests.page import COLUMNS
from tests.unit.render import fake
from warplens.render.report import PAGE, report
from warplens.render.selection import Selection
from warplens.trace import Trace

pytestmark = pytest.mark.browser

RECORDINGS = Path(__file__).parents[2] / "recordings"


def run(tool: str, *arguments: str, **environment: str) -> str:
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed (see CONTRIBUTING.md)")
    command = [program, *arguments]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def far(trace: Any, shift: int) -> Any:
    """Block 1 a second or more later, and all beyond 2^53 ns."""
    later = (1 << 60) + pl.when(pl.col("block") == 1).then(shift).otherwise(0)
    spans = trace.spans.with_columns(pl.col("start_ns") + later, start_cycles=pl.col("start_cycles") + (1 << 60))
    return replace(trace, spans=spans, blocks=trace.blocks.with_columns(pl.col("start_ns", "end_ns") + later))


def test_modules_pass_their_tests_in_node(tmp_path: Path) -> None:
    lone = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    cases: dict[str, tuple[Any, list[int] | None]] = {
        "recording": (warplens.open(RECORDINGS / "rmsnorm_528x5120_h200.wlens"), list(range(0, 528, 25))),
        "nested": (Trace.from_recording(synthesis.nested_recording(blocks=3, warps=4, iterations=3, distinct=3)), None),
        "doubtful": (fake.doubtful(), None),
        "one_span": (replace(lone, spans=lone.spans.head(1)), None),
        "no_span": (replace(lone, spans=lone.spans.clear(), blocks=lone.blocks.clear()), None),
        "far": (far(fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1), 1 << 34), None),
    }
    for name, (trace, blocks) in cases.items():
        report(trace, tmp_path / f"{name}.html", selection=Selection(blocks=blocks))
        spans = trace.spans.select(COLUMNS)
        if blocks is not None:
            spans = spans.filter(pl.col("block").is_in(blocks))
        rows = [row | {k: str(row[k]) for k in ("start_ns", "start_cycles")} for row in spans.iter_rows(named=True)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    tests = [str(path) for path in sorted(Path(__file__).parent.glob("*.test.mjs"))]
    said = run("node", "--test", *tests, WARPLENS_PAGE=str(PAGE), WARPLENS_CASES=str(tmp_path))
    assert "fail 0" in said
    assert said.count("# Subtest: every field of every span") == len(cases)


def test_modules_pass_the_type_checker() -> None:
    assert run("tsc", "-p", str(PAGE / "tsconfig.json")) == ""
