"""Random and absurd launches between canary words: nothing outside of announced chunks changes, every event is counted.

In: a seed. Out: rows. Each launch has an arena of its own with 4 KiB of canary words around it; a policy that writes
whole chunks finds them in all chunks too, one that writes events finds zeros there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from launching import INT, POINTER, Guarded, launch, point, row

from warplens import layout
from warplens.capture import driver
from warplens.capture.builds import policy_options
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

SOURCE = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
BUILDS = {
    "packed": ("packed", ()),
    "packed, built for loops": ("packed", ("-DWARPLENS_LOOPS",)),
    "staged": ("staged", ()),
    "stream": ("stream", ()),
    "live": ("live", ()),
}
CODE_BITS = layout.code_bits(3)
KERNELS = ("loops", "lanes", "line")
EVENTS_A_TURN = {"loops": 4, "lanes": 2}
LINE_EVENTS = 30
SEED = 11
MOST_THREADS = 768
ABSURD_BYTES = {
    "no chunk": layout.CONTROL_BYTES,
    "one chunk": layout.CONTROL_BYTES + layout.CHUNK_BYTES,
    "a chunk more than a round of the cursors": layout.CONTROL_BYTES
    + (2 * layout.CURSOR_COUNT + 1) * layout.CHUNK_BYTES,
    "no multiple of a chunk": layout.CONTROL_BYTES + 300 * layout.CHUNK_BYTES + 77,
}


@dataclass(frozen=True)
class Shot:
    """One launch: kernel, build, shape, arena and what is recorded of it."""

    kernel: str
    build: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    turns: int
    capacity_bytes: int
    choice: dict[str, Any] = field(default_factory=dict)

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-int(np.prod(self.block)) // 32)

    def expected_events(self) -> int:
        """Events that the chosen warps of the chosen blocks take."""
        blocks = np.arange(int(np.prod(self.grid)))
        chosen = blocks % self.choice.get("every_block", 1) == 0
        if "blocks" in self.choice:
            chosen &= np.isin(blocks, self.choice["blocks"])
        mask = self.choice.get("warp_mask", 0xFFFFFFFF)
        of_turn = EVENTS_A_TURN.get(self.kernel)
        of_warp = [LINE_EVENTS if of_turn is None else of_turn * (self.turns + w % 3) for w in range(self.warps)]
        return int(chosen.sum()) * sum(n for w, n in enumerate(of_warp) if mask >> w & 1)


def shots(count: int, seed: int = SEED) -> list[Shot]:
    """Random launches, the same for the same seed."""
    rng = random.Random(seed)
    return [_shot(rng) for _ in range(count)]


def _shot(rng: random.Random) -> Shot:
    build = rng.choice(list(BUILDS))
    packed = BUILDS[build][0] == "packed"
    grid = _shape(rng, rng.choice([1, 7, 60, 600]), 1)
    block = _shape(rng, rng.choice([32, 64, 256, MOST_THREADS]), 32 if packed else 1)
    choice: dict[str, Any] = {}
    blocks = int(np.prod(grid))
    kind = rng.choice(["all", "all", "steps", "warps", "list"])
    if kind == "steps":
        choice["every_block"] = rng.choice([2, 3, 8])
    if kind == "warps":
        choice["warp_mask"] = rng.getrandbits(24)
    if kind == "list":
        choice["blocks"] = tuple(sorted(rng.sample(range(blocks), rng.randint(1, blocks))))
    chunks = rng.choice([0, 1, 5, 300, 2047, 2048, 2049, rng.randrange(9000)])
    return Shot(
        rng.choice(KERNELS),
        build,
        grid,
        block,
        rng.choice([0, 1, 6, 7, 25, rng.randrange(90)]),
        layout.CONTROL_BYTES + chunks * layout.CHUNK_BYTES + rng.choice([0, rng.randrange(layout.CHUNK_BYTES)]),
        choice,
    )


def _shape(rng: random.Random, most: int, step: int) -> tuple[int, int, int]:
    """One to three sizes whose product is at most `most` and a multiple of `step`."""
    dimensions = rng.choice([1, 2, 3])
    y = rng.choice([1, 2, 3, 4]) if dimensions > 1 else 1
    z = rng.choice([1, 2, 5]) if dimensions > 2 else 1
    if y * z * step > most:
        y = z = 1
    x = rng.randint(1, max(most // (y * z * step), 1)) * step
    return x, y, z


class Range:
    """The builds, each made once, and what shoots."""

    def __init__(self) -> None:
        self.device = driver.ensure_context()
        self.sm_count = driver.attribute(self.device, "MULTIPROCESSOR_COUNT")
        self.kernels = {
            name: CudaKernel(SOURCE, f"{name}<true>", clean=None, filename="kernels.cu") for name in KERNELS
        }
        self.sum = driver.DeviceMemory(4)

    def shoot(self, shot: Shot, *, for_arena: bool = False) -> tuple[dict[str, int], list[str]]:
        """Counts and faults of one launch. `for_arena`: by a build that has the arena's address in its code."""
        policy, options = BUILDS[shot.build]
        arena = Guarded(shot.capacity_bytes, mapped=policy == "live", sm_count=self.sm_count)
        arena.prepare(zeroed=policy in ("stream", "live"))
        if for_arena:
            wanted = RecordOptions(policy=policy, loops=bool(options), blocks=shot.choice.get("blocks"))
            build, _ = self.kernels[shot.kernel].traced_build(shot.grid, shot.block, wanted, arena)
        else:
            every = (*policy_options(policy, 1024), *options)
            build = self.kernels[shot.kernel]._build(f"{shot.kernel}<true>", every)
        point(build, arena)
        arena.choose(0, **shot.choice)
        arena.remember()
        launch(build, shot.grid, shot.block, (self.sum.address, shot.turns), (POINTER, INT))
        driver.call("cuCtxSynchronize", doing=f"running {shot}")
        counts, faults = arena.look_around(CODE_BITS)
        expected = shot.expected_events()
        if counts["events"] + counts["lost_events"] != expected:
            faults.append(f"{counts['events']} events and {counts['lost_events']} lost make no {expected}")
        return counts, faults


