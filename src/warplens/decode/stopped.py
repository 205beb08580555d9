"""Where the warps of a kernel that was stopped last were.

In: a checked manifest with `stopped`, and the records of its last launch, where there are any. Out: one row a warp, by
site, with the time since its last event where that can be told; the same as lines of text. Reads the records as they
came: chunks may be torn, and nothing here trusts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan
from typing import Any, Final

import numpy as np

from warplens import clock, layout
from warplens.decode.arrays import I64, U32
from warplens.decode.audit import expected_warps
from warplens.decode.last import RECORDS
from warplens.decode.manifest import MAX_LAUNCHES
from warplens.decode.wording import counted, number_ranges
from warplens.layout import ChunkFlag, Control

LINES: Final = 20
"""Of text, at most, for the places of all warps."""
_HELD, _MOST_HELD = 208, 1664
"""Records of marks in PTX that a warp may keep in shared memory: where the file does not say, and at most."""
_FOR_SINCE_S: Final = 100.0
"""Between a clock pair and the stop, at most, so that times since then can be told."""
_CONTROLS: Final = {
    Control.GAP: "a mark left out",
    Control.RANGE_POP: "behind a range_pop",
    Control.TOKEN_END: "behind a range_end",
    Control.PHASE_END: "behind an end_phase",
}


@dataclass(frozen=True)
class LastPlace:
    """A warp and its last event. `site`: of the site set, from 1; 0 where the event has none. `since_s` may be nan."""

    block: int
    warp: int
    site: int
    name: str
    ended: bool
    since_s: float = nan


def last_places(manifest: dict[str, Any], records: Mapping[str, U32] | None = None) -> list[LastPlace]:
    """A row for each warp in the table of last places, by block and warp; none where the kernel was not stopped.

    With `records` (member name to chunks), `since_s` says how long before the stop the event was: by the calibration
    before the launch, on the SM that the event's chunk names.
    """
    stopped, launches = manifest["stopped"], manifest["launches"]
    if stopped is None or not stopped["last"] or not launches:
        return []
    names = _names(manifest)
    code_bits = layout.code_bits(len(names))
    since_s = np.full(len(stopped["last"]), nan)
    if records is not None and launches[-1]["records"] in records:
        since_s = _since_s(manifest, records[launches[-1]["records"]], code_bits)
    out = []
    for (block, warp, _, record), seconds in zip(stopped["last"], since_s.tolist(), strict=True):
        site, verb = layout.read_code(record, code_bits)
        ended = site == 0 and verb == Control.END
        name = names[site - 1] if 0 < site <= len(names) else "" if site else _CONTROLS.get(Control(verb), "")
        out.append(LastPlace(block, warp, site, name or f"site {site} (unknown)", ended, seconds))
    return sorted(out, key=lambda place: (place.block, place.warp))


def where_lines(manifest: dict[str, Any], records: Mapping[str, U32]) -> list[str]:
    """Where each warp last was, as text of at most LINES lines: the places of the fewest warps first."""
    if manifest["stopped"] is None:
        return []
    places = last_places(manifest, records)
    running = [place for place in places if not place.ended]
    lines, groups, held = [], _groups(running), held_back(manifest)
    if groups:
        lines.append(f"Where each warp was at least{held}:" if held else "Where each warp last was:")
    doubtful = doubts(manifest)
    room = LINES - 4 - len(doubtful)
    shown = groups if len(groups) <= room else groups[: room - 1]
    lines += [f"  {_place_text(group)}" for group in shown]
    if len(groups) > len(shown):
        rest = sum(len(group) for group in groups[len(shown) :])
        lines.append(f"  and {counted(rest, 'warp')} in {len(groups) - len(shown):,} more places")
    ended = len(places) - len(running) + ended_beside(manifest)
    if ended:
        lines.append(f"  {counted(ended, 'warp')} had ended")
    absent = _absent(manifest, records, places)
    if absent:
        lines.append(
            f"  {counted(absent, 'warp')} {'left no record' if held else 'had not begun, or had come to no mark'}"
        )
    lines += [f"  {line}" for line in doubtful]
    if groups or ended:
        return lines
    return [
        f"No warp left a record{held}." if held else "No warp had come to a mark.",
        *(f"  {line}" for line in doubtful),
    ]


def held_back(manifest: dict[str, Any]) -> str:
    """What a warp of the stopped kernel may have done that is not to be seen, in parentheses; "" where all is."""
    if manifest["stopped"].get("from") != RECORDS or not manifest["launches"]:
        return ""
    kernel = manifest["kernels"][manifest["launches"][-1]["kernel"]]
    policy = kernel.get("policy") or manifest["policy"]
    if policy == "packed":
        return " (with policy packed a warp keeps up to 24 of its last records in registers)"
    if policy != "staged":
        return ""
    most, more = 26, ""
    if isinstance(marked := kernel.get("instrumented"), dict):
        said, more = marked.get("records_held"), ", but with --timeout or --policy stream"
        most = said if isinstance(said, int) and 0 < said <= _MOST_HELD else _HELD
    return f" (with policy staged a warp keeps up to {most:,} of its last records in shared memory{more})"


def ended_beside(manifest: dict[str, Any]) -> int:
    """Warps that had ended and are not in the table of last places."""
    ended = manifest["stopped"].get("ended")
    return ended if isinstance(ended, int) else 0


def doubts(manifest: dict[str, Any]) -> list[str]:
    """What else is to be known of the places, a line each."""
    stopped = manifest["stopped"]
    if stopped.get("from") != RECORDS or not manifest["launches"]:
        return []
    lines, last = [], manifest["launches"][-1]
    further = "warps may be further on than is shown (--capacity)"
    if last["lost_events"]:
        lines.append(f"{counted(last['lost_events'], 'record')} found no space: {further}")
    elif last.get("full") is True:  # most recorders count what they lose when they end
        lines.append(f"the memory for records was used up: {further}")
    behind = stopped.get("behind")
    if isinstance(behind, int) and 0 < behind <= MAX_LAUNCHES:
        made = f"{behind:,} launch{'es' if behind > 1 else ''} made behind this one left no record"
        lines.append(f"{made}, perhaps for want of space: it may be there that the program hangs")
    if stopped.get("sites_guessed"):
        lines.append("no block had ended, which would say which set of sites its marks are of: the names may be wrong")
    return lines


def _names(manifest: dict[str, Any]) -> list[str]:
    """Names of the sites of the last launch's kernel."""
    wanted = manifest["kernels"][manifest["launches"][-1]["kernel"]]["site_set"]
    sites = next(entry["sites"] for entry in manifest["site_sets"] if entry["name"] == wanted)
    return [str(site["name"]) for site in sites]


