"""The table `audit`: from a manifest, into a file and back, and out of manifests that nobody should write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.synthesis import FakeRecording, fake_recording
from warplens.errors import FormatError
from warplens.trace import TABLES, Trace
from warplens.trace import open as open_trace

COLUMNS: dict[str, list[Any]] = {
    "site": [0, 2, None],
    "verb": ["phase", "wait", "end"],
    "file": ["k.cu", "k.cu", ""],
    "line": [12, 15, 0],
    "address": [0x60, 0x120, None],
    "outstanding_loads": [0, 3, None],
    "waits_on": ["", "2 LDG line 13", ""],
    "finding": ["3 loads of line 13 are still under way at its end", "", ""],
    "severity": ["warning", "", ""],
}


def entry(**changes: Any) -> dict[str, Any]:
    return {"columns": COLUMNS | changes, "facts": {"traced": {"loads": 3}, "clean": None}, "not_audited": None}


def audited(**changes: Any) -> FakeRecording:
    recording = fake_recording()
    recording.manifest["kernels"][0]["audit"] = entry(**changes)
    return recording


def test_the_audit_is_a_table_whose_sites_are_rows_of_the_table_of_sites(tmp_path: Path) -> None:
    trace = Trace.from_recording(audited())
    assert trace.audit.columns == list(TABLES["audit"])
    named = trace.audit.join(trace.sites, on="site", how="left", maintain_order="left")
    assert named["name"].to_list() == [trace.sites["name"][0], trace.sites["name"][2], None]
    assert trace.audit["outstanding_loads"].to_list() == [0, 3, None]
    query = "select line from audit where severity = 'warning'"
    assert trace.sql(query)["line"].to_list() == [12]
    trace.save(tmp_path / "a.wlens")
    assert open_trace(tmp_path / "a.wlens").audit.equals(trace.audit)


def test_a_file_whose_audit_tells_nothing_of_bulk_loads_has_nulls_there() -> None:
    assert Trace.from_recording(audited()).audit["bulk_loads"].to_list() == [None] * 3
    newer = Trace.from_recording(audited(bulk_loads=["UTMALDG line 12", "", None]))
    assert newer.audit["bulk_loads"].to_list() == ["UTMALDG line 12", "", None]
    for wrong in (["", ""], [1, "", ""]):
        with pytest.raises(FormatError, match="columns"):
            Trace.from_recording(audited(bulk_loads=wrong))


def test_sites_of_a_second_set_count_behind_those_of_the_first() -> None:
    recording = audited()
    sets = recording.manifest["site_sets"]
    sets.insert(0, sets[0] | {"name": "another", "hash": 5, "sites": sets[0]["sites"][:2]})
    table = Trace.from_recording(recording).audit
    assert table["site"].to_list() == [2, 4, None]


def test_a_file_from_before_there_was_an_audit_has_an_empty_table(tmp_path: Path) -> None:
    trace = Trace.from_recording(fake_recording())
    assert trace.audit.schema == pl.Schema({n: getattr(pl, c.dtype) for n, c in TABLES["audit"].items()})
    assert trace.audit.height == 0
    trace.save(tmp_path / "a.wlens", records=True, tables=False)
    assert open_trace(tmp_path / "a.wlens").audit.height == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"site": [0, 99, None]}, r"audit\.columns\.site: expected below 8, found 99"),
        ({"site": [0, -1, None]}, r"columns\.site\[1\]: expected an integer"),
        ({"line": [1]}, r"audit\.columns: expected lists of one length"),
        ({"severity": [1, 2, 3]}, r"columns\.severity\[0\]: expected a text"),
        ({"address": ["0x60", 1, 2]}, r"columns\.address\[0\]: expected an integer"),
        ({"verb": None}, r"columns\.verb: expected a list"),
    ],
)
def test_an_audit_that_makes_no_sense_is_refused_by_its_place(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        Trace.from_recording(audited(**changes))
