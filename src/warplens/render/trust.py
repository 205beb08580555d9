"""How far a trace can be believed, as lines.

In: a Trace. Out: a list of `TrustLine`s (label, level, text), the same for terminal, JSON and pages.
A fact that was not measured says so and why; nothing here is guessed or left out because it looks bad.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl

from warplens import layout
from warplens.decode.corrected import TILING, measured, role_factors
from warplens.decode.manifest import blocks_of, chosen_blocks, chosen_warps, warps_of
from warplens.render.escape import visible
from warplens.render.facts import entries, mapping, number
from warplens.render.pick import counted, nanoseconds, number_ranges
from warplens.render.stopped import stopped_text

if TYPE_CHECKING:
    from warplens.trace import Trace

Level = Literal["ok", "note", "BAD"]

LOOSE_AXIS_NS: Final = 1000
"""An uncertainty of the time axis beyond this is a note."""
STEADY_CLOCK: Final = 0.02
"""The SM clock may change by this fraction between before and after without a note."""
SLOWDOWN_ODD: Final = 0.98
SLOWDOWN_NOTE: Final = 1.10
SLOWDOWN_BAD: Final = 1.30
"""Medians of traced over clean kernel time: below the first tracing seems to help, beyond the second it is worth a
look, beyond the third the trace is too disturbed to be believed."""
_MOST_UNMARKED: Final = 4
"""Lines of a kernel's list of what is not marked that are shown."""
_MOST_NAMES: Final = 3
"""Kernels that are named in front of what holds for several."""
_HARMLESS_THROTTLES: Final = frozenset({"none", "idle", "gpu_idle"})
_OWN_LINES: Final = frozenset({"site_never_reached", "no_end", "lost_events", "incomplete_file", "stopped"})


@dataclass(frozen=True)
class TrustLine:
    """One fact about a trace: `level` is "ok", "note" (read it) or "BAD" (do not believe the numbers blindly).

    `brief` says the same in a few words, for the line that all that is well shares; without one the fact keeps
    a line of its own.
    """

    label: str
    level: Level
    text: str
    brief: str = ""


def trust_lines(trace: Trace, launch: int | None = None, *, audit_is: str = "") -> list[TrustLine]:
    """All trust lines of `trace`; with `launch`, losses and problems of that launch and of the file alone.

    `audit_is` says where the whole audit stands; without it the command that prints it is named.
    """
    manifest = trace.manifest
    lines = []
    stopped = stopped_text(trace)
    if stopped is not None:
        lines.append(TrustLine("kernel", "BAD", stopped))
    elif not manifest.get("complete", True):
        lines.append(TrustLine("file", "BAD", "recording did not finish: this holds the complete launches"))
    kernels = manifest.get("kernels") or []
    told: dict[TrustLine, list[int]] = {}
    for index, kernel in enumerate(kernels):
        for line in (_slowdown(kernel), _builds(kernel), *_mark_cost(kernel, _warps(trace, index))):
            told.setdefault(line, []).append(index)
    lines += [_of_kernels(line, [kernels[index] for index in of], len(kernels)) for line, of in told.items()]
    lines += _choice(manifest, launch)
    lines += _marking(manifest)
    lines += _audit(trace, audit_is)
    lines += _losses_and_problems(trace, launch)
    lines += [_clocks(manifest), _neighbours(manifest), _time_axis(trace, launch)]
    return lines


def _of_kernels(line: TrustLine, of: list[dict[str, Any]], kernels: int) -> TrustLine:
    """The line of one or several kernels with their names, where there are others."""
    if len(of) == kernels:
        return line
    names = Counter(visible(kernel.get("name"), limit=60) for kernel in of)
    named = [
        f"{name} ({count} builds or shapes)" if count > 1 else name for name, count in names.most_common(_MOST_NAMES)
    ]
    if more := len(names) - len(named):
        named.append(counted(more, "other"))
    text = ", ".join(named)
    return replace(line, text=f"{text}: {line.text}", brief=line.brief and f"{line.brief} ({text})")


