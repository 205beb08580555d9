"""The one variable: what is asked for arrives, and what cannot be meant is refused before anything runs."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warplens.capture.options import KEEPS, POLICIES, RecordOptions
from warplens.capture.python import PythonOptions
from warplens.capture.request import Request, from_text, rank_of, to_text
from warplens.cli import main
from warplens.errors import UsageError

numbers = st.lists(st.integers(0, 31), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)


@settings(max_examples=30)
@given(
    kernels=st.none() | st.sampled_from(["a&b=c%", "^scale<(true|false)>$", "größe [0-9]+"]),
    launch_skip=st.integers(0, 1 << 40),
    launch_count=st.integers(1, 1 << 40),
    blocks=st.none() | numbers,
    warps=st.none() | numbers,
    note=st.none() | st.text(max_size=30),
    grids=st.none() | st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=3).map(tuple),
    flags=st.fixed_dictionaries(dict.fromkeys(("cold_l2", "replay", "paused", "source"), st.booleans())),
    nvtx_include=st.none() | st.just("^step [0-9]&"),
    policy=st.sampled_from(POLICIES),
    keep=st.sampled_from(KEEPS),
    folder=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30),
)
def test_what_is_asked_for_arrives(
    kernels: str | None,
    launch_skip: int,
    launch_count: int,
    blocks: tuple[int, ...] | None,
    warps: tuple[int, ...] | None,
    note: str | None,
    grids: tuple[tuple[int, int, int], ...] | None,
    flags: dict[str, Any],
    nvtx_include: str | None,
    policy: str,
    keep: str,
    folder: str,
) -> None:
    request = Request(
        kernels,
        launch_skip,
        launch_count,
        blocks=blocks,
        warps=warps,
        grids=grids,
        nvtx_include=nvtx_include,
        policy=policy,
        keep=keep,
        note=note,
        **flags,
    )
    asked = from_text(to_text(request, folder, host="h", command=["a b", "c&d"]))
    assert asked is not None
    assert (asked.request, asked.folder, asked.host, asked.command) == (request, folder, "h", ["a b", "c&d"])


def test_what_is_not_utf_8_arrives_or_is_replaced_where_the_trace_shows_it() -> None:
    name = os.fsdecode(b"/caf\xe9")
    asked = from_text(to_text(Request(kernels=name, note=name), name, command=["x", name]))
    assert asked is not None
    assert (asked.request.kernels, asked.folder) == (name, name)
    assert (asked.request.note, asked.command) == (
        "/caf\N{REPLACEMENT CHARACTER}",
        ["x", "/caf\N{REPLACEMENT CHARACTER}"],
    )


def test_a_budget_arrives_with_its_counts() -> None:
    asked = from_text(to_text(Request(budget="25%", counts="/folder/counts"), "/x"))
    assert asked is not None
    assert (asked.request.budget, asked.request.counts) == ("25%", "/folder/counts")


def test_grids_may_leave_out_their_last_sizes() -> None:
    assert Request(grids=(528, (64, 8))).grids == ((528, 1, 1), (64, 8, 1))  # type: ignore[arg-type]


def test_a_signal_arrives_as_a_switch() -> None:
    asked = from_text(to_text(Request(signal="USR1"), "/x"))
    assert asked is not None
    assert (asked.switched, asked.request.paused, asked.request.signal) == (True, True, None)


@pytest.mark.parametrize(
    ("options", "staged"),
    [({}, True), ({"timeout_s": 3.0}, False), ({"policy": "stream"}, False), ({"policy": "staged"}, True)],
)
def test_with_a_time_out_or_a_policy_records_are_in_memory_at_once(options: dict[str, Any], staged: bool) -> None:
    """A kernel that hangs takes with it what waits in shared memory."""
    asked = from_text(to_text(Request(**options), "/x"))
    assert asked is not None
    assert PythonOptions.of(asked).staged == staged


@pytest.mark.parametrize("text", ["", "nonsense", "version=2&folder=x", "version=1&folder=x&warp_mask=x"])
def test_a_text_of_others_asks_for_nothing(text: str) -> None:
    assert from_text(text) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "("}, "no regular expression"),
        ({"kernels": r"\d+"}, r"\[0-9\]"),
        ({"kernels": "a.*?b"}, "POSIX"),
        ({"launch_count": 0}, "at least 1"),
        ({"capacity_bytes": 1000}, "1 MiB"),
        ({"warps": (32,)}, "0 to 31"),
        ({"blocks": 3}, "expected numbers"),
        ({"timeout_s": 0}, "above 0"),
        ({"nvtx_include": "("}, "nvtx_include is"),
        ({"grids": ((1, 0),)}, "one to three sizes"),
        ({"policy": "fast"}, "expected one of auto, packed"),
        ({"signal": "KILL"}, "expected one of None, USR1"),
        ({"budget": "25%"}, "both are needed"),
        ({"counts": "run.wlens"}, "both are needed"),
        ({"budget": "much", "counts": "run.wlens"}, "events a launch"),
        ({"nothing": 1}, "unknown option"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Request.of(options)


def test_the_command_line_and_python_have_the_same_words() -> None:
    command = main.get_command(click.Context(main), "record")
    assert command is not None
    options = {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
    assert options - {"output", "force", "module", "help"} == {field.name for field in fields(Request)}
    defaults = {p.name: p.default for p in command.params if isinstance(p, click.Option)}
    for name in ("launch_skip", "launch_count", "rounds", "every_block"):
        assert defaults[name] == getattr(Request(), name), name


def test_words_that_a_recording_of_one_kernel_has_too_mean_the_same() -> None:
    both = {field.name: field for field in fields(Request)}.keys() & {field.name for field in fields(RecordOptions)}
    assert both == {
        "rounds",
        "capacity_bytes",
        "every_block",
        "blocks",
        "warps",
        "policy",
        "keep",
        "cold_l2",
        "timeout_s",
        "note",
        "host",
        "command",
    }
    assert {n: getattr(Request(), n) for n in both} == {n: getattr(RecordOptions(), n) for n in both}
    assert Request(warps=(0, 2)).warp_mask == RecordOptions(warps=(0, 2)).warp_mask == 5


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),
        ({"SLURM_PROCID": "7", "RANK": "x"}, 7),
        ({"PMI_RANK": "2", "SLURM_PROCID": "1"}, 2),
    ],
)
def test_a_rank_is_that_of_torchrun_mpi_or_slurm(environment: dict[str, str], rank: int | None) -> None:
    assert rank_of(environment) == rank


@pytest.mark.parametrize(
    ("options", "command", "says"),
    [
        ({"note": "x" * 70_000}, None, "note takes most of them: shorten it"),
        ({"blocks": tuple(range(20_000))}, None, "blocks takes most of them: name fewer"),
        ({"kernels": "x" * 70_000}, None, "kernels takes most"),
        ({}, ["x" * 70_000], "command takes most"),
    ],
)
def test_options_that_are_too_long_are_named(options: dict[str, Any], command: list[str] | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        to_text(Request(**options), "/x", command=command)


def test_marks_of_tritons_kernels_are_chosen_and_checked() -> None:
    asked = from_text(to_text(Request(auto="all", sites="mbarrier|&="), "/f"))
    assert asked is not None
    assert (asked.request.auto, asked.request.sites) == ("all", "mbarrier|&=")
    with pytest.raises(UsageError, match="level 'some'"):
        Request(auto="some")
    with pytest.raises(UsageError, match="no regular expression"):
        Request(sites="(")
