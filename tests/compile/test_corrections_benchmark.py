"""The benchmark of corrections before it meets a GPU: its kernels compile, its marks stay, its lines judge."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.machine_code import disassemble
from tests.unit.decode.test_corrections import TWO, facts, launch
from warplens.capture.compile import compile_cubin
from warplens.decode.corrections import estimate, measure

pytestmark = pytest.mark.compile

FOLDER = Path(__file__).parents[2] / "benchmarks"
KERNELS = {"rmsnorm 432": 5, "matmul": 6, "axpy": 4, "softmax": 7, "pipeline": 6}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = FOLDER / "corrections.py"
    if not path.is_file():
        pytest.skip("not a checkout: benchmarks/ is not installed")
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("corrections_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "corrections_benchmark", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_compiles_with_marks_off_on_doubled_and_alone(name: str, arch: str, benchmark: ModuleType) -> None:
    (case,) = [case for case in benchmark.CASES if case.name == name]
    source = case.source.read_text(encoding="utf-8")
    off = case.kernel.replace("true", "false")
    clean = compile_cubin(source, [off], arch=arch)
    assert "SR_CLOCKLO" not in "\n".join(disassemble(clean.cubin, clean.names[off]))
    texts = [source, *(benchmark.marks_kept(source, site) for site in case.alone)]
    assert len(texts) == 1 + len(case.alone)
    for text in texts:
        for copies in (0, 2):
            compiled = compile_cubin(text, [case.kernel], arch=arch, options=[f"-DWARPLENS_MARKS={copies}"])
            assert "warning" not in compiled.log
            code = "\n".join(disassemble(compiled.cubin, compiled.names[case.kernel]))
            assert code.count("SR_CLOCKLO") >= 2


def test_a_site_alone_keeps_the_first_mark_the_next_one_and_a_wait_before_it(benchmark: ModuleType) -> None:
    source = "".join(
        f"  rec.{verb}(s::{name});\n  work_{name}();\n"
        for verb, name in [("phase", "a"), ("phase", "b"), ("wait", "c"), ("phase", "d"), ("phase", "e")]
    )

    def kept(site: str) -> list[str]:
        return [name for _, name in benchmark.MARK_LINE.findall(benchmark.marks_kept(source, site))]

    assert kept("b") == ["a", "b", "c"]
    assert kept("d") == ["a", "c", "d", "e"]
    assert benchmark.marks_kept(source, "d").count("work_") == 5


class FakeKernel:
    """Stands for `warplens.Kernel`: the synthetic kernel, each capture of which lives longer by `slower` cycles in the
    two-mark build than the one before."""

    def __init__(self, slower: int, indirect: int, *, bare: bool = True) -> None:
        self.slower, self.indirect, self.bare, self.captures = slower, indirect, bare, 0

    def capture(self, *_: Any, rounds: int, **options: Any) -> Any:
        assert options["audit"] is False
        made = facts(policy="packed", built_for_loops=False, register_limit=None)
        once, twice = (measure(launch(n, slow=self.indirect), facts(), copies=n) for n in (1, 2))
        two = measure(launch(1, work=TWO, slow=self.slower * self.captures), facts())
        self.captures += 1
        found = estimate(
            [once] * rounds, [twice] * rounds, [two] * rounds if self.bare else [], not_anchored="no build"
        )
        made["kernels"][0]["corrections"] = {"not_measured": None, **found}
        return SimpleNamespace(manifest=made, records={})


def run(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    output: Path,
    kernels: list[Any],
    *more: str,
    names: tuple[str, ...] = ("synthetic",),
    alone: tuple[str, ...] = (),
) -> tuple[int, Any]:
    """The exit code and the JSON of the benchmark, where the builds are those kernels (or errors) in turn."""

    def build(*_: Any, **__: Any) -> Any:
        made = kernels.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    torch = SimpleNamespace(manual_seed=lambda _: None, cuda=SimpleNamespace(synchronize=lambda: None))
    source = output.with_name("k.cu")
    source.write_text("  rec.phase(s::load);\n  rec.wait(s::wait);\n  rec.phase(s::store);\n")
    cases = tuple(benchmark.Case(name, source, "k<true>", 1, 32, lambda _: [], alone) for name in names)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(benchmark, "CASES", cases)
    monkeypatch.setattr(benchmark, "build", build)
    monkeypatch.setattr(benchmark, "described", lambda command, *_, **__: {"command": command, "device": {}})
    monkeypatch.setattr(sys, "argv", ["corrections.py", "-o", str(output), *more])
    return benchmark.main(), json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("slower", "indirect", "failing"),
    [
        (0, 0, set()),
        # Phases that any marks make 20 cycles longer: 60 of 1600 are shared out, and the sum is that of two marks.
        (0, 20, set()),
        # Lives with two marks of 1540 and 1600: the anchor of one is 3.75 % off the other's life, and phases differ by
        # as much, more than what was shared out of the first (nothing) and less than what was of the second.
        (60, 0, {"sum", "repeated"}),
    ],
)
def test_the_lines_pass_where_repetitions_agree_and_fail_where_they_do_not(
    slower: int,
    indirect: int,
    failing: set[str],
    benchmark: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = run(benchmark, monkeypatch, tmp_path / "c.json", [FakeKernel(slower, indirect)])
    printed = capsys.readouterr().out
    assert ("all that is asked holds" in printed) == (not failing) == (code == 0)
    (entry,) = found["cases"]
    assert {what for what, line in entry["lines"].items() if not line["passed"]} == failing
    assert set(entry["lines"]) == {"sum", "doubled", "repeated"}
    assert set(found["overall"]) == {"doubled", "covered"}
    ratios = entry["lines"]["sum"]["numbers"]["corrected_cycles"]
    assert ratios == pytest.approx([1540 / (1540 + slower), (1540 + slower) / 1540], abs=1e-4)


def test_a_phase_alone_that_differs_by_more_than_was_shared_out_counts_as_not_covered(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # wait: 200 and 20 that no copy tells, of which the anchor takes 8.25 away, against 200 of the other kernel.
    kernels = [FakeKernel(0, 20), FakeKernel(0, 0)]
    _, found = run(benchmark, monkeypatch, tmp_path / "c.json", kernels, alone=("wait",))
    rows = found["cases"][0]["lines"]["alone"]["numbers"]
    assert [(row["one"], row["other"], row["shared"]) for row in rows] == [(211.75, 200, 8.25)] * 2
    assert found["overall"]["covered"]["found"].endswith("of 8 (75 %), by chance alone 6")


def test_a_case_without_an_anchor_fails_and_tells_why(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run(benchmark, monkeypatch, tmp_path / "c.json", [FakeKernel(0, 0, bare=False)])
    assert code == 1
    assert "not anchored: no build" in capsys.readouterr().out


def test_what_cannot_be_measured_fails_and_says_why_and_the_others_are_told(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = [TypeError("no such kernel"), FakeKernel(0, 0), RuntimeError("nor alone"), FakeKernel(0, 0)]
    names = ("one", "two", "three")
    kernels += [FakeKernel(0, 0)]
    code, found = run(benchmark, monkeypatch, tmp_path / "c.json", kernels, names=names, alone=("wait",))
    assert code == 1
    printed = capsys.readouterr().out
    assert "not measured: TypeError: no such kernel" in printed
    assert "wait not measured: RuntimeError: nor alone" in printed
    assert [case["case"] for case in found["cases"]] == ["two", "three"]
    assert list(found["not_measured"]) == ["one"]


def test_cases_that_would_end_too_late_are_told_as_not_run(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    kernels = [FakeKernel(0, 0)]
    code, found = run(benchmark, monkeypatch, tmp_path / "c.json", kernels, "--seconds", "50", names=("one", "two"))
    assert code == 0
    assert found["not_run"] == ["two"]
    printed = capsys.readouterr().out
    assert "two            not run" in printed
    assert "all that is asked holds of what was run" in printed