def _slowdown(kernel: dict[str, Any]) -> TrustLine:
    clean, traced = kernel.get("clean_ns"), kernel.get("traced_ns")
    if not clean or not traced:
        why = visible(kernel.get("not_measured") or "no samples in the file")
        return TrustLine("kernel time", "note", f"clean and traced not measured: {why}")
    ratio = median(traced) / median(clean) if median(clean) else float("inf")
    count = str(len(clean)) if len(clean) == len(traced) else f"{len(clean)} and {len(traced)}"
    text = f"x{ratio:.3f} by tracing: clean {_samples(clean)}, traced {_samples(traced)}, {count} of each"
    if ratio > SLOWDOWN_BAD:
        return TrustLine("kernel time", "BAD", text + ": too disturbed to be believed")
    if ratio < SLOWDOWN_ODD:
        return TrustLine("kernel time", "note", text + ": faster with marks, so compiled or scheduled otherwise")
    return TrustLine("kernel time", "note" if ratio > SLOWDOWN_NOTE else "ok", text)


def _samples(values_ns: list[float]) -> str:
    middle, low, high = (nanoseconds(f(values_ns)) for f in (median, min, max))
    unit = middle.rpartition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.removesuffix(f" {unit}"), high.removesuffix(f" {unit}")
    return f"{middle} ({low} to {high})"


def _builds(kernel: dict[str, Any]) -> TrustLine:
    clean, traced = kernel.get("clean"), kernel.get("traced")
    if not clean or not traced:
        return TrustLine("builds", "note", "registers and residency of clean and traced not known")
    names = {"registers": "registers", "shared_bytes": "shared B", "local_bytes": "local B (spills)"}
    names["resident_blocks"] = "resident blocks an SM"
    parts = []
    for key, name in names.items():
        before, after = clean.get(key), traced.get(key)
        parts.append(f"{name} {_known(before)}" + (f" -> {_known(after)}" if after != before else ""))
    text = ", ".join(parts) + " (clean -> traced)"
    if clean.get("resident_blocks") != traced.get("resident_blocks"):
        return TrustLine("builds", "BAD", text + ": residency changed, so the traced run is another run")
    local = (traced.get("local_bytes") or 0) - (clean.get("local_bytes") or 0)
    # No build of PTX that spills more is taken; arrays with more alignment move by a multiple of the state.
    if kernel.get("instrumented") and local > 0 and local % layout.LOCAL_STATE_BYTES == 0:
        text += f", {local} B of it the recorder's state"
    elif local > 0:
        return TrustLine("builds", "BAD", text + ": the traced build spills")
    limit, policy = number(kernel.get("register_limit")), kernel.get("policy")
    how = [f"policy {visible(policy, limit=24)}"] if policy else []
    how += [f"compiled for at most {limit:.0f} registers"] if limit else []
    text += f", {', '.join(how)}" if how else ""
    brief = f"{visible(policy, limit=24)}, " if policy else ""
    resident = traced.get("resident_blocks")
    blocks = counted(resident, "resident block") if isinstance(resident, int) else f"{_known(resident)} resident blocks"
    return TrustLine("builds", "ok", text, f"{brief}{_known(traced.get('registers'))} registers, {blocks}")


def _choice(manifest: dict[str, Any], launch: int | None) -> list[TrustLine]:
    """Where not all blocks and warps were to be recorded: how many were, a line for each answer."""
    told: dict[str, list[int]] = {}
    for index, entry in enumerate(manifest["launches"]):
        if launch not in (None, index) or not entry["every"]:
            continue
        blocks, warps, parts = chosen_blocks(entry), chosen_warps(entry), []
        if len(blocks) < blocks_of(entry):
            how = f" (one in {entry['every']:,})" if entry.get("blocks") is None else ""
            parts.append(f"{len(blocks):,} of {counted(blocks_of(entry), 'block')}{how}")
        if len(warps) < warps_of(entry):
            parts.append(f"warps {number_ranges(warps)} of {warps_of(entry)} of a block")
        if parts:
            told.setdefault(" and ".join(parts), []).append(index)
    return [
        TrustLine(
            "recorded",
            "note",
            (f"of launch{'es' if len(launches) > 1 else ''} {number_ranges(launches)} " if len(told) > 1 else "")
            + f"{text}: counts, shares, waves and pictures are of these alone",
        )
        for text, launches in told.items()
    ]