def _groups(places: list[LastPlace]) -> list[list[LastPlace]]:
    """Places of one name and of the same warps in each block, the smallest group first."""
    of_block: dict[tuple[str, tuple[int, ...]], list[LastPlace]] = {}
    ordered = sorted(places, key=lambda place: (place.block, place.name))
    for (_, name), group in groupby(ordered, key=lambda place: (place.block, place.name)):
        own = list(group)
        of_block.setdefault((name, tuple(place.warp for place in own)), []).extend(own)
    return sorted(of_block.values(), key=lambda group: (len(group), group[0].block, group[0].warp))


def _place_text(group: list[LastPlace]) -> str:
    blocks, warps = sorted({place.block for place in group}), sorted({place.warp for place in group})
    text = " ".join(
        f"{noun}{'s' if len(numbers) > 1 else ''} {number_ranges(numbers)}"
        for noun, numbers in (("block", blocks), ("warp", warps))
    )
    text += f": {group[0].name}"
    since_s = [place.since_s for place in group if isfinite(place.since_s)]
    if since_s:
        least, most = _seconds(min(since_s)), _seconds(max(since_s))
        text += f", since {least}" + (f" to {most}" if most != least else "")
    return text + (f" ({len(group):,} warps)" if len(group) > 1 else "")


def _seconds(value_s: float) -> str:
    return f"{value_s:.1f} s" if value_s >= 0.1 else f"{1e3 * value_s:.0f} ms"


def _absent(manifest: dict[str, Any], records: Mapping[str, U32], places: list[LastPlace]) -> int:
    """Warps that should have been recorded and left neither a chunk nor a place."""
    if not manifest["launches"] or (not manifest["stopped"]["last"] and manifest["stopped"].get("from") != RECORDS):
        return 0
    entry = manifest["launches"][-1]
    seen = _warp_key(*np.array([(place.block, place.warp) for place in places], np.int64).reshape(-1, 2).T)
    chunks = records.get(entry["records"])
    if chunks is not None:
        seen = np.append(seen, _warp_key(chunks[:, layout.WORD_BLOCK], chunks[:, layout.WORD_META]))
    return max(expected_warps(entry) - len(np.unique(seen)), 0)


