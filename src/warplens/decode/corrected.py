"""Corrected durations: what spans would have lasted without marks, with an uncertainty.

In: columns of the table `spans`, the launches' rates and a manifest with `kernels[i].corrections` (corrections.py).
Out: `Corrected` columns, derived whenever spans are made or read, and the problem rows of what is corrected beyond its
error. Nothing is clipped. Must not convert clocks itself: clock does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import clock, layout
from warplens.decode.flags import SpanFlag
from warplens.decode.problems import Problem

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_NONE: Final = SpanFlag.INSTANT | SpanFlag.UNENDED | SpanFlag.CROSS_WARP | SpanFlag.WRAPPED
"""Spans without a length of their own warp."""
TILING: Final = ("phase", "wait")
"""Verbs (of the rows of corrections) whose spans follow each other: theirs add up to a warp's life."""
_WARPS: Final = 1 << layout.META_WARP_BITS
_BLOCK_ROWS: Final = 1 << 16
"""Rows at a time: their columns stay in the second-level cache."""


@dataclass
class Corrected:
    """Columns of the table `spans`; nan where there is nothing to correct, or no correction was measured."""

    corrected_ns: F64
    uncertainty_ns: F64
    over: npt.NDArray[np.bool_]
    """Negative beyond the uncertainty."""


def correct(
    manifest: dict[str, Any],
    cycles_per_ns: F64,
    *,
    launch: npt.NDArray[Any],
    warp: npt.NDArray[Any],
    site: npt.NDArray[Any],
    duration_ns: I64,
    flags: npt.NDArray[Any],
) -> Corrected | None:
    """Corrected durations of spans; None where the manifest holds no correction. `cycles_per_ns` is per launch."""
    kernels = manifest["kernels"]
    if not any(measured(kernel) for kernel in kernels):
        return None
    cost, *errors = (by_warp(manifest, name) for name in ("cost_cycles", *_ERRORS))
    error, (factor, its_error) = np.hypot(*errors), factors(manifest)
    of_launch = np.array([entry["kernel"] for entry in manifest["launches"]], np.int64)
    sites = cost.shape[1]
    out = Corrected(np.full(len(launch), np.nan), np.full(len(launch), np.nan), np.zeros(len(launch), np.bool_))
    for low in range(0, len(launch), _BLOCK_ROWS):
        part = slice(low, low + _BLOCK_ROWS)
        whose = launch[part]
        its_warp = np.minimum(warp[part], _WARPS - 1).astype(np.int64)
        cell = (of_launch[whose] * sites + site[part]) * _WARPS + its_warp
        role = of_launch[whose] * _WARPS + its_warp
        rate = np.where(flags[part] & np.uint16(_NONE) == 0, cycles_per_ns[whose], np.nan)
        with np.errstate(all="ignore"):  # a file may say anything
            direct = duration_ns[part] - clock.cycles_to_ns(cost.reshape(-1)[cell], rate)
            corrected, uncertainty = anchored(
                direct,
                clock.cycles_to_ns(error.reshape(-1)[cell], rate),
                factor.reshape(-1)[role],
                its_error.reshape(-1)[role],
            )
            out.over[part] = corrected + uncertainty < 0
        out.corrected_ns[part], out.uncertainty_ns[part] = corrected, uncertainty
    return out


_ERRORS: Final = ("cost_uncertainty_cycles", "mark_uncertainty_cycles")
"""Of one span: how well the cost of its mark is known on average, and how much single marks differ."""


def measured(kernel: dict[str, Any]) -> dict[str, Any] | None:
    """The corrections of an entry of `kernels`; None where there are none."""
    found = kernel.get("corrections")
    return found if isinstance(found, dict) and found.get("not_measured") is None else None


def anchored(direct: F64, error: F64, factor: F64, factor_error: F64) -> tuple[F64, F64]:
    """Durations less the direct costs, times the factor; and half widths: what chance makes of it, and all that the
    factor took away or added, since it is not known in which spans that belongs."""
    by_chance = np.hypot(factor * error, direct * factor_error)
    return direct * factor, by_chance + np.abs(direct * (factor - 1))


def factors(manifest: dict[str, Any]) -> tuple[F64, F64]:
    """The factor of each warp and its half width, of shape (kernels, warps); 1 and 0 where none was measured."""
    factor, error = np.ones((len(manifest["kernels"]), _WARPS)), np.zeros((len(manifest["kernels"]), _WARPS))
    for number, kernel in enumerate(manifest["kernels"]):
        found = measured(kernel) or {}
        for role, (value, its_error) in enumerate(role_factors(found)):
            factor[number, found["roles"][role]], error[number, found["roles"][role]] = value, its_error
    return factor, error


def role_factors(found: dict[str, Any]) -> list[tuple[float, float]]:
    """The factor of each role of an entry `corrections`, and its half width; 1 and 0 where none was measured."""
    anchor, roles = found.get("anchor") or {}, found.get("roles", [])
    if not anchor or anchor.get("not_measured") is not None:
        return [(1.0, 0.0)] * len(roles)
    pairs = zip(anchor["factor"], anchor["factor_uncertainty"], strict=True)
    return [(1.0, 0.0) if value is None or error is None else (value, error) for value, error in pairs]


def mean_half_widths(manifest: dict[str, Any]) -> F64:
    """Of mean corrected durations: half widths in cycles, of shape (kernels, sites of the trace, warps)."""
    cost, duration, error = (
        by_warp(manifest, name) for name in ("cost_cycles", "duration_cycles", "cost_uncertainty_cycles")
    )
    factor, its_error = (values[:, None, :] for values in factors(manifest))
    return anchored(duration - cost, error, factor, its_error)[1]


def by_warp(manifest: dict[str, Any], name: str) -> F64:
    """A column of the rows, of shape (kernels, sites of the trace, warps); nan for none."""
    base, sites = {}, 0
    for entry in manifest["site_sets"]:
        base[entry["name"]] = sites
        sites += len(entry["sites"])
    out = np.full((len(manifest["kernels"]), max(sites, 1), _WARPS), np.nan)
    for number, kernel in enumerate(manifest["kernels"]):
        if (found := measured(kernel)) is None:
            continue
        columns = [found["rows"][column] for column in ("role", "site", name)]
        for role, site, value in zip(*columns, strict=True):
            if site > 0:  # else the whole life of a warp
                out[number, base[kernel["site_set"]] + site - 1, found["roles"][role]] = value
    return out


def overcorrected(
    over: npt.NDArray[np.bool_], launch: npt.NDArray[Any], site: npt.NDArray[Any], names: list[str]
) -> list[Problem]:
    """A row for each launch and site with spans that are corrected to less than nothing, beyond their error."""
    pairs, counts = np.unique(launch[over].astype(np.int64) << 32 | site[over].astype(np.int64), return_counts=True)
    return [
        Problem(
            "overcorrected",
            count,
            "note",
            f"spans of {names[pair & 0xFFFFFFFF]} whose corrected_ns is negative beyond its uncertainty: "
            "there marks cost less than the correction says",
            pair >> 32,
        )
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
