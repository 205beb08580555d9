"""Names of strangers never reach a terminal as anything but text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warplens.render.escape import visible, visible_lines, visible_site, visible_tree


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("load", "load"),
        ("Übertrag 名前 é", "Übertrag 名前 é"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_characters_that_act_become_escapes_and_others_stay(name: str, shown: str) -> None:
    assert visible(name) == shown


@given(st.text())
def test_no_control_or_format_character_survives(name: str) -> None:
    assert not {unicodedata.category(c) for c in visible(name)} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(), st.integers(2, 40))
def test_a_limit_holds_and_an_ellipsis_tells(name: str, limit: int) -> None:
    shown = visible(name, limit=limit)
    assert len(shown) <= limit
    assert shown.endswith("…") or shown == visible(name, limit=10_000)


def test_messages_keep_their_lines_and_are_never_cut() -> None:
    assert visible_lines("a\x1b\nb" + "c" * 500) == "a\\x1b\nb" + "c" * 500


def test_trees_are_escaped_in_keys_and_values() -> None:
    assert visible_tree({"a\x1b": ["b\x07", {"c": 1}, ("\u202e",)]}) == {"a\\x1b": ["b\\x07", {"c": 1}, ["\\u202e"]]}


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (60, "specialized_matmul.py:52 wait barrier 1 (3)"),
        (30, "special…:52 wait barrier 1 (3)"),
        (23, "…:52 wait barrier 1 (3)"),
        (22, "…:52 wait barrier 1 (…"),
    ],
)
def test_a_long_name_of_an_automatic_mark_loses_its_file_first(limit: int, shown: str) -> None:
    assert visible_site("specialized_matmul.py:52 wait barrier 1 (3)", limit=limit) == shown


@given(st.text() | st.from_regex(r"[a-z.]*:[0-9 a-z]*"), st.integers(2, 40))
def test_a_site_of_any_name_keeps_within_the_limit(name: str, limit: int) -> None:
    assert len(visible_site(name, limit=limit)) <= limit


def test_a_site_whose_name_has_no_file_is_cut_at_its_end() -> None:
    assert visible_site("warp 0 adds: partial sums", limit=12) == "warp 0 adds…"