def _marking(manifest: dict[str, Any]) -> list[TrustLine]:
    """Of automatic marks: what was tried for each kernel, and what of it has none, and why."""
    sets = {entry["name"]: entry for entry in manifest.get("site_sets") or []}
    lines = []
    for kernel in manifest.get("kernels") or []:
        own = mapping(kernel.get("instrumented")).get("left_out")
        own = entries(sets.get(kernel.get("site_set"), {}).get("left_out")) if own is None else entries(own)
        name = str(kernel.get("name"))
        told = [visible(str(line).removeprefix(f"{name}: "), limit=300) for line in own or []]
        more = [f"and {len(told) - _MOST_UNMARKED} more (`warplens info --json`)"] if told[_MOST_UNMARKED:] else []
        if told:
            text = "; ".join([*told[:_MOST_UNMARKED], *more])
            lines.append(TrustLine("marking", "note", f"{visible(name, limit=60)}: {text}"))
    return lines


def _mark_cost(kernel: dict[str, Any], warps: int) -> list[TrustLine]:
    cost, found = number(kernel.get("mark_cost_cycles")), measured(kernel)
    if found is not None:
        mark = found["mark_cycles"]
        text = f"{mark['p50']:.0f} cycles ({mark['p10']:.0f} to {mark['p90']:.0f})" if mark is not None else ""
        brief = f"a mark costs {mark['p50']:.0f} cycles" if mark is not None else ""
        return [
            *([TrustLine("mark cost", "ok", text, brief)] if text else []),
            _correction(found, warps),
        ]
    why = mapping(kernel.get("corrections")).get("not_measured")
    reason = f", and nothing is corrected: {visible(why, limit=200)}" if why else ""
    if cost is None:
        unknown = "cost of a single mark not measured" + (f" ({visible(why, limit=200)})" if why else "")
        return [TrustLine("mark cost", "ok", f"not measured{reason}", unknown)]
    return [TrustLine("mark cost", "ok", f"{cost:.1f} cycles{reason}", f"a mark costs {cost:.1f} cycles")]


def _warps(trace: Trace, kernel: int) -> int:
    """Warps of a block that were recorded of this kernel."""
    launches = [index for index, entry in enumerate(trace.manifest["launches"]) if entry["kernel"] == kernel]
    spans = trace.spans.lazy()
    if len(launches) < trace.launches.height:
        spans = spans.filter(pl.col("launch").is_in(launches))
    return int(spans.select(pl.col("warp").n_unique()).collect().item())


def _correction(found: dict[str, Any], warps: int) -> TrustLine:
    """What corrected phases sum to, and all that marks cost. Without a brief: by how much is seen without asking."""
    factors, anchor, rows = [f for f, _ in role_factors(found)], mapping(found.get("anchor")), found["rows"]
    known = bool(anchor) and anchor.get("not_measured") is None
    raw = life = phases = half_width = 0.0
    for index, (verb, role, spans) in enumerate(zip(rows["verb"], rows["role"], rows["spans"], strict=True)):
        duration = float(rows["duration_cycles"][index])
        corrected = (duration - float(rows["cost_cycles"][index])) * factors[role] * spans
        if verb == "life":
            within = anchor["marks_uncertainty_cycles"][role] if known else None
            half_width += spans * float(rows["cost_uncertainty_cycles"][index] if within is None else within)
            raw, life = raw + duration * spans, life + corrected
        elif verb in TILING:
            phases += corrected
    of = "the block's life in a two-mark build" if known else "the block's life less the direct cost of its marks"
    parts = [f"phases sum to {100 * phases / life:.1f} % of {of}"] if phases and life > 0 else []
    if life > 0:
        cost = f"marks cost {100 * (raw - life) / life:.1f} ± {100 * half_width / life:.1f} % of it"
        faster = raw < SLOWDOWN_ODD * life
        parts.append(cost + (": faster with all marks, so compiled or scheduled otherwise" if faster else ""))
    if not known:
        why = visible(anchor.get("not_measured") or "the file has no life of a two-mark build", limit=200)
        parts.append(f"what marks cost indirectly is not corrected: {why}")
    if None in (anchor.get("factor") or ()):
        parts.append("some roles by direct costs alone")
    told = len({warp for role in found["roles"] for warp in role})
    if told < warps:
        parts.insert(0, f"of {told} of the {warps} warps of a block, the others are not corrected")
    noted = not known or not SLOWDOWN_ODD * life <= raw <= SLOWDOWN_NOTE * life
    return TrustLine("correction", "note" if noted else "ok", "; ".join(parts))


