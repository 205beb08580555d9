"""The file: what is written comes back, and anything else is one clear error."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.corrections import corrections
from tests.synthesis import fake_recording
from warplens import layout
from warplens.errors import FileError, FormatError, VersionError
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.trace.file import FREE_EXPANSION_BYTES, read_file, write_file
from warplens.whole import whole_file

MEMBER = "records/000000.u32"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with records, tables and a source."""
    path = tmp_path_factory.mktemp("whole") / "a.wlens"
    Trace.from_recording(fake_recording(blocks=4, warps=2, sms=2)).save(path, records=True)
    return path.read_bytes()


def manifest_of(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        value: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return value


def rezipped(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """The file with its members changed, and its checksums right again."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def with_manifest(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    facts = manifest_of(data)
    change(facts)
    return rezipped(data, lambda members: members.update({"manifest.json": json.dumps(facts).encode()}))


def with_rows(facts: dict[str, Any], **rows: list[Any]) -> None:
    """Corrections of one row, with changes."""
    facts["kernels"][0]["corrections"] = found = corrections({1: 20.0})
    found["rows"] |= rows


def with_anchor(facts: dict[str, Any], **changes: Any) -> None:
    facts["kernels"][0]["corrections"] = found = corrections({1: 20.0}, factor=0.9)
    found["anchor"] |= changes


def read_all(path: Path) -> None:
    """Touches everything that a trace and its file can give."""
    trace = open_trace(path)
    for name in ("launches", "blocks", "spans", "sites", "problems"):
        getattr(trace, name)
    contents = read_file(path)
    for member in contents.records:
        contents.records[member]
    for source in contents.sources:
        contents.sources[source]


def test_all_members_come_back(tmp_path: Path) -> None:
    recording = fake_recording(blocks=3, warps=2, shuffled=False)
    recording.manifest["note"] = "M=4096, commit=abc"
    recording.manifest["unheard_of"] = {"kept": [1, 2, 3]}
    path = tmp_path / "a.wlens"
    tables = {"spans": b"PAR1", "clocks": b"PAR1x"}
    write_file(path, recording.manifest, records=recording.records, tables=tables, sources={"a/ä.cu": "// ü\n"})
    back = read_file(path)
    assert back.manifest["note"] == "M=4096, commit=abc"
    assert back.manifest["unheard_of"] == {"kept": [1, 2, 3]}
    assert list(back.records) == [MEMBER]
    assert np.array_equal(back.records[MEMBER], recording.records[MEMBER])
    assert {name: back.tables[name] for name in back.tables} == tables
    assert dict(back.sources) == {"a/ä.cu": "// ü\n"}


def test_chunks_are_kept_in_the_order_in_which_they_pack_best_and_tell_the_same(tmp_path: Path) -> None:
    """Warps take chunks as they come; a file of 22 launches of a matmul is a quarter smaller in this order."""
    recording = fake_recording(blocks=40, phases=30)
    own = recording.records[MEMBER]
    taken = own[np.random.default_rng(3).permutation(len(own))]
    path, stored = tmp_path / "a.wlens", tmp_path / "stored.wlens"
    write_file(path, recording.manifest, records={MEMBER: taken})
    write_file(stored, recording.manifest, records={MEMBER: taken}, pack=False)
    kept = read_file(path).records[MEMBER]
    place = list(zip(kept[:, 0].tolist(), (kept[:, 1] & 63).tolist(), kept[:, 3].tolist(), strict=True))
    assert place == sorted(place)
    assert sorted(map(bytes, kept)) == sorted(map(bytes, taken))
    assert np.array_equal(read_file(stored).records[MEMBER], taken)
    assert open_trace(path).spans.equals(open_trace(stored).spans)
    assert len(open_trace(path).spans)


def test_chunks_of_one_place_keep_their_order_in_a_file_and_grids_are_apart(tmp_path: Path) -> None:
    chunks = np.zeros((6, layout.CHUNK_WORDS), np.uint32)
    chunks[:, layout.WORD_GRID] = [9, 9, 4, 9, 4, 9]
    chunks[:, layout.WORD_BLOCK] = [1, 0, 3, 0, 2, 0]
    chunks[:, layout.WORD_SEQUENCE] = [0, 7, 0, 7, 0, 5]
    chunks[:, layout.HEADER_WORDS] = range(6)
    write_file(tmp_path / "a.wlens", fake_recording().manifest, records={MEMBER: chunks})
    kept = read_file(tmp_path / "a.wlens").records[MEMBER]
    assert kept[:, layout.HEADER_WORDS].tolist() == [4, 2, 5, 1, 3, 0]
    write_file(tmp_path / "none.wlens", fake_recording().manifest, records={MEMBER: chunks[:0]})
    assert read_file(tmp_path / "none.wlens").records[MEMBER].shape == (0, layout.CHUNK_WORDS)


def test_the_directory_is_read_once_however_many_members_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 2,000 launches took 12 s to open, and one of 4,000 four times as long."""
    own = fake_recording(shuffled=False)
    names = [f"records/{number:06}.u32" for number in range(40)]
    chunks = next(iter(own.records.values()))
    path = tmp_path / "many.wlens"
    write_file(path, own.manifest, records=dict.fromkeys(names, chunks))
    opened: list[Any] = []
    zip_file = zipfile.ZipFile

    def counted(*arguments: Any) -> zipfile.ZipFile:
        opened.append(arguments)
        return zip_file(*arguments)

    monkeypatch.setattr(zipfile, "ZipFile", counted)
    found = read_file(path)
    assert all(np.array_equal(found.records[name], chunks) for name in names)
    assert len(opened) == 1


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    recording = fake_recording(blocks=3, warps=2)
    for name in ("a.wlens", "b.wlens"):
        write_file(tmp_path / name, recording.manifest, records=recording.records)
    assert (tmp_path / "a.wlens").read_bytes() == (tmp_path / "b.wlens").read_bytes()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(b"old")
    recording = fake_recording(blocks=2, warps=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(FileError, match="No space left"):
        write_file(path, recording.manifest, records=recording.records)
    assert [p.name for p in tmp_path.iterdir()] == ["a.wlens"]
    assert path.read_bytes() == b"old"


def test_a_place_that_cannot_be_written_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        write_file(tmp_path / "absent" / "a.wlens", fake_recording(blocks=1, warps=1).manifest)


def test_sources_beyond_a_megabyte_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.wlens"
    sources = {"big.cu": "x" * (1 << 20), "small.cu": "y", "also_big.cu": "z" * 10}
    write_file(path, fake_recording(blocks=1, warps=1).manifest, sources=sources)
    back = read_file(path)
    assert list(back.sources) == ["big.cu"]
    assert back.manifest["sources_left_out"] == ["small.cu", "also_big.cu"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"PK", "begins with b'PK'"),
        (b"hello world" * 100, "begins with b'hell'"),
        (b"\x7fELF" + bytes(4000), "begins with"),
        (b"PK\x03\x04" + bytes(4000), "truncated"),
    ],
)
def test_files_that_are_no_zip_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=says) as caught:
        open_trace(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_missing_file_and_a_directory_are_file_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.wlens", tmp_path):
        with pytest.raises(FileError, match="cannot read"):
            open_trace(path)


def test_a_foreign_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wlens"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hi")
    with pytest.raises(FormatError, match=r"expected a \.wlens file with a manifest\.json"):
        open_trace(path)


