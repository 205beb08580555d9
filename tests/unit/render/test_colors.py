"""Colours: stable by name, told apart by everybody."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from warplens.render.colors import MORE, PHASES, WAITS, ink_on, site_colors, site_letters

F64 = npt.NDArray[np.float64]
DEFICIENCIES = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
TO_LMS += [[0.0883024619, 0.2817188376, 0.6299787005]]
TO_LAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
TO_LAB += [[0.0259040371, 0.7827717662, -0.808675766]]


def linear(color: str) -> F64:
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(color: str, deficiency: str) -> F64:
    """OKLab coordinates (Ottosson 2020) of a colour as somebody with the deficiency sees it."""
    seen = np.clip(np.array(DEFICIENCIES[deficiency]) @ linear(color), 0, 1)
    lab: F64 = np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ seen)
    return lab


def contrast(first: str, second: str) -> float:
    light = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (first, second))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_each_pair_of_phase_colours_is_told_apart(deficiency: str) -> None:
    for first, second in itertools.combinations(PHASES, 2):
        distance = np.linalg.norm(oklab(first, deficiency) - oklab(second, deficiency))
        assert distance >= 0.12, (first, second)


def test_a_site_keeps_its_colour_when_others_come_and_go() -> None:
    few = dict(zip(("load", "store"), site_colors(["load", "store"], ["phase", "phase"]), strict=True))
    names = ["load", "store", "mma"]
    more = dict(zip(names, site_colors(names, ["phase"] * 3), strict=True))
    assert more["load"] == few["load"]
    assert more["store"] == few["store"]


def test_waits_are_grey_and_phases_are_not() -> None:
    phase, wait = site_colors(["x", "x"], ["phase", "wait"])
    assert phase in PHASES
    assert wait in WAITS


def test_no_colour_comes_twice_before_all_are_taken() -> None:
    count = len(PHASES) + len(MORE)
    colors = site_colors([f"site {i}" for i in range(count + 3)], ["phase"] * (count + 3))
    assert set(colors[: len(PHASES)]) == set(PHASES)
    assert len(set(colors[:count])) == count


def test_letters_are_unique_and_taken_from_the_name() -> None:
    assert site_letters(["load", "store", "sync", "loop"]) == ["l", "s", "S", "L"]
    many = site_letters([f"phase {i}" for i in range(62)])
    assert len(set(many)) == 62


def test_a_name_without_letters_still_gets_one_and_letters_run_out_as_question_marks() -> None:
    assert site_letters(["名前", "  "]) == ["a", "b"]
    assert site_letters(["x"] * 63)[-1] == "?"


def test_ink_reads_on_every_colour() -> None:
    for color in (*PHASES, *MORE, *WAITS):
        assert contrast(color, ink_on(color)) >= 4.5, color