def _audit(trace: Trace, audit_is: str) -> list[TrustLine]:
    """What the machine code says against the marks; nothing in files that were made before there was an audit."""
    lines = []
    entries_made = [entry for kernel in trace.manifest.get("kernels") or [] if (entry := kernel.get("audit"))]
    for why in dict.fromkeys(entry["not_audited"] for entry in entries_made if entry["not_audited"]):
        first = visible(str(why).partition("\n")[0], limit=200)
        lines.append(TrustLine("marks", "note", f"what they measure was not audited: {first}"))
    if not any(entry["not_audited"] is None for entry in entries_made):
        return lines
    table = trace.audit
    counts = [table.filter(pl.col("severity") == severity).height for severity in ("warning", "note")]
    text = ", ".join(counted(n, noun) for n, noun in zip(counts, ("warning", "note"), strict=True) if n)
    if not counts[0]:
        brief = "marks audited" + (f" ({text})" if text else "")
        return [
            *lines,
            TrustLine("marks", "ok", f"{counted(table.height, 'mark')} audited, {text or 'no finding'}", brief),
        ]
    worst = table.filter(pl.col("severity") == "warning").join(trace.sites, on="site", how="left").row(0, named=True)
    name = worst["name"] or worst["verb"] or "mark"
    where = f"{visible(name, limit=40)} (line {worst['line']})" if worst["line"] else visible(name, limit=40)
    path = "FILE" if trace.path is None else visible(shlex.quote(str(trace.path)), limit=4096)
    more = audit_is or f"warplens audit {path}"
    return [*lines, TrustLine("marks", "note", f"{text}, {where}: {visible(worst['finding'], limit=160)}; all: {more}")]


def _losses_and_problems(trace: Trace, launch: int | None) -> list[TrustLine]:
    launches, problems = trace.launches, trace.problems
    if launch is not None:
        launches = launches.filter(pl.col("launch") == launch)
        problems = problems.filter((pl.col("launch") == launch) | pl.col("launch").is_null())
    lost_events, lost_chunks = int(launches["lost_events"].sum()), int(launches["lost_chunks"].sum())
    events = int(launches["events"].sum())
    if lost_events or lost_chunks:
        share = 100 * lost_events / max(events + lost_events, 1)
        lost = f"{counted(lost_events, 'event')} lost ({share:.2g} % of all)"
        newest = trace.manifest.get("keep") == "newest"
        how = "overwritten by newer ones or without space (keep=newest)" if newest else "found no space"
        text = f"{lost}, {counted(lost_chunks, 'chunk')} {how}: raise the capacity or record fewer blocks"
        lines = [TrustLine("losses", "BAD", text)]
    elif trace.manifest.get("stopped") and launch in (None, trace.launches["launch"].max()):
        text = f"not known: the kernel was stopped before its count could be read; {counted(events, 'event')} are here"
        lines = [TrustLine("losses", "note", text)]
    else:
        lines = [TrustLine("losses", "ok", f"none of {events:,} events", f"{events:,} events, none lost")]
    never = problems.filter(pl.col("kind") == "site_never_reached")["text"].unique(maintain_order=True).to_list()
    if never:
        shown = "; ".join(visible(t) for t in never[:8]) + ("; …" if len(never) > 8 else "")
        lines.append(TrustLine("sites", "note", shown))
    else:
        lines.append(
            TrustLine("sites", "ok", f"all {trace.sites.height} reached", f"all {trace.sites.height} sites reached")
        )
    ends = problems.filter(pl.col("kind") == "no_end")
    if ends.height:
        number = int(ends["count"].sum())
        level: Level = "note" if (ends["severity"] == "note").all() else "BAD"
        lines.append(TrustLine("ends", level, f"{counted(number, 'warp')} {'has' if number == 1 else 'have'} no end"))
    else:
        lines.append(TrustLine("ends", "ok", "every warp ended", "every warp ended"))
    return lines + _problems(problems.filter(~pl.col("kind").is_in(_OWN_LINES)))