def random_launches(count: int = 400) -> Iterator[dict[str, Any]]:
    """A row for each build."""
    shooting = Range()
    found: dict[str, list[tuple[Shot, dict[str, int], list[str]]]] = {name: [] for name in BUILDS}
    for shot in shots(count):
        found[shot.build].append((shot, *shooting.shoot(shot)))
    for build, all_of in found.items():
        totals = {key: sum(counts[key] for _, counts, _ in all_of) for key in all_of[0][1]}
        bad = [f"{shot}: {'; '.join(faults)}" for shot, _, faults in all_of if faults]
        full = sum(counts["lost_events"] > 0 for _, counts, _ in all_of)
        yield row(
            f"random launches, {build}", not bad, launches=len(all_of), that_lost=full, seed=SEED, **totals, bad=bad[:5]
        )


def capacities() -> Iterator[dict[str, Any]]:
    """A row for each build and absurd capacity, by builds as users get them."""
    shooting = Range()
    for build in BUILDS:
        for name, capacity_bytes in ABSURD_BYTES.items():
            results = [
                (shot, *shooting.shoot(shot, for_arena=for_arena))
                for kernel in KERNELS
                for for_arena in (True, False)
                for shot in [Shot(kernel, build, (300, 1, 1), (96, 1, 1), 50, capacity_bytes)]
            ]
            bad = [f"{shot}: {'; '.join(faults)}" for shot, _, faults in results if faults]
            kept, lost = (sum(counts[key] for _, counts, _ in results) for key in ("events", "lost_events"))
            chunks = (capacity_bytes - layout.CONTROL_BYTES) // layout.CHUNK_BYTES
            yield row(f"{name}, {build}", not bad, chunks=chunks, events=kept, lost_events=lost, bad=bad)