def test_a_newer_major_version_is_refused_with_both_numbers_and_a_minor_one_opens(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(with_manifest(whole, lambda facts: facts.update(version=[2, 7])))
    with pytest.raises(VersionError, match=r"format 2\.7, this warplens reads up to 1\.1"):
        open_trace(path)
    path.write_bytes(with_manifest(whole, lambda facts: facts.update(version=[1, 99], new_key=3)))
    assert open_trace(path).manifest["new_key"] == 3


def test_a_file_cut_anywhere_is_one_clear_error(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    interesting = {*range(40), *range(0, len(whole), max(1, len(whole) // 150)), *range(len(whole) - 80, len(whole))}
    for size in sorted(interesting):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read_all(path)


def test_bits_flipped_anywhere_are_harmless_or_one_clear_error(tmp_path: Path, whole: bytes) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "a.wlens"
    refused = list[FileError]()
    for at in rng.integers(0, len(whole) * 8, 160).tolist():
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(bytes(data))
        try:
            read_all(path)
        except FileError as error:
            refused.append(error)
    assert len(refused) > 100


JUNK: list[Any] = [None, True, -1, 2**70, 1.5, float("nan"), "x", "\ud800", [], [[]], {}, [1, 2], "records/000000.u32"]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in inner for p in paths_of(item, (*path, key)))]


def test_any_manifest_value_replaced_by_junk_or_gone_never_breaks_out(tmp_path: Path) -> None:
    recording = fake_recording(blocks=2, warps=1, sms=2, phases=2)
    path = tmp_path / "a.wlens"
    refused = list[FileError]()
    for tables in (True, False):
        Trace.from_recording(recording).save(path, records=True, tables=tables)
        data = path.read_bytes()
        rng = np.random.default_rng(3)
        places = [p for p in paths_of(manifest_of(data)) if p]
        for number in range(110):
            where = places[int(rng.integers(len(places)))]
            junk = JUNK[int(rng.integers(len(JUNK)))]
            facts = manifest_of(data)
            holder: Any = facts
            for key in where[:-1]:
                holder = holder[key]
            if number % 4 and not isinstance(holder, list):
                holder[where[-1]] = junk
            else:
                del holder[where[-1]]
            text = json.dumps(facts).encode()
            path.write_bytes(rezipped(data, lambda members, text=text: members.update({"manifest.json": text})))  # type: ignore[misc]
            try:
                read_all(path)
            except FileError as error:
                refused.append(error)
    assert len(refused) > 80
    assert max(len(str(error)) for error in refused) < 600


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["launches"][0].update(grid=[1, -1, 1]), r"launches\[0\]\.grid\[1\]: expected an integer from 1"),
        (lambda m: m["launches"][0].update(grid=[2**31 - 1, 2**31 - 1, 4]), r"at most 4294967296 blocks"),
        (lambda m: m["launches"][0].update(block=[1024, 1024, 64]), r"at most \d+ threads"),
        (lambda m: m["launches"][0].update(kernel=1), r"kernel: expected below 1, found 1"),
        (lambda m: m["launches"][0].pop("grid_id"), r"expected the key 'grid_id'"),
        (lambda m: m["kernels"][0].update(site_set="other"), r"expected one of \['rmsnorm'\], found 'other'"),
        (lambda m: m["site_sets"][0]["sites"][0].update(id=7), r"expected the ids 1, 2, 3"),
        (lambda m: m["site_sets"].append(m["site_sets"][0]), r"expected different names"),
        (lambda m: m["calibration"][0]["sm"].pop(), r"three lists of one length"),
        (lambda m: m.update(globaltimer_step_ns=0), r"globaltimer_step_ns: expected an integer from 1"),
        (lambda m: m.pop("launches"), r"expected the key 'launches'"),
        (lambda m: m.update(format="zip"), r'expected "wlens"'),
        (lambda m: m.update(version="1.0"), r"expected \[major, minor\]"),
        (lambda m: m["kernels"][0].update(corrections=3), r"corrections: expected an object"),
        (lambda m: m["kernels"][0].update(corrections={}), r"corrections: expected the key 'launches'"),
        (lambda m: m["kernels"][0].update(corrections={"not_measured": 3}), r"not_measured: expected a text"),
        (lambda m: with_rows(m, site=[9]), r"rows\.site\[0\]: expected an integer from 0 to 8"),
        (lambda m: with_rows(m, role=[1]), r"rows\.role\[0\]: expected an integer from 0 to 0"),
        (lambda m: with_rows(m, spans=[]), r"rows: expected lists of one length"),
        (lambda m: with_rows(m, cost_cycles=["1"]), r"cost_cycles\[0\]: expected a finite number"),
        (lambda m: with_anchor(m, factor=[]), r"anchor\.factor: expected a list of 1 values"),
        (lambda m: with_anchor(m, factor=["1"]), r"anchor\.factor\[0\]: expected a finite number"),
        (lambda m: with_anchor(m, not_measured=3), r"anchor\.not_measured: expected a text"),
        (lambda m: m.update(origin_ns="soon"), r"origin_ns: expected"),
        (lambda m: m.update(sources=[{"path": 3}]), r"manifest\.sources: expected entries"),
    ],
)
def test_a_wrong_manifest_says_where_what_was_expected_and_what_was_found(
    tmp_path: Path, whole: bytes, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(with_manifest(whole, change))
    with pytest.raises(FormatError, match=says):
        read_all(path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null", b'{"format": NaN}'])
def test_a_manifest_that_is_no_object_is_refused(tmp_path: Path, whole: bytes, text: bytes) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(rezipped(whole, lambda members: members.update({"manifest.json": text})))
    with pytest.raises(FormatError):
        open_trace(path)


def test_records_whose_length_is_no_multiple_of_a_chunk_are_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(rezipped(whole, lambda members: members.update({MEMBER: members[MEMBER][:-4]})))
    with pytest.raises(FormatError, match="expected a multiple of 128 bytes"):
        read_all(path)


def test_tables_that_are_no_parquet_or_lack_columns_are_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    for name, content in (("spans", b"PAR1" * 40), ("blocks", b""), ("launches", None)):
        member = f"tables/{name}.parquet"

        def change(members: dict[str, bytes], member: str = member, content: bytes | None = content) -> None:
            members[member] = members["tables/sites.parquet"] if content is None else content

        path.write_bytes(rezipped(whole, change))
        with pytest.raises(FormatError, match=f"tables/{name}.parquet"):
            read_all(path)


def test_a_missing_table_is_refused_and_names_those_there(tmp_path: Path, whole: bytes) -> None:
    def drop_blocks(members: dict[str, bytes]) -> None:
        del members["tables/blocks.parquet"]

    path = tmp_path / "a.wlens"
    path.write_bytes(rezipped(whole, drop_blocks))
    with pytest.raises(FormatError, match="expected in a file with tables"):
        read_all(path)


def test_spans_of_blocks_that_the_blocks_table_lacks_are_refused(tmp_path: Path, whole: bytes) -> None:
    other = tmp_path / "other.wlens"
    Trace.from_recording(fake_recording(blocks=2, warps=2, sms=2)).save(other)
    with zipfile.ZipFile(other) as archive:
        blocks = archive.read("tables/blocks.parquet")
    path = tmp_path / "a.wlens"
    path.write_bytes(rezipped(whole, lambda members: members.update({"tables/blocks.parquet": blocks})))
    with pytest.raises(FormatError, match="a row for every launch and block"):
        read_all(path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    path.write_bytes(rezipped(whole, lambda members: members.update({MEMBER: bytes(FREE_EXPANSION_BYTES + 128)})))
    with pytest.raises(FormatError, match="would unpack to"):
        read_file(path).records[MEMBER]


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path, whole: bytes) -> None:
    at = whole.index(b"PK\x01\x02")  # of the manifest: the first in the directory
    data = bytearray(whole)
    data[at + 24 : at + 28] = struct.pack("<I", 50)
    path = tmp_path / "a.wlens"
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError):
        open_trace(path)


def test_members_with_hostile_names_are_ignored_and_written_nowhere(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    names = ["../../evil.txt", "/etc/passwd", "records/../x.u32", "tables/../../x.parquet", "C:\\x"]
    path.write_bytes(rezipped(whole, lambda members: members.update(dict.fromkeys(names, b"evil"))))
    contents = read_file(path)
    assert list(contents.records) == [MEMBER]
    assert sorted(contents.tables) == ["audit", "blocks", "clocks", "launches", "problems", "sites", "spans"]
    read_all(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.wlens"]


def test_a_member_packed_by_another_method_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.wlens"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("manifest.json", json.dumps(manifest_of(whole)))
    with pytest.raises(FormatError, match="packed by method 12"):
        open_trace(path)


def test_a_part_opens_with_its_whole_launches_and_says_so(tmp_path: Path) -> None:
    recording = fake_recording(blocks=3, warps=2, launches=1)
    second = {**recording.manifest["launches"][0], "records": "records/000001.u32"}
    recording.manifest["launches"].append(second)
    recording.records["records/000001.u32"] = recording.records[MEMBER]
    path = tmp_path / "a.wlens"
    write_file(path, recording.manifest, records=recording.records)
    data = path.read_bytes()
    part = tmp_path / "a.wlens.part"
    part.write_bytes(data[: data.rindex(b"PK\x03\x04") + 200])
    trace = open_trace(part)
    assert len(trace.launches) == 1
    assert trace.manifest["complete"] is False
    assert "incomplete_file" in trace.problems["kind"].to_list()
    part.write_bytes(data)
    assert len(open_trace(part).launches) == 2
    part.write_bytes(data[:50])
    with pytest.raises(FormatError):
        open_trace(part)


def test_a_part_cut_anywhere_opens_or_is_one_clear_error(tmp_path: Path, whole: bytes) -> None:
    part = tmp_path / "a.wlens.part"
    opened = 0
    for size in range(1, len(whole), max(1, len(whole) // 120)):
        part.write_bytes(whole[:size])
        try:
            trace = open_trace(part)
            opened += len(trace.launches)
        except FormatError:
            continue
    assert opened > 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.booleans(), st.sampled_from(["a.wlens", "a.wlens.part"]))
def test_any_bytes_are_one_clear_error(tmp_path: Path, data: bytes, like_a_zip: bool, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04" * like_a_zip + data)
    with pytest.raises(FormatError):
        open_trace(path)


def test_reading_and_writing_files_imports_no_polars() -> None:
    code = "import sys, warplens.trace.file; assert 'polars' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_device_is_no_file_to_read_or_to_write(tmp_path: Path) -> None:
    device = Path("/dev/zero")
    if not device.is_char_device():
        pytest.skip("no /dev/zero here")
    with pytest.raises(FormatError, match="device"):
        read_file(device)
    with pytest.raises(FileError, match="no plain file"):
        write_file(device, {**read_file(_saved(tmp_path)).manifest})


def _saved(folder: Path) -> Path:
    path = folder / "a.wlens"
    Trace.from_recording(fake_recording(blocks=1)).save(path)
    return path


def test_a_file_has_the_permissions_of_others_and_the_process_is_not_made_to_change_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("other threads make files meanwhile"))
        with whole_file(tmp_path / "a") as stream:
            stream.write(b"")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