def _problems(problems: pl.DataFrame) -> list[TrustLine]:
    """One line a kind and severity, with the first place where it was seen."""
    grouped = problems.group_by("kind", "severity", maintain_order=True).agg(
        pl.col("count").sum(), pl.len().alias("rows"), pl.col("text", "block", "warp").first()
    )
    lines = []
    for row in grouped.iter_rows(named=True):
        where = [f"{name} {row[name]}" for name in ("block", "warp") if row[name] is not None]
        more = [f"{counted(row['rows'] - 1, 'more row')}"] if row["rows"] > 1 else []
        place = f" ({' '.join(where)}{', ' if where and more else ''}{''.join(more)})" if where or more else ""
        level: Level = "note" if row["severity"] == "note" else "BAD"
        kind = visible(row["kind"], limit=24).replace("_", " ")
        lines.append(TrustLine(kind, level, f"{row['count']:,}: {visible(row['text'])}{place}"))
    return lines


def _clocks(manifest: dict[str, Any]) -> TrustLine:
    state = manifest.get("clock_state")
    if not state:
        return TrustLine("clocks", "note", "clocks, power and throttling not measured")
    before, after = mapping(state.get("before")), mapping(state.get("after"))
    read = {"SM": ("sm_hz", 1e-6, "MHz"), "memory": ("memory_hz", 1e-6, "MHz"), "power": ("power_w", 1, "W")}
    read["temperature"] = ("temperature_c", 1, "C")
    parts = [
        _change(name, number(before.get(key)), number(after.get(key)), scale, unit)
        for name, (key, scale, unit) in read.items()
    ]
    reported = [entries(s.get("throttle_reasons")) for s in (before, after)]
    reasons = sorted({visible(r) for rs in reported for r in rs or []} - _HARMLESS_THROTTLES)
    if reasons:
        return TrustLine("clocks", "BAD", ", ".join(parts) + ", throttled: " + ", ".join(reasons))
    parts.append("throttling not measured" if None in reported else "not throttled")
    first, last = number(before.get("sm_hz")), number(after.get("sm_hz"))
    if not first or not last or abs(last - first) > STEADY_CLOCK * first or None in reported:
        return TrustLine("clocks", "note", ", ".join(parts))
    return TrustLine("clocks", "ok", ", ".join(parts), f"{first * 1e-6:.0f} MHz, not throttled")


def _neighbours(manifest: dict[str, Any]) -> TrustLine:
    device, state = mapping(manifest.get("device")), mapping(manifest.get("clock_state"))
    seen = [mapping(state.get(when)).get("other_processes") for when in ("before", "after")]
    counts = [number(len(s) if isinstance(s, list) else s) for s in seen]
    others = [n for n in counts if n is not None]
    facts = {"MIG": device.get("mig"), "MPS": device.get("multi_process")}
    facts = {k: v if isinstance(v, bool) else None for k, v in facts.items()}
    parts = [f"{k} {'not known' if v is None else 'on' if v else 'off'}" for k, v in facts.items()]
    parts.append(f"other processes {max(others):.0f}" if others else "other processes not known")
    shared = any(facts.values()) or any(others)
    known = None not in facts.values() and bool(others)
    return TrustLine(
        "sharing", "BAD" if any(others) else "note" if shared or not known else "ok", ", ".join(parts), "GPU not shared"
    )


def _time_axis(trace: Trace, launch: int | None) -> TrustLine:
    step = trace.manifest.get("globaltimer_step_ns")
    launches = trace.launches if launch is None else trace.launches.filter(pl.col("launch") == launch)
    worst = launches["uncertainty_ns"].max()
    parts = [f"globaltimer steps by {step} ns" if step else "globaltimer step not measured"]
    within_ns = worst if isinstance(worst, float) and isfinite(worst) else None
    parts.append("agreement between SMs not known" if within_ns is None else f"SMs agree within {within_ns:.0f} ns")
    rates = launches["cycles_per_ns"].drop_nulls()
    parts.append(f"{np.mean(rates.to_numpy()):.4f} cycles/ns" if rates.len() else "clock rate not known")
    if within_ns is None or within_ns > LOOSE_AXIS_NS or not step:
        return TrustLine("time axis", "note", ", ".join(parts))
    return TrustLine("time axis", "ok", ", ".join(parts), ", ".join(parts[1:]))


def _known(value: object) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) else visible(value)


def _change(name: str, before: float | None, after: float | None, scale: float, unit: str) -> str:
    shown = [None if v is None else f"{v * scale:.0f}" for v in (before, after)]
    if shown == [None, None]:
        return f"{name} not measured"
    if shown[0] == shown[1]:
        return f"{name} {shown[0]} {unit}"
    return f"{name} {shown[0] or '?'} -> {shown[1] or '?'} {unit}"