def _since_s(manifest: dict[str, Any], chunks: U32, code_bits: int) -> Any:
    """Seconds from each last event to the stop; nan where its chunk, or the calibration of its launch, is missing."""
    last = np.array(manifest["stopped"]["last"], np.int64).reshape(-1, 4)
    out = np.full(len(last), nan)
    before, stop_ns = _stop_of(manifest)
    found = _chunk_of(last, chunks)
    at = np.flatnonzero(found >= 0)
    if stop_ns is None or not len(at):
        return out
    own = chunks[found[at]]
    meta = own[:, layout.WORD_META].astype(np.int64)
    sm = meta >> layout.META_SM_SHIFT & ((1 << layout.META_SM_BITS) - 1)
    base = own[:, layout.WORD_BASE_HIGH].astype(np.int64) << 32 | own[:, layout.WORD_BASE_LOW]
    passed = ((last[at, 3] >> code_bits) - base) & ((1 << 32 - code_bits) - 1)
    behind = meta & (int(ChunkFlag.STREAM) << layout.META_FLAGS_SHIFT) == 0  # its clock is that of its end
    passed -= np.where(behind & (passed > 0), 1 << 32 - code_bits, 0)
    fitted = clock.fit(
        [], [], [], step_ns=manifest["globaltimer_step_ns"], calibration=before, wanted_sms=np.unique(sm)
    )
    since_s = (stop_ns - fitted.to_ns(sm, base + passed)) / 1e9
    told = fitted.known[sm] & (since_s > -0.1) & (since_s <= manifest["stopped"]["after_s"] + 0.1)
    out[at[told]] = np.maximum(since_s[told], 0.0)
    return out


def _stop_of(manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], int | None]:
    """The clock pairs that go with the last launch, and the globaltimer at the stop; None where it is not known."""
    before = [entry for entry in manifest["calibration"] if entry["when"] == "before"]
    stopped, device = manifest["stopped"], manifest["launches"][-1].get("device")
    if "globaltimer_ns" not in stopped:  # of Kernel.record: a pair just before each launch
        if len(before) != len(manifest["launches"]):
            return [], None
        begun_ns = int(clock.int64(before[-1]["globaltimer_ns"]).max(initial=0))
        return before[-1:], begun_ns + round(stopped["after_s"] * 1e9)
    own = [entry for entry in before if device is None or entry.get("device", device) == device][-1:]
    stop_ns = stopped.get("globaltimer_ns")
    if not own or not isinstance(stop_ns, int) or not len(own[0]["globaltimer_ns"]):
        return [], None
    near = abs(stop_ns - int(clock.int64(own[0]["globaltimer_ns"]).max())) <= _FOR_SINCE_S * 1e9
    return own, stop_ns if near else None


def _chunk_of(last: I64, chunks: U32) -> I64:
    """For each last event the row of the chunk that holds it; -1 where none does."""
    out = np.full(len(last), -1)
    if not len(chunks):
        return out
    of_chunk, of_last = _warp_key(chunks[:, layout.WORD_BLOCK], chunks[:, layout.WORD_META]), _warp_key(*last.T[:2])
    warps = np.unique(of_last)
    place = np.minimum(np.searchsorted(warps, of_chunk), len(warps) - 1)
    rows = np.flatnonzero(warps[place] == of_chunk)
    begins = place[rows] << 32 | chunks[rows, layout.WORD_SEQUENCE]
    order = np.argsort(begins, kind="stable")
    begins, rows = begins[order], rows[order]
    wanted = np.searchsorted(warps, of_last) << 32 | last[:, 2]
    index = np.searchsorted(begins, wanted, side="right") - 1
    slot = wanted - begins[np.maximum(index, 0)] if len(begins) else np.full(len(last), -1)
    at = np.flatnonzero((index >= 0) & (slot >= 0) & (slot < layout.RECORD_SLOTS))
    holds = chunks[rows[index[at]], layout.HEADER_WORDS + slot[at]] == last[at, 3]
    out[at[holds]] = rows[index[at[holds]]]
    return out


def _warp_key(block: Any, meta: Any) -> I64:
    """One number for block and warp, in their order."""
    warp = np.asarray(meta).astype(np.int64) & ((1 << layout.META_WARP_BITS) - 1)
    return np.asarray(np.asarray(block).astype(np.int64) << layout.META_WARP_BITS | warp)
