"""Files that grow by launches: whole at their end, readable before it, and named as asked."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warplens
from tests.synthesis import FakeRecording, fake_recording
from warplens.trace.collect import DEFAULT_TEMPLATE, RANKED_TEMPLATE, collect, name_of
from warplens.trace.file import read_file
from warplens.trace.part import PartWriter


def write(folder: Path, launches: int = 3) -> tuple[PartWriter, dict[str, Any]]:
    parts = [fake_recording(blocks=4, warps=2, phases=4, seed=number) for number in range(launches)]
    begun = {**parts[0].manifest, "kernels": [], "launches": [], "complete": False, "process": {"pid": 5, "rank": 1}}
    writer = PartWriter(folder, "5")
    for part in parts:
        add(writer, begun, part)
    return writer, {**begun, "kernels": parts[0].manifest["kernels"], "complete": True}


def add(writer: PartWriter, begun: dict[str, Any], part: FakeRecording) -> None:
    launch = {k: v for k, v in part.manifest["launches"][0].items() if k != "records"}
    writer.add(begun, launch, part.manifest["kernels"][0], part.records["records/000000.u32"])


def test_a_part_opens_with_the_launches_that_are_whole(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "5.wlens.part"
    trace = warplens.open(path)
    assert (trace.launches.height, trace.manifest["complete"]) == (3, False)
    assert trace.spans.height == 3 * 4 * 2 * 4
    data = path.read_bytes()
    begun = data.index(b"records/000000.u32")  # the manifest stands in front of it
    counts = []
    for size in range(begun, len(data), 997):
        path.write_bytes(data[:size])
        counts.append(warplens.open(path).launches.height)
    assert counts == sorted(counts)
    assert counts[0] == 0


def test_a_finished_file_is_a_zip_with_each_name_once(tmp_path: Path) -> None:
    writer, manifest = write(tmp_path)
    path = writer.finish(manifest)
    assert path == tmp_path / "5.wlens"
    assert zipfile.ZipFile(path).testzip() is None
    names = zipfile.ZipFile(path).namelist()
    assert names == [f"records/{number:06d}.u32" for number in range(3)] + ["manifest.json"]
    assert warplens.open(path).launches.height == 3


def test_a_second_process_of_the_same_number_takes_another_name(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5-1.wlens.part", "5.wlens.part"]


def test_nothing_recorded_leaves_nothing(tmp_path: Path) -> None:
    assert PartWriter(tmp_path, "5").finish({}) is None
    assert list(tmp_path.iterdir()) == []


def test_parts_and_files_of_a_run_get_their_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer, manifest = write(run)
    writer.finish(manifest)
    write(run, launches=2)
    found = collect(run, str(tmp_path / "out.wlens"))
    assert [path.name for path in found.files] == ["out.wlens", "out-5.wlens"]
    assert [len(read_file(path).manifest["launches"]) for path in found.files] == [2, 3]
    assert found.failures == []


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer, manifest = write(run)
    path = writer.finish(manifest)
    assert path is not None
    shutil.copy(path, run / "6.wlens")
    (run / "7.wlens").write_bytes(b"PK\x03\x04 and nothing more")
    found = collect(run, str(tmp_path / "%p.wlens"))
    assert len(found.files) == 2
    assert len(found.failures) == 1


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("end", ["whole", "cut off"])
def test_a_file_that_is_there_is_written_over_with_force_alone(
    end: str, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def moved(path: Path, target: Path) -> None:
            if Path(path).parent != Path(target).parent:
                raise OSError(errno.EXDEV, "another file system")
            move(path, target)

        return moved

    if not links:
        monkeypatch.setattr(os, "link", across(os.link))
        monkeypatch.setattr(os, "replace", across(os.replace))
    mine = tmp_path / "5.wlens"
    mine.write_text("mine", encoding="utf-8")
    for force, names in ((False, ["5-5.wlens"]), (False, ["5-5-2.wlens"]), (True, ["5.wlens"])):
        run = tmp_path / "run"
        run.mkdir()
        writer, manifest = write(run, launches=1)
        if end == "whole":
            writer.finish(manifest)
        found = collect(run, str(tmp_path / "%p.wlens"), force=force)
        assert ([path.name for path in found.files], found.failures) == (names, [])
        assert (mine.read_bytes() == b"mine") is not force
        run.rmdir()  # nothing is left in it
    assert all(len(read_file(path).manifest["launches"]) == 1 for path in tmp_path.glob("*.wlens"))


@pytest.mark.parametrize(
    ("template", "ranked", "name"),
    [
        (DEFAULT_TEMPLATE, False, "warplens-a_out-12.wlens"),
        (DEFAULT_TEMPLATE, True, "warplens-a_out-12-rank3.wlens"),
        (RANKED_TEMPLATE, False, "warplens-a_out-12-rank3.wlens"),
        ("x-%r-%%-%p.wlens", True, "x-3-%-12.wlens"),
    ],
)
def test_names_are_made_of_program_process_and_rank(template: str, ranked: bool, name: str) -> None:
    assert name_of(template, {"pid": 12, "rank": 3, "program": "/x/a out.bin"}, ranked=ranked) == name


@pytest.mark.parametrize("value", ["../ESCAPED", -1, True, 1.5, None, [1]])
def test_a_process_or_rank_that_is_no_number_is_0_in_a_name(value: object) -> None:
    assert name_of(RANKED_TEMPLATE, {"pid": value, "rank": value}, ranked=True) == "warplens-program-0-rank0.wlens"


def test_source_texts_are_in_a_finished_file_as_far_as_they_fit(tmp_path: Path) -> None:
    writer, manifest = write(tmp_path)
    sources = {"a.cu": "// größe\n", "large.cu": "x" * (1 << 20), "b.cu": "b"}
    path = writer.finish({**manifest, "sources": sources})
    assert path is not None
    trace = warplens.open(path)
    assert dict(trace.sources) == {"a.cu": "// größe\n", "b.cu": "b"}
    assert trace.manifest["sources_left_out"] == ["large.cu"]
