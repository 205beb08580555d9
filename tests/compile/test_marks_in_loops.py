"""What a mark adds to a turn of a loop, read from the control bits of the machine code (docs/adr/0009). No GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.machine_code import issue_cycles, sections, usual_turn
from warplens.audit.sass import Instruction
from warplens.capture.compile import compile_cubin

pytestmark = pytest.mark.compile

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
LOOP = (Path(__file__).parents[2] / "benchmarks" / "marks_in_loops" / "loop.cu").read_text(encoding="utf-8")
ARENA = ["-DWARPLENS_ARENA=0x7f0000000000ull", "-DWARPLENS_CHUNKS=0x7f0000100000ull", "-DWARPLENS_SHARED_CHUNKS=4096u"]
BUILDS = {
    "as Kernel builds it": [*ARENA, "-DWARPLENS_ALL_RECORDED"],
    "chosen at run time": [*ARENA, "-DWARPLENS_STEPS_ONLY"],
    "in a program": [],
}


def turns(arch: str, options: list[str]) -> tuple[list[Instruction], list[Instruction]]:
    """Of the clean loop and of the one with a mark."""
    common = ["-DWARPLENS_1D", "-DWARPLENS_NO_CLUSTER", "-DWARPLENS_LOOPS", *options]
    found = []
    for name in ("run<false>", "run<true>"):
        compiled = compile_cubin(LOOP, [name], arch=arch, options=common, filename="loop.cu")
        found.append(usual_turn(next(s for s in sections(compiled.cubin) if s.name == compiled.names[name]), "FFMA"))
    return found[0], found[1]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_mark_in_a_loop_waits_for_nothing_that_it_asks(arch: str, build: str) -> None:
    clean, marked = turns(arch, BUILDS[build])
    names = [instruction.name for instruction in marked]
    at = names.index("CS2R")
    (branch,) = (i for i in range(at, at + 4) if names[i] == "BRA")
    asked = re.search(r"U?P\d", f"{marked[branch].predicate} {marked[branch].operands}")
    assert asked
    assert not any(asked[0] in instruction.operands.split(",")[0] for instruction in marked[at:branch])
    if arch != "sm_80":  # there ptxas guards a call against lanes that part, whatever it knows of them
        assert not {"BSSY", "BSYNC", "WARPSYNC", "YIELD"} & set(names)
    assert not {"R2UR", "VOTE"} & set(names)  # a uniform register takes 14 cycles to fill
    assert len(marked) - len(clean) <= 12
    assert issue_cycles(marked) - issue_cycles(clean) <= 24
