"""The facts of a manifest, checked: types, ranges and references, before anything else trusts them.

In: a manifest as parsed from JSON, from any source. Out: the same manifest with absent optional keys filled in
(unknown keys stay), or a `FormatError` that names the JSON path, what was expected and what was found.
Must not read files and must not change values that are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from warplens import layout
from warplens.errors import FormatError, VersionError

Check = Callable[[Any, str], None]

MAX_LAUNCHES: Final = 1_000_000
MAX_GRID_BLOCKS: Final = 1 << 32  # a chunk names its block with 32 bits
MAX_RESIDENT_WARPS: Final = layout.LAST_WARPS << layout.META_SM_BITS
MAX_BLOCK_THREADS: Final = 32 << layout.META_WARP_BITS


def check(manifest: Any, where: str = "manifest") -> dict[str, Any]:
    """Checks a manifest and returns it with every key of format 1 present.

    Raises `VersionError` for a newer major version and `FormatError` for anything that format 1 does not allow.
    """
    if not isinstance(manifest, dict):
        raise FormatError(f"{where}: expected a JSON object, found {_show(manifest)}")
    if manifest.get("format") != "wlens":
        raise FormatError(f'{where}.format: expected "wlens", found {_show(manifest.get("format"))}')
    _version(manifest.get("version"), where)
    filled = {**_DEFAULTS, **manifest}
    _MANIFEST(filled, where)
    for index, launch in enumerate(filled["launches"]):
        _launch_makes_sense(filled, launch, f"{where}.launches[{index}]")
    names = [entry["name"] for entry in filled["site_sets"]]
    if len(set(names)) != len(names):
        raise FormatError(f"{where}.site_sets: expected different names, found {_show(names)}")
    for index, kernel in enumerate(filled["kernels"]):
        if kernel["site_set"] not in names:
            path = f"{where}.kernels[{index}].site_set"
            raise FormatError(f"{path}: expected one of {_show(names)}, found {_show(kernel['site_set'])}")
        if kernel.get("audit") is not None:
            sites = filled["site_sets"][names.index(kernel["site_set"])]["sites"]
            _check_audit(kernel["audit"], len(sites), f"{where}.kernels[{index}].audit")
        if kernel.get("corrections") is not None:
            sites = len(filled["site_sets"][names.index(kernel["site_set"])]["sites"])
            _corrections(kernel["corrections"], sites, f"{where}.kernels[{index}].corrections")
    for index, entry in enumerate(filled["site_sets"]):
        ids = [site["id"] for site in entry["sites"]]
        if ids != list(range(1, len(ids) + 1)):
            raise FormatError(f"{where}.site_sets[{index}]: expected the ids 1, 2, 3 ... in order, found {_show(ids)}")
        _list(_text)(entry.get("left_out", []), f"{where}.site_sets[{index}].left_out")
        for number, site in enumerate(entry["sites"]):
            _nullable(_u32)(site.get("arrivals"), f"{where}.site_sets[{index}].sites[{number}].arrivals")
    for index, entry in enumerate(filled["calibration"]):
        if len({len(entry[key]) for key in ("sm", "globaltimer_ns", "clock_cycles")}) != 1:
            raise FormatError(f"{where}.calibration[{index}]: expected three lists of one length")
    return filled


def blocks_of(launch: dict[str, Any]) -> int:
    """Blocks in the grid of a launch's entry."""
    return int(math.prod(launch["grid"]))


