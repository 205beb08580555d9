"""Roles: warps of a block that do the same.

In: how often each warp (by index, over all blocks) visits each site, and for how long. Out: groups of warps. Used for
what marks cost and by the summary, so that both mean the same by a role.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_ROLES: Final = 8
"""With more roles than this, warps differ too much for roles to say anything."""
ROLE_GAP: Final = 3.0
ROLE_CYCLES: Final = 30
ROLE_SAMPLES: Final = 8
"""Warps that visit the same sites are still two roles where, in some site, their medians leave a gap of this factor
and at least this many cycles, each median being of at least ROLE_SAMPLES visits. (In RMSNorm all warps pass
cross_reduce, and only warp 0 does it.)"""


def find_roles(visits: Iterable[tuple[int, int, int, float]]) -> list[list[int]]:
    """Groups of warps, in the order of their first warp, from (site, warp, visits, median in cycles) of each site
    and warp."""
    by_site: dict[int, list[tuple[float, int, int]]] = {}
    for site, warp, count, p50_cycles in visits:
        by_site.setdefault(site, []).append((p50_cycles, warp, count))
    signature: dict[int, list[tuple[int, int]]] = {}
    for site in sorted(by_site):
        rank, before = 0, None
        typical = all(count >= ROLE_SAMPLES for _, _, count in by_site[site])
        for p50_cycles, warp, _ in sorted(by_site[site]):
            gap = before is not None and p50_cycles - before >= ROLE_CYCLES and p50_cycles >= ROLE_GAP * before
            rank += typical and gap
            signature.setdefault(warp, []).append((site, rank))
            before = p50_cycles
    roles: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for warp in sorted(signature):
        roles.setdefault(tuple(signature[warp]), []).append(warp)
    return list(roles.values())
