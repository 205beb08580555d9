"""A second decoder of the page's data, to compare with what went in; and pages with anything in their names.

In: the text of a page. Out: its facts, and its spans as columns in the order of the page. Follows
`warplens/render/page/codec.js` and `model.js` in the plainest Python that can be checked by eye.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from typing import Any

import polars as pl

KEYS = ["launch", "block", "warp", "sequence"]
TIMES = ["start_ns", "start_cycles", "duration_cycles", "duration_ns"]
COLUMNS = [*KEYS, "site", "depth", *TIMES, "payload", "id", "flags"]

HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"`${document.title='owned'}",
    "\N{FIRE}\N{PERSON WITH BALL}\N{ZERO WIDTH JOINER}\N{FEMALE SIGN}",
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}\N{RIGHT-TO-LEFT OVERRIDE}abc",
    "x" * 10_000,
    "<!--",
    "]]>&amp;\x00\x1b[2J\n\u2028",
]
"""A name for each site of the RMSNorm-like traces."""


def facts_and_streams(page: str) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON and the unpacked streams of a page."""
    (packed,) = re.findall(r'<script type="text/plain" id="facts-data">([^<]*)</script>', page)
    streams = re.findall(r'<script type="text/plain" class="stream">([^<]*)</script>', page)
    return json.loads(unpacked(packed)), [unpacked(stream) for stream in streams]


def spans_of(facts: dict[str, Any], streams: list[bytes]) -> pl.DataFrame:
    """The spans as the trace's table has them, sorted by KEYS."""
    c = {name: numbers_of(column, streams) for name, column in facts["columns"].items()}
    duration = _spread(c["duration"], c["site"])
    rows = []
    segment = at = 0
    for row, segments in enumerate(c["row_segments"]):
        lane = c["row_lane"][row]
        for _ in range(segments):
            block = c["segment_block"][segment]
            stop = at + c["segment_spans"][segment]
            segment += 1
            rows += _segment(facts, c, duration, block, at, stop, c["lane_launch"][lane], c["row_warp"][row])
            at = stop
    assert at == facts["spans"]
    schema = dict.fromkeys(COLUMNS, pl.Int64)
    return pl.DataFrame(rows, schema=schema, orient="row").sort(*KEYS, "start_ns")


def _segment(
    facts: dict[str, Any],
    c: dict[str, list[int]],
    duration: list[int],
    block: int,
    at: int,
    stop: int,
    launch: int,
    warp: int,
) -> list[tuple[Any, ...]]:
    clock = facts["clocks"][c["block_clock"][block]]
    origin = int(facts["since_trace_ns"])

    def told(cycles: int) -> int:
        return math.floor(float(clock["offset_ns"]) + cycles * float(clock["ns_per_cycle"]) + 0.5)

    begins, ends, cycles = [], [], c["block_since"][block]
    for i in range(at, stop):
        cycles += c["gap"][i]
        begins.append((cycles, told(cycles) + c["start_ns"][i]))
        cycles += duration[i]
    for k, i in enumerate(range(at, stop)):
        if duration[i] == 0:
            end = begins[k][1]
        elif i + 1 < stop and c["gap"][i + 1] == 0:
            end = begins[k + 1][1]
        else:
            end = told(begins[k][0] + duration[i])
        ends.append(end + c["duration_ns"][i])
    out, sequence = [], -1
    for k, i in enumerate(range(at, stop)):
        sequence = c["sequence"][i] if k == 0 else sequence + 1 + c["sequence"][i]
        words = [c[n][i] if n in c and c[f"{n}_valid"][i] else None for n in ("payload", "id")]
        start = begins[k][0] + int(clock["base_cycles"])
        times = (begins[k][1] + origin, start, duration[i], ends[k] - begins[k][1])
        key = (launch, c["block_block"][block], warp, sequence)
        out.append((*key, c["site"][i], c["depth"][i], *times, *words, c["flags"][i]))
    return out


def arrows_of(facts: dict[str, Any], streams: list[bytes]) -> list[tuple[int, int, int, int]]:
    """Of each wait in the order of the page: its place, its arrival's (-1 for none), of how many, basis."""
    c = {name: numbers_of(column, streams) for name, column in facts["columns"].items()}
    first, lane_first, row_of, segment, at = list[int](), dict[int, int](), list[int](), 0, 0
    for row, segments in enumerate(c["row_segments"]):
        lane_first.setdefault(c["row_lane"][row], row)
        first.append(at)
        size = sum(c["segment_spans"][segment : segment + segments])
        row_of += [row] * size
        segment, at = segment + segments, at + size
    waits = [i for i, site in enumerate(c["site"]) if facts["sites"][site]["waits"]]
    out = []
    for k, i in enumerate(waits):
        target = lane_first[c["row_lane"][row_of[i]]] + c["arrow_row"][k]
        place = first[target] + i - first[row_of[i]] + c["arrow_place"][k]
        of = c["arrow_of"][k]
        out.append((i, place if of else -1, of, c["arrow_basis"][k]))
    return out


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))


def numbers_of(column: dict[str, Any], streams: list[bytes]) -> list[int]:
    out = [0] * column["n"]
    for k, plane in enumerate(column["planes"]):
        data = bytes([plane]) * column["n"] if isinstance(plane, int) else b"".join(streams[s] for s in plane)
        assert len(data) == column["n"]
        out = [value + (byte << 8 * k) for value, byte in zip(out, data, strict=True)]
    if not column["signed"]:
        return out
    if len(column["planes"]) == 1:
        return [value - 256 if value > 127 else value for value in out]
    return [(value >> 1) ^ -(value & 1) for value in out]


def _spread(values: list[int], site: list[int]) -> list[int]:
    order = sorted(range(len(site)), key=lambda i: site[i])
    out = [0] * len(site)
    for value, i in zip(values, order, strict=True):
        out[i] = value
    return out
