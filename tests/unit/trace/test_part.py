"""Files that grow by launches: whole at their end, readable before it, and named as asked."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import warplens
from tests.synthesis import FakeRecording, fake_recording
from warplens.errors import FileError
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


def add_stopped(writer: PartWriter, begun: dict[str, Any], part: FakeRecording, why: str = "it hung") -> None:
    launch = {k: v for k, v in part.manifest["launches"][0].items() if k != "records"}
    stopped = {"why": why, "after_s": 2.0, "last": [], "from": "records"}
    manifest = {**begun, "stopped": stopped, "sources": {"k.cu": "// k"}}
    writer.add_stopped(manifest, launch, part.manifest["kernels"][0], part.records["records/000000.u32"])


def test_what_was_cut_off_keeps_its_name_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise FileError("cannot write it: No space left on device")

    (run := tmp_path / "run").mkdir()
    write(run)
    monkeypatch.setattr("warplens.trace.collect.write_file", full)
    found = collect(run, str(tmp_path / "run.wlens"))
    assert (list(found.files), found.failures) == ([tmp_path / "run.wlens.part"], [])
    trace = warplens.open(tmp_path / "run.wlens.part")
    assert (trace.launches.height, trace.manifest["complete"]) == (3, False)
    assert not list(run.iterdir())


@pytest.mark.parametrize("launches", [0, 2])
def test_a_launch_that_has_not_ended_is_the_last_one_and_the_file_stays_a_part(launches: int, tmp_path: Path) -> None:
    part = fake_recording(blocks=4, warps=2, phases=4)
    begun = {**part.manifest, "kernels": [], "launches": [], "complete": False}
    writer = PartWriter(tmp_path, "5")
    for _ in range(launches):
        add(writer, begun, part)
    add_stopped(writer, begun, part, "first")
    add_stopped(writer, begun, part, "second")  # takes the place of the first
    assert writer.finish(part.manifest) == tmp_path / "5.wlens.part"
    trace = warplens.open(tmp_path / "5.wlens.part")
    assert trace.launches.height == launches + 1
    assert trace.manifest["stopped"]["why"] == "second"
    assert trace.manifest["stopped"]["ended"] == 4 * 2
    assert dict(trace.sources) == {"k.cu": "// k"}
    found = collect(tmp_path, str(tmp_path / "run.wlens"))
    assert found.failures == []
    assert found.files[tmp_path / "run.wlens"]["stopped"]["why"] == "second"
    assert warplens.open(tmp_path / "run.wlens").launches.height == launches + 1


def test_a_launch_that_ended_after_all_takes_the_place_of_what_was_saved_of_it(tmp_path: Path) -> None:
    writer, manifest = write(tmp_path)
    begun = {**manifest, "kernels": [], "launches": [], "complete": False}
    for blocks in (40, 4):  # more than comes in its place, and as much
        add_stopped(writer, begun, fake_recording(blocks=blocks, warps=2, phases=4))
        add(writer, begun, fake_recording(blocks=4, warps=2, phases=4))
        trace = warplens.open(tmp_path / "5.wlens.part")
        assert trace.manifest["stopped"] is None
    path = writer.finish(manifest)
    assert path == tmp_path / "5.wlens"
    assert zipfile.ZipFile(path).testzip() is None
    assert warplens.open(path).spans.height == 5 * 4 * 2 * 4


def test_a_save_that_was_cut_off_leaves_the_launches_before(tmp_path: Path) -> None:
    writer, manifest = write(tmp_path)
    path = tmp_path / "5.wlens.part"
    whole = path.stat().st_size
    add_stopped(writer, {**manifest, "kernels": [], "launches": []}, fake_recording(blocks=4, warps=2, phases=4))
    data = path.read_bytes()
    for size in range(whole, len(data), 97):
        path.write_bytes(data[:size])
        trace = warplens.open(path)
        assert (trace.launches.height, trace.manifest["stopped"]) == (3, None)


def test_a_second_process_of_the_same_number_takes_another_name(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5-1.wlens.part", "5.wlens.part"]


def test_threads_may_add_launches_at_once(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "5")
    part = fake_recording(blocks=4, warps=2, phases=4)
    begun = {**part.manifest, "kernels": [], "launches": [], "complete": False}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: add(writer, begun, part), range(40)))
    path = writer.finish(part.manifest)
    assert path is not None
    assert warplens.open(path).spans.height == 40 * 4 * 2 * 4


CLOSES = """
import os, sys
from pathlib import Path
from tests.unit.trace.test_part import FileError, add, fake_recording, write
writer, manifest = write(Path("."), launches=1)
part = fake_recording(blocks=4, warps=2, phases=4)
os.closerange(3, 256)
own = [open(f"own{number}.txt", "w+") for number in range(40)]
sys.argv[1] == "add" and add(writer, manifest, part)
sys.argv[1] == "replaced" and (os.rename("5.wlens.part", "x"), Path("5.wlens.part").write_text("mine"))
try:
    writer.finish(manifest)
