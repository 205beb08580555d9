"""Several traces as one: nothing is lost, sites and launches are found again, times keep their distances."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from tests.synthesis import fake_recording
from warplens.cli import main
from warplens.errors import UsageError
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.trace.merge import merge


def recorded(launches: int, *, seed: int, phases: int = 4) -> Trace:
    return Trace.from_recording(fake_recording(blocks=6, warps=2, phases=phases, launches=launches, seed=seed))


def test_launches_of_all_traces_stand_side_by_side(tmp_path: Path) -> None:
    first, second = recorded(2, seed=1), recorded(3, seed=2)
    merge([first, second]).save(tmp_path / "both.wlens")
    both = open_trace(tmp_path / "both.wlens")
    assert both.launches["launch"].to_list() == [0, 1, 2, 3, 4]
    for name in ("blocks", "spans"):
        for trace, low, high in ((first, 0, 2), (second, 2, 5)):
            own = getattr(both, name).filter(pl.col("launch").is_between(low, high - 1))
            alone = getattr(trace, name)
            assert own.drop("launch", "start_ns", *(["end_ns"] if name == "blocks" else [])).equals(
                alone.drop("launch", "start_ns", *(["end_ns"] if name == "blocks" else []))
            )
            moved = (own["start_ns"] + both.origin_ns) - (alone["start_ns"] + trace.origin_ns)
            assert moved.unique().to_list() == [0]
    assert both.sites.height == 4
    assert [entry["first"] for entry in both.manifest["merged"]] == [0, 2]


def test_sets_of_sites_that_only_one_trace_has_keep_their_rows() -> None:
    first, second = recorded(1, seed=1), recorded(1, seed=2)
    (own,) = second.manifest["site_sets"]
    own["name"] = "other"
    second.manifest["kernels"][0]["site_set"] = "other"
    both = merge([first, second])
    named = both.spans.join(both.sites, on="site").group_by("launch", "site_set").len().sort("launch")
    assert named["site_set"].to_list() == ["rmsnorm", "other"]


def test_two_different_sets_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two different sets of sites"):
        merge([recorded(1, seed=1), recorded(1, seed=2, phases=5)])
    odd = recorded(1, seed=2, phases=5)
    odd.path = Path("odd.wlens")
    with pytest.raises(UsageError, match=r"that of odd\.wlens differs from one before it"):
        merge([recorded(1, seed=1), odd])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])


def test_a_merged_trace_says_that_nothing_aligned_its_clocks() -> None:
    both = merge([recorded(1, seed=1), recorded(1, seed=2)])
    assert both.problems.filter(pl.col("kind") == "clocks_not_aligned").height == 1


def test_the_command_takes_each_file_once(tmp_path: Path) -> None:
    for number in (1, 2):
        recorded(1, seed=number).save(tmp_path / f"{number}.wlens")
    (tmp_path / "same.wlens").symlink_to(tmp_path / "1.wlens")
    output = tmp_path / "out.wlens"
    names = [str(tmp_path / name) for name in ("1.wlens", "2.wlens", "same.wlens")]
    twice = CliRunner().invoke(main, ["merge", "-o", str(output), *names])
    assert (twice.exit_code, output.exists()) == (2, False)
    assert "would be there twice" in twice.output
    assert CliRunner().invoke(main, ["merge", "-o", str(output), *names[:2]]).exit_code == 0
    assert open_trace(output).launches.height == 2


def test_a_merge_that_would_read_what_an_earlier_one_wrote_is_refused(tmp_path: Path) -> None:
    """`merge *.wlens -f -o all.wlens`, twice."""
    names = [str(tmp_path / f"{seed}.wlens") for seed in (1, 2)]
    for seed, name in enumerate(names, 1):
        recorded(1, seed=seed).save(Path(name))
    output = tmp_path / "all.wlens"
    assert CliRunner().invoke(main, ["merge", *names, "-o", str(output)]).exit_code == 0
    again = CliRunner().invoke(main, ["merge", *names, str(output), "-f", "-o", str(output)])
    assert (again.exit_code, "is read and written" in again.stderr) == (2, True)
    assert open_trace(output).launches.height == 2


def test_a_trace_and_what_was_merged_from_it_are_refused(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{seed}.wlens") for seed in (1, 2)]
    for seed, name in enumerate(names, 1):
        recorded(2, seed=seed).save(Path(name))
    both, again = tmp_path / "both.wlens", tmp_path / "again.wlens"
    assert CliRunner().invoke(main, ["merge", *names, "-o", str(both)]).exit_code == 0
    found = CliRunner().invoke(main, ["merge", str(both), names[1], "-o", str(again)])
    assert (found.exit_code, again.exists()) == (2, False)
    assert f"launch 0 of {names[1]} is launch 2 of {both}" in found.output.replace("\n", " ")
    with pytest.raises(UsageError, match="launch 0 of trace 1 is launch 0 of trace 0"):
        merge([recorded(1, seed=1), recorded(1, seed=1)])
