"""An entry `corrections` of a manifest, as a capture writes it: rows with plain numbers, of a single role."""

from __future__ import annotations

from typing import Any


def corrections(
    costs: dict[int, float],
    *,
    warps: int = 1,
    cost_error: float = 0.0,
    mark_error: float = 0.0,
    factor: float | None = None,
    factor_error: float = 0.0,
) -> Any:
    """Costs in cycles by site of the set (0: the life of a warp), with the same errors everywhere; without a factor as
    files had it before there was an anchor."""
    size = len(costs)
    rows: dict[str, list[Any]] = {
        "role": [0] * size,
        "site": list(costs),
        "verb": ["phase" if site else "life" for site in costs],
        "spans": [1000] * size,
        "duration_cycles": [500.0] * size,
        "cost_cycles": list(costs.values()),
        "cost_uncertainty_cycles": [cost_error] * size,
        "corrected_uncertainty_cycles": [cost_error] * size,
        "mark_uncertainty_cycles": [mark_error] * size,
    }
    mark = {"p10": 12, "p50": 14, "p90": 22}
    found = {"not_measured": None, "launches": 8, "copies": 2, "mark_cycles": mark}
    anchor = {
        "not_measured": None,
        "life_cycles": [400.0],
        "marks_uncertainty_cycles": [4.0],
        "factor": [factor],
        "factor_uncertainty": [factor_error],
    }
    return found | {"roles": [list(range(warps))], "rows": rows} | ({} if factor is None else {"anchor": anchor})