except FileError as error:
    print(error)
for file in own:
    file.write("mine"), file.close()
"""


@pytest.mark.parametrize(("mode", "launches"), [("add", 2), ("finish", 1), ("replaced", None)])
def test_files_of_a_program_that_closes_all_descriptors_are_its_own(
    mode: str, launches: int | None, tmp_path: Path
) -> None:
    root = str(Path(__file__).parents[3])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([root, f"{root}/src"])}
    command = [sys.executable, "-Wignore", "-c", CLOSES, mode]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.read_text(encoding="utf-8") for path in tmp_path.glob("own*.txt")} == {"mine"}
    if launches is None:
        assert done.stdout == "cannot write 5.wlens.part: another file has its name\n"
        assert (tmp_path / "5.wlens.part").read_text(encoding="utf-8") == "mine"
    else:
        assert warplens.open(tmp_path / "5.wlens").launches.height == launches


FORKS = """
import os, sys
from contextlib import suppress
from pathlib import Path
from tests.unit.trace.test_part import FileError, add, fake_recording, write
writer, manifest = write(Path("."), launches=1)
part = fake_recording(blocks=4, warps=2, phases=4)
waits, go = os.pipe()
if os.fork() == 0:
    os.close(go)
    os.read(waits, 1)
    with suppress(FileError):
        add(writer, manifest, part)
    sys.exit(0 if writer.finish(manifest) is None and writer.left is None else 1)
add(writer, manifest, part)
add(writer, manifest, part)
os.close(go)
status = os.waitstatus_to_exitcode(os.wait()[1])
writer.finish(manifest)
sys.exit(status)
"""


def test_a_child_of_fork_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([root, f"{root}/src"])}
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", FORKS], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["5.wlens"]
    assert zipfile.ZipFile(tmp_path / "5.wlens").testzip() is None
    assert warplens.open(tmp_path / "5.wlens").spans.height == 3 * 4 * 2 * 4


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """What is like a full disk, and can be had without mounting one. Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_full_disk_leaves_the_launches_that_were_whole(at_its_end: bool, tmp_path: Path) -> None:
    writer, manifest = write(tmp_path, launches=2)
    size = (tmp_path / "5.wlens.part").stat().st_size
    more = fake_recording(blocks=4, warps=2, phases=4, seed=9)
    with files_of_at_most(size + 100):
        with pytest.raises(FileError, match="File too large"):
            writer.finish(manifest) if at_its_end else add(writer, manifest, more)
        if not at_its_end:
            assert writer.finish(manifest) == tmp_path / "5.wlens.part"
        path = writer.left
        del writer
        gc.collect()  # a writer that tried again would warn, and warnings are errors
    assert path is not None
    left = warplens.open(path)
    assert (left.launches.height, left.manifest["complete"]) == (2, False)


def test_a_disk_that_was_full_at_once_leaves_nothing(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "5")
    part = fake_recording(blocks=4, warps=2, phases=4)
    with files_of_at_most(100), pytest.raises(FileError, match="File too large"):
        add(writer, part.manifest, part)
    assert writer.finish(part.manifest) is None
    assert list(tmp_path.iterdir()) == []


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
