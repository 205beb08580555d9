"""The page about what a mark measures shows what `warplens audit` prints. Needs NVRTC and nvdisasm, no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from warplens.capture.audited import LINE_INFO
from warplens.capture.compile import compile_cubin
from warplens.cli import main

pytestmark = pytest.mark.compile

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "what-a-mark-measures.md"
NAMES = ["blend_kernel<true>", "blend_kernel<false>"]


def blocks(kind: str) -> list[str]:
    if not PAGE.is_file():
        pytest.skip("not a checkout: docs/ is not installed")
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def printed(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(folder)
    Path("blend.cu").write_text(source, encoding="utf-8")
    options = [LINE_INFO, "-DWARPLENS_1D"]
    compiled = compile_cubin(source, NAMES, arch="sm_90a", options=options, filename="blend.cu")
    Path("blend.cubin").write_bytes(compiled.cubin)
    arguments = ["audit", "blend.cubin", "-k", "Lb1", "--clean", "Lb0"]
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def essence(lines: list[str]) -> list[tuple[str, ...]]:
    """What no version of the compiler changes: line, mark, loads under way and loads waited for; the findings."""
    rows = [re.match(r"0x\w+ +(\d+ +\S.*?) +(\d+)(?: +(\S.*))?$", line) for line in lines]
    found = [(*row[1].split(), row[2], *re.findall(r"LDG line \d+", row[3] or "")) for row in rows if row]
    return found + [(line,) for line in lines if line.startswith(("warning", "note"))]


def test_the_example_is_audited_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = blocks("text")[0].splitlines()
    lines = printed(blocks("cuda")[0], tmp_path, monkeypatch)
    assert essence(lines) == essence(shown)
    assert len(essence(shown)) == 6


def test_the_pin_makes_of_it_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, pin = blocks("cuda")
    loaded = "  const float4 b = y[i];\n"
    assert loaded in source
    lines = printed(source.replace(loaded, loaded + "  " + pin), tmp_path, monkeypatch)
    rows = [line for line in lines if line.startswith("0x")]
    assert essence(rows) == essence(blocks("text")[1].splitlines())
    assert len(rows) == 5
    assert not any(line.startswith("warning") for line in lines)
