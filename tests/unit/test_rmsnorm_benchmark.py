"""The RMSNorm benchmark draws from its committed result, and what its page says is in that result. No GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
BENCHMARK = REPOSITORY / "benchmarks" / "rmsnorm"
RESULT = REPOSITORY / "benchmarks" / "results" / "rmsnorm.json"
REPEATS = REPOSITORY / "benchmarks" / "results" / "rmsnorm_repeats.json"
FLOAT64 = REPOSITORY / "benchmarks" / "results" / "rmsnorm_steps_float64.json"
pytestmark = pytest.mark.skipif(not BENCHMARK.is_dir(), reason="not a checkout: benchmarks/ is not installed")
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
STEPS = (
    "document",
    "weight_early",
    "one_barrier",
    "four_vectors",
    "ring",
    "bulk",
    "aligned",
    "overlap",
    "ahead",
    "direct",
    "shaped",
)
OVERLAPPING = STEPS[STEPS.index("overlap") :]
PEERS = {"torch", "Liger-Kernel", "QuACK", "FlashInfer"}


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    import importlib

    sys.path.insert(0, str(BENCHMARK))
    try:
        yield {name: importlib.import_module(name) for name in ("draw", "page")}
    finally:
        sys.path.remove(str(BENCHMARK))
        for name in ("draw", "page"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def result() -> Any:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def made(ns: dict[str, list[float]]) -> dict[str, Any]:
    """A result of one size with these times: one step and the peers and copy that they name."""
    facts = {name: {"step": 0} if name == "shaped" else {"version": "1"} for name in ns}
    return {"kernels": facts, "sizes": [{"rows": 4096, "hidden": 5120, "ns": ns}]}


def test_the_plots_are_drawn_from_the_committed_result(
    modules: dict[str, ModuleType], result: Any, tmp_path: Path
) -> None:
    paths = modules["draw"].plots(result, tmp_path)
    assert [path.name for path in paths] == ["rmsnorm_bandwidth.png", "rmsnorm_grid.png", "rmsnorm_gains.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)


def test_the_tables_of_the_page_are_those_of_the_committed_result(modules: dict[str, ModuleType], result: Any) -> None:
    text = modules["page"].PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- end of table -->") == 19
    assert modules["page"].rewritten(text, result) == text, "run python benchmarks/rmsnorm/run.py --draw"


def test_the_result_holds_all_sizes_with_five_rounds_or_more(result: Any) -> None:
    sizes = {(size["rows"], size["hidden"]) for size in result["sizes"]}
    assert sizes == {(rows, hidden) for rows in ROWS for hidden in (1024, 2048, 4096, 5120, 8192, 16384)}
    for size in (*result["sizes"], *result["cold"]):
        assert set(size["ns"]) >= {*PEERS, "copy", "shaped"}
        assert all(len(times) >= 5 for times in size["ns"].values())
    assert all(("step" in facts) == (name in STEPS) for name, facts in result["kernels"].items())


def test_what_the_page_claims_of_the_last_steps_is_in_the_result(modules: dict[str, ModuleType], result: Any) -> None:
    draw = modules["draw"]
    assert (STEPS[-1], "aligned") == (draw.BEST, draw.ALONE)
    sizes = draw.sizes_of(result, 5120)
    large = [size for size in sizes if size["rows"] >= 4096]
    assert min(draw.copy_fraction(size, draw.BEST) for size in large) >= 0.96
    assert min(draw.copy_fraction(size, draw.ALONE) for size in large) >= 0.96
    assert [size["rows"] for size in sizes if draw.lead(result, size, draw.BEST) <= 1] == []
    assert sum(draw.lead(result, size, draw.BEST) < 1 for size in result["sizes"]) == 4
    leads = {size["rows"]: draw.lead(result, size, draw.BEST) for size in sizes}
    assert (f"{leads[512]:.2f}", f"{leads[32768]:.3f}", min(leads)) == ("1.30", "1.007", 256)
    claimed = [f"{draw.copy_fraction(size, name):.1%}" for name in (draw.BEST, draw.ALONE) for size in large]
    text = " ".join(modules["page"].PAGE.read_text(encoding="utf-8").split())
    assert (min(claimed[:4], key=float_of), max(claimed[:4], key=float_of)) == ("100.0%", "102.7%")
    assert (min(claimed[4:], key=float_of), max(claimed[4:], key=float_of)) == ("96.5%", "98.5%")
    assert "100.0 to 102.7 %" in text
    assert "96.5 to 98.5 %" in text
    assert "a peer at four of 48 sizes" in text


def test_every_round_at_32768_rows_is_faster_than_every_round_of_the_fastest_peer_in_three_runs(
    modules: dict[str, ModuleType], result: Any
) -> None:
    draw = modules["draw"]
    repeats = json.loads(REPEATS.read_text(encoding="utf-8"))["runs"]
    assert len({run["created"] for run in (result, *repeats)}) == 3
    for run in (result, *repeats):
        assert run["device"]["name"] == "NVIDIA H200"
        size = draw.size_of(run, 32768, 5120)
        fastest = min(PEERS, key=lambda name: min(size["ns"][name]))
        assert max(size["ns"]["shaped"]) < min(size["ns"][fastest])
        for rows in ROWS:
            ns = draw.size_of(run, rows, 5120)["ns"]
            assert median(ns["shaped"]) < min(median(ns[peer]) for peer in PEERS)


def float_of(percent: str) -> float:
    return float(percent.rstrip("%"))


def test_every_step_after_the_first_has_a_prediction_or_says_why_not(modules: dict[str, ModuleType]) -> None:
    predictions = json.loads(modules["draw"].PREDICTIONS.read_text(encoding="utf-8"))
    assert [p["step"] for p in predictions] == list(STEPS[1:])
    for p in predictions:
        assert p["after"] in STEPS[: STEPS.index(p["step"])]
        assert p["reason"]
        if p["predicted_gain"] is not None:
            assert (REPOSITORY / p["from_trace"]).is_file()
        for also in p.get("also", []):
            assert also["after"] in STEPS[: STEPS.index(p["step"])]
            assert also["predicted_gain"] > 1


def test_every_step_was_checked_against_float64_in_both_types() -> None:
    found = json.loads(FLOAT64.read_text(encoding="utf-8"))
    assert [(f["step"], f["dtype"]) for f in found["steps"]] == [(s, d) for s in STEPS for d in ("bfloat16", "float16")]
    assert max(f["worst_ulps"] for f in found["steps"]) <= found["most_ulps"] == 0.52
    assert {f["chain_is_exact"] for f in found["steps"] if f["step"] in OVERLAPPING} == {True}
    assert {f["largest_hidden"] for f in found["steps"] if STEPS.index(f["step"]) >= 3} == {16384}


def test_recordings_of_steps_are_small() -> None:
    for step in STEPS:
        recordings = list((REPOSITORY / "recordings").glob(f"rmsnorm_{step}_*_h200.wlens"))
        assert f"rmsnorm_{step}_4096x5120_h200.wlens" in {path.name for path in recordings}
        assert all(path.stat().st_size < 150_000 for path in recordings)
    everything = sum(path.stat().st_size for path in (REPOSITORY / "recordings").iterdir())
    assert everything < 6 << 20


def test_leads_and_fractions_are_ratios_of_medians(modules: dict[str, ModuleType]) -> None:
    draw = modules["draw"]
    found = made({"shaped": [20.0, 10.0, 30.0], "A": [40.0], "B": [50.0, 25.0, 30.0], "copy": [15.0]})
    (size,) = found["sizes"]
    assert draw.best_peer(found, size) == "B"
    assert draw.lead(found, size, "shaped") == 1.5  # 30 / 20
    assert draw.copy_fraction(size, "shaped") == 0.75
    assert draw.gigabytes_per_second(size, "shaped") == 2 * 4096 * 5120 * 2 / 20
    assert draw.spread([10.0, 20.0, 30.0]) == 1.0