def warps_of(launch: dict[str, Any]) -> int:
    """Warps of a block of a launch's entry; a last partial warp counts."""
    return -(-int(math.prod(launch["block"])) // 32)


def chosen_blocks(launch: dict[str, Any]) -> range | list[int]:
    """Blocks of a launch's entry that were to be recorded, ascending; `every` is not 0."""
    every = range(0, blocks_of(launch), launch["every"])
    listed = launch.get("blocks")
    return every if listed is None else [block for block in sorted(set(listed)) if block in every]


def chosen_warps(launch: dict[str, Any]) -> list[int]:
    """Warps of a block of a launch's entry that were to be recorded, ascending."""
    return [warp for warp in range(warps_of(launch)) if launch["warp_mask"] >> warp & 1]


def overwrites(manifest: dict[str, Any], launch: int) -> bool:
    """Whether what is missing of a launch was written over by what came later (`keep` is "newest").

    The manifest may be one that capture is still making: keys that have a default may be absent.
    """
    lost = manifest["launches"][launch]["lost_events"] > 0
    stopped = manifest.get("stopped") is not None and launch == len(manifest["launches"]) - 1  # then nobody counted
    return manifest.get("keep") == "newest" and (lost or stopped)


def _version(version: Any, where: str) -> None:
    known = ".".join(map(str, layout.FORMAT_VERSION))
    if not (isinstance(version, list) and len(version) == 2 and all(_is_int(v) and v >= 0 for v in version)):
        raise FormatError(f"{where}.version: expected [major, minor], found {_show(version)}")
    if version[0] > layout.FORMAT_VERSION[0]:
        found = ".".join(map(str, version))
        raise VersionError(
            f"{where}: the file has format {found}, this warplens reads up to {known}: install a newer warplens"
        )


def _launch_makes_sense(manifest: dict[str, Any], launch: dict[str, Any], path: str) -> None:
    if launch["kernel"] >= len(manifest["kernels"]):
        raise FormatError(f"{path}.kernel: expected below {len(manifest['kernels'])}, found {launch['kernel']}")
    if blocks_of(launch) > MAX_GRID_BLOCKS:
        raise FormatError(f"{path}.grid: expected at most {MAX_GRID_BLOCKS} blocks, found {launch['grid']}")
    _nullable(_list(_u32))(launch.get("blocks"), f"{path}.blocks")  # newer than format 1.0
    if math.prod(launch["block"]) > MAX_BLOCK_THREADS:
        raise FormatError(f"{path}.block: expected at most {MAX_BLOCK_THREADS} threads, found {launch['block']}")


def _check_audit(entry: Any, sites: int, path: str) -> None:
    _AUDIT(entry, path)
    columns = entry["columns"]
    _list(_nullable(_text))(columns.get("bulk_loads", []), f"{path}.columns.bulk_loads")  # newer than the audit
    if len({len(values) for values in columns.values() if isinstance(values, list)}) != 1:
        raise FormatError(f"{path}.columns: expected lists of one length")
    known = [site for site in columns["site"] if site is not None]
    if known and max(known) >= sites:
        raise FormatError(f"{path}.columns.site: expected below {sites}, found {max(known)}")


def _corrections(value: Any, sites: int, path: str) -> None:
    """`kernels[i].corrections`, since format 1.1: either the reason why there are none, or all of them."""
    _of(dict, "an object")(value, path)
    if value.get("not_measured") is not None:
        _text(value["not_measured"], f"{path}.not_measured")
        return
    _CORRECTIONS(value, path)
    rows = value["rows"]
    if len({len(rows[name]) for name in rows if isinstance(rows[name], list)}) > 1:
        raise FormatError(f"{path}.rows: expected lists of one length")
    for name, bound in (("role", len(value["roles"])), ("site", sites + 1)):
        _list(_int(0, bound - 1))(rows[name], f"{path}.rows.{name}")
    if (anchor := value.get("anchor")) is not None:
        _anchor(anchor, len(value["roles"]), f"{path}.anchor")


def _anchor(value: Any, roles: int, path: str) -> None:
    """`corrections.anchor`: the reason why there is none, or lists of a value a role."""
    _object(not_measured=_nullable(_text))(value, path)
    if value["not_measured"] is None:
        each = _list(_nullable(_number), roles, roles)
        lists = {"life_cycles": each, "marks_uncertainty_cycles": each, "factor": each, "factor_uncertainty": each}
        _object(**lists)(value, path)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ---- a small vocabulary of checks: each takes a value and its path, and raises --------------------------------
def _int(low: int, high: int) -> Check:
    def run(value: Any, path: str) -> None:
        if not _is_int(value) or not low <= value <= high:
            raise FormatError(f"{path}: expected an integer from {low} to {high}, found {_show(value)}")

    return run


def _of(kind: type, name: str) -> Check:
    def run(value: Any, path: str) -> None:
        if not isinstance(value, kind):
            raise FormatError(f"{path}: expected {name}, found {_show(value)}")

    return run


def _number(value: Any, path: str) -> None:
    fits = isinstance(value, float) or (_is_int(value) and abs(value) < 1 << 1023)  # a larger int is no float
    if not fits or not math.isfinite(value):
        raise FormatError(f"{path}: expected a finite number, found {_show(value)}")


def _nullable(inner: Check) -> Check:
    def run(value: Any, path: str) -> None:
        if value is not None:
            inner(value, path)

    return run


def _list(inner: Check, low: int = 0, high: int = 1 << 24) -> Check:
    def run(value: Any, path: str) -> None:
        if not isinstance(value, list) or not low <= len(value) <= high:
            size = f"{low}" if low == high else f"{low} to {high}"
            raise FormatError(f"{path}: expected a list of {size} values, found {_show(value)}")
        for index, item in enumerate(value):
            inner(item, f"{path}[{index}]")

    return run


def _object(**keys: Check) -> Check:
    def run(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{path}: expected an object, found {_show(value)}")
        for key, inner in keys.items():
            if key not in value:
                raise FormatError(f"{path}: expected the key {key!r}, found only {_show(sorted(map(str, value)))}")
            inner(value[key], f"{path}.{key}")

    return run


def _text(value: Any, path: str) -> None:
    _of(str, "a text")(value, path)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{path}: expected a text that UTF-8 can hold, found {_show(value)}") from error


def _one_of(*texts: str) -> Check:
    def run(value: Any, path: str) -> None:
        if value not in texts:
            raise FormatError(f"{path}: expected one of {_show(list(texts))}, found {_show(value)}")

    return run


_flag = _of(bool, "true or false")
_u32 = _int(0, (1 << 32) - 1)
_u64 = _int(0, (1 << 64) - 1)
_dims = _list(_int(1, (1 << 31) - 1), 3, 3)
_samples = _nullable(_list(_number))
_resources = _nullable(_object(registers=_u32, shared_bytes=_u32, local_bytes=_u64, resident_blocks=_u32))

_CORRECTIONS: Final = _object(
    launches=_u32,
    copies=_u32,
    mark_cycles=_nullable(_object(p10=_number, p50=_number, p90=_number)),
    roles=_list(_list(_int(0, (1 << layout.META_WARP_BITS) - 1))),
    rows=_object(
        role=_list(_u32),
        site=_list(_u32),
        verb=_list(_text),
        spans=_list(_u64),
        duration_cycles=_list(_number),
        cost_cycles=_list(_number),
        cost_uncertainty_cycles=_list(_number),
        corrected_uncertainty_cycles=_list(_number),
        mark_uncertainty_cycles=_list(_number),
    ),
)

_MANIFEST: Final = _object(
    warplens=_nullable(_text),
    created=_nullable(_text),
    complete=_flag,
    stopped=_nullable(
        _object(
            why=_text,
            after_s=_number,
            last=_list(_list(_u32, 4, 4), 0, MAX_RESIDENT_WARPS),
        )
    ),
    note=_nullable(_text),
    host=_nullable(_text),
    command=_nullable(_list(_text)),
    policy=_text,
    keep=_one_of("oldest", "newest"),
    capacity_bytes=_nullable(_u64),
    device=_nullable(_object()),
    clock_state=_nullable(_object()),
    globaltimer_step_ns=_nullable(_int(1, 1_000_000_000)),
    site_sets=_list(
        _object(
            name=_text,
            hash=_u32,
            sites=_list(
                _object(id=_u32, name=_text, kind=_text, resource=_text, file=_text, line=_u32), 1, layout.MAX_SITES
            ),
        )
    ),
    kernels=_list(
        _object(
            name=_text,
            site_set=_text,
            clean=_resources,
            traced=_resources,
            clean_ns=_samples,
            traced_ns=_samples,
            not_measured=_nullable(_text),
            mark_cost_cycles=_nullable(_number),
        )
    ),
    launches=_list(
        _object(
            kernel=_u32,
            grid=_dims,
            block=_dims,
            cluster=_dims,
            shared_bytes=_u32,
            stream=_u64,
            rank=_u32,
            replay=_u32,
            grid_id=_nullable(_u64),
            records=_nullable(_text),
            lost_events=_u64,
            lost_chunks=_u64,
            every=_u32,
            warp_mask=_u64,
            cold_l2=_flag,
        ),
        0,
        MAX_LAUNCHES,
    ),
    calibration=_list(
        _object(
            when=_text,
            sm=_list(_int(0, (1 << 16) - 1)),
            globaltimer_ns=_list(_int(-(1 << 63), (1 << 64) - 1)),
            clock_cycles=_list(_int(-(1 << 63), (1 << 64) - 1)),
        )
    ),
)

_AUDIT: Final = _object(
    columns=_object(
        site=_list(_nullable(_int(0, layout.MAX_SITES))),
        verb=_list(_text),
        file=_list(_text),
        line=_list(_u32),
        address=_list(_nullable(_u32)),
        outstanding_loads=_list(_nullable(_u32)),
        waits_on=_list(_text),
        finding=_list(_text),
        severity=_list(_text),
    ),
    facts=_nullable(_object()),
    not_audited=_nullable(_text),
)
"""A kernel's `audit`, which files before 1.1 do not have."""

_DEFAULTS: Final[dict[str, Any]] = {
    "warplens": None,
    "created": None,
    "complete": True,
    "stopped": None,
    "note": None,
    "host": None,
    "command": None,
    "policy": "packed",
    "keep": "oldest",
    "capacity_bytes": None,
    "device": None,
    "clock_state": None,
    "globaltimer_step_ns": None,
    "calibration": [],
}
"""Keys that may be absent: what a file without them means. Sites, kernels and launches must be there."""
