"""What the tutorials say that a query answers is what it answers."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from warplens.cli import main

DEMO = str(files("warplens") / "demo" / "rmsnorm_h200.wlens")
RING = "recordings/rmsnorm_ring_4096x5120_h200.wlens"


@pytest.mark.parametrize(
    ("query", "barrier", "answer", "recording"),
    [(0, "barrier", 0, DEMO), (0, "barrier_2", 1, DEMO), (1, "barrier", 2, DEMO), (2, "barrier", 3, RING)],
)
def test_queries_about_waits_answer_what_the_tutorial_shows(
    checkout: Path, query: int, barrier: str, answer: int, recording: str
) -> None:
    page = (checkout / "docs/tutorials/why-a-wait.md").read_text(encoding="utf-8")
    queries, answers = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S) for kind in ("sql", "text"))
    asked = queries[query].replace("'barrier'", f"'{barrier}'")
    result = CliRunner().invoke(main, ["query", str(checkout / recording), asked])
    assert result.exit_code == 0, result.stderr
    told = [line.split() for line in result.stdout.splitlines()]
    assert [line.split() for line in answers[answer].splitlines()] == told[:-1]
    assert told[-1][1] == "rows"
