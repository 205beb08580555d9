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
from tests.unit.decode.test_corrections import COST, WORK, facts, launch
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
def test_each_kernel_compiles_with_marks_off_on_doubled_and_alone(
    name: str, arch: str, benchmark: ModuleType, tmp_path: Path
) -> None:
    (case,) = [case for case in benchmark.CASES if case.name == name]
    source = case.source.read_text(encoding="utf-8")
    off = case.kernel.replace("true", "false")
    clean = compile_cubin(source, [off], arch=arch)
    assert "SR_CLOCKLO" not in "\n".join(disassemble(clean.cubin, clean.names[off], tmp_path))
    texts = [source, *(benchmark.marks_kept(source, site) for site in case.alone)]
    assert len(texts) == 1 + len(case.alone)
    for text in texts:
        for copies in (0, 2):
            compiled = compile_cubin(text, [case.kernel], arch=arch, options=[f"-DWARPLENS_MARKS={copies}"])
            assert "warning" not in compiled.log
            code = "\n".join(disassemble(compiled.cubin, compiled.names[case.kernel], tmp_path))
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
    """Stands for `warplens.Kernel`: the synthetic kernel, of which the builds with other marks are known."""

    def __init__(self, copies: int, cost: dict[int, int]) -> None:
        self.copies, self.cost = copies, cost

    def capture(self, *_: Any, launches: int = 1, correct: bool = True, **options: Any) -> Any:
        made = facts(policy="packed", built_for_loops=False, register_limit=None)
        work = WORK[:1] if self.copies == 0 else WORK
        if self.copies == 0:
            work = ((WORK[0][0], WORK[0][1], sum(cycles for _, _, cycles in WORK)),)
        once = launch(max(self.copies, 1), work=work, cost=self.cost[max(self.copies, 1)])
        if correct:
            twice = measure(launch(2, cost=self.cost[2]), facts(), copies=2)
            single = measure(once, facts())
            rounds = options["rounds"]
            made["kernels"][0]["corrections"] = {"not_measured": None, **estimate([single] * rounds, [twice] * rounds)}
            return SimpleNamespace(manifest=made, records={})
        entry = made["launches"][0]
        made["launches"] = [{**entry, "records": f"records/{i:06d}.u32"} for i in range(launches)]
        return SimpleNamespace(manifest=made, records={e["records"]: once for e in made["launches"]})


@pytest.mark.parametrize(
    ("cost", "code", "failing"),
    [
        ({1: COST, 2: COST, 3: COST}, 0, set()),
        ({1: COST, 2: COST, 3: 2 * COST}, 0, {"tripled"}),
        # Marks of the doubled build that cost nothing: then nothing is corrected, and 3 in 1540 is not 3 %.
        ({1: 60, 2: 30, 3: 60}, 1, {"sum", "tripled"}),
    ],
)
def test_the_lines_pass_where_costs_add_up_and_fail_where_they_do_not(
    cost: dict[int, int],
    code: int,
    failing: set[str],
    benchmark: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(case: Any, *options: str, source: str | None = None) -> FakeKernel:  # noqa: ARG001
        return FakeKernel(int(options[0][-1]) if options else 1, cost)

    torch = SimpleNamespace(manual_seed=lambda _: None, cuda=SimpleNamespace(synchronize=lambda: None))
    case = benchmark.Case("synthetic", Path("k.cu"), "k<true>", 1, 32, lambda _: [])
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(benchmark, "CASES", (case,))
    monkeypatch.setattr(benchmark, "build", build)
    monkeypatch.setattr(benchmark, "described", lambda command, *_, **__: {"command": command, "device": {}})
    output = tmp_path / "corrections.json"
    monkeypatch.setattr(sys, "argv", ["corrections.py", "-o", str(output)])
    assert benchmark.main() == code
    printed = capsys.readouterr().out
    assert ("all that is asked holds" in printed) == (code == 0)
    found = json.loads(output.read_text(encoding="utf-8"))
    (entry,) = found["cases"]
    assert {what for what, line in entry["lines"].items() if not line["passed"]} == failing
    assert set(entry["lines"]) == {"sum", "doubled", "tripled", "repeated"}


def test_what_cannot_be_measured_fails_and_says_why(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel")

    torch = SimpleNamespace(manual_seed=lambda _: None, cuda=SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(benchmark, "CASES", (benchmark.Case("one", Path("k.cu"), "k", 1, 32, lambda _: []),))
    monkeypatch.setattr(benchmark, "build", build)
    monkeypatch.setattr(benchmark, "described", lambda *_, **__: {"device": {}})
    monkeypatch.setattr(sys, "argv", ["corrections.py", "-o", str(tmp_path / "c.json")])
    assert benchmark.main() == 1
    assert "not measured: no such kernel" in capsys.readouterr().out
