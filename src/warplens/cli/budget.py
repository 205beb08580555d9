"""`--budget` and `--counts`: fewer events than a first run made, by what it counted.

In: both options as they were given. Out: a `Budget`, or counts as JSON for processes that may not read traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warplens.errors import UsageError
from warplens.render.escape import visible

if TYPE_CHECKING:
    from warplens.instrument import Budget

BUDGET_HELP = "Leave out the sites with most events, so that a launch makes at most N, or this part of the first run's."
COUNTS_HELP = "The trace of the first run, whose events --budget goes by."


def read_counts(file: str) -> dict[str, Any]:
    """Events by site of a trace; says on stderr where it has lost some. Raises FileError or FormatError."""
    import warplens
    from warplens.analyze.events import events_by_site

    trace = warplens.open(file)
    lost = sum(entry["lost_events"] for entry in trace.manifest["launches"])
    if lost:
        click.echo(f"note: {visible(file)} lost {lost:,} events: the budget goes by those that it kept", err=True)
    return events_by_site(trace)


def budget_of(budget: str | None, counts: Path | None) -> Budget | None:
    """None without either. Raises UsageError for one without the other."""
    from warplens.instrument import Budget

    check_pair(budget, counts)
    return None if budget is None else Budget.of(budget, read_counts(str(counts)))


def check_pair(budget: object, counts: object) -> None:
    """UsageError for one of the two options without the other."""
    if (budget is None) != (counts is None):
        missing, given = ("--counts", "--budget") if counts is None else ("--budget", "--counts")
        raise UsageError(f"{given} without {missing}: a budget goes by what a first run counted, and both are needed")
