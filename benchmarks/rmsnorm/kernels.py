"""The steps as functions of (x, weight, y), with what is known of each.

In: the steps of examples/rmsnorm. Out: functions to time, and facts for the result. Needs a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from timing import Call

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "rmsnorm"))
from forward import Forward
from steps import STEPS


def load(dtype: str) -> tuple[dict[str, Call], dict[str, dict[str, Any]]]:
    """Every step by its name, compiled, and its facts."""
    calls: dict[str, Call] = {}
    facts: dict[str, dict[str, Any]] = {}
    for number, step in enumerate(STEPS):
        forward = Forward(step, dtype)
        calls[step.name] = forward
        facts[step.name] = {
            "step": number,
            "title": step.title,
            "writes": "y",
            "max_hidden": step.max_hidden,
            "launches_overlap": step.overlaps,
            **forward.resources(1, 5120),
        }
    return calls, facts
