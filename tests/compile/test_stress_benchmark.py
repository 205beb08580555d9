"""The kernels of the stress and matmul benchmarks before they meet a GPU: they compile, off is bare, nothing spills."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark import BENCHMARKS, module
from tests.emulation import CODE_BITS, DETACHED, events, run
from tests.machine_code import disassemble, resources, text_section
from tests.programs.test_emulation import random_case
from warplens.capture.compile import compile_cubin
from warplens.capture.modules import read_site_sets
from warplens.layout import Control

pytestmark = pytest.mark.compile

ARENA = (
    "-DWARPLENS_ARENA=0x7f0000000000ull",
    "-DWARPLENS_CHUNKS=0x7f0000008100ull",
    "-DWARPLENS_SHARED_CHUNKS=1024u",
    "-DWARPLENS_ALL_RECORDED",
)
OLDER = "-DWARPLENS_DETAIL_CAN_TELL=0"  # as NVRTC 13.0 compiles


@cache
def matmul() -> str:
    path = BENCHMARKS / "matmul" / "matmul.cu"
    if not path.is_file():
        pytest.skip("not a checkout: benchmarks/ is not installed")
    return path.read_text(encoding="utf-8")


def test_the_matmul_switched_off_is_the_kernel_without_marks() -> None:
    name = "matmul_pipelined<false>"
    bare = re.sub(r"(?m)^.*(Recorder<matmul|rec\.(iteration|phase|wait)\().*\n", "", matmul())
    assert bare.count("rec") == 0
    code = [compile_cubin(text, [name], arch="sm_90a") for text in (matmul(), bare)]
    assert [made.log for made in code] == ["", ""]
    off, without = (text_section(made.cubin, made.names[name]) for made in code)
    assert off == without


@pytest.mark.parametrize("options", [(), (OLDER,), ("-DWARPLENS_LOOPS",), ("-DWARPLENS_POLICY=stream",)])
def test_the_marked_matmul_keeps_two_blocks_an_sm_and_spills_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    name = "matmul_pipelined<true>"
    compiled = compile_cubin(matmul(), [name], arch="sm_90a", options=[*ARENA, *options])
    code = disassemble(compiled.cubin, compiled.names[name])
    assert sum("HMMA" in instruction for instruction in code) == 64  # 4 steps of 4 x 4 tiles
    assert sum("SR_CLOCKLO" in instruction for instruction in code) >= 7  # six marks and the end
    assert not any(re.search(r"\b(STL|LDL)\b", instruction) for instruction in code)
    assert resources(compiled.cubin, compiled.names[name], tmp_path)["REG"] <= 128


@pytest.mark.parametrize("older", [False, True])
def test_each_kernel_under_stress_compiles_for_each_policy(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = module("canaries", monkeypatch)
    line_waits = module("minute", monkeypatch).LINE_WAITS
    kernels = ["flood<true>", "loops<true>", "lanes<true>", "line<true>", "node<true, true>", "node<true, false>"]
    kernels += ["waits<true, 0>", f"waits<true, {line_waits}>"]
    builds = list(canaries.BUILDS.values())
    for policy, options in builds[:2] if older else builds:  # what is older makes a difference to `packed` alone
        more = [f"-DWARPLENS_POLICY={policy}", *options, *([OLDER] if older else [])]
        assert compile_cubin(canaries.SOURCE, kernels, arch="sm_90a", options=more).log == ""


@pytest.mark.parametrize(
    ("count", "line", "policy"), [(300, True, "staged"), (300, False, "packed"), (1023, False, "live")]
)
def test_a_set_of_hundreds_of_sites_keeps_their_names(
    count: int, line: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = module("floods", monkeypatch).many_sites_source(count, line=line)
    made = compile_cubin(source, ["pass<true>"], arch="sm_90a", options=[f"-DWARPLENS_POLICY={policy}"])
    names = [site["name"] for site in read_site_sets(made.cubin)[0]["sites"]]
    assert names == [f"site_{i:04d}" for i in range(count)]


def test_the_program_for_the_sanitizer_compiles_for_each_build(monkeypatch: pytest.MonkeyPatch) -> None:
    sanitized = module("sanitized", monkeypatch)
    for build_options in sanitized.BUILDS.values():
        options = [
            f"-DWARPLENS_POLICY={build_options['policy']}",
            *["-DWARPLENS_LOOPS"] * build_options.get("loops", 0),
        ]
        assert compile_cubin(sanitized.SOURCE, ["verbs<true>"], arch="sm_90a", options=options).log == ""


@pytest.mark.parametrize("policy", ["packed", "counted", "untold", "staged", "stream", "live"])
def test_events_in_chunks_that_the_recorder_wrote_are_counted_to_the_last(
    policy: str, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_events: Any = module("launching", monkeypatch).count_events
    rng = random.Random(3)
    cases = [random_case(rng, chunks=rng.choice([0, 3, 40, 3000])) for _ in range(60)]
    lost = 0
    for case, result in zip(cases, run(programs(policy), cases), strict=True):
        chosen = [
            program
            for number, program in enumerate(case.programs)
            if number // case.warps % case.every == 0 and case.warp_mask >> number % case.warps & 1
        ]
        expected = sum(event.verb != Control.END or event.site != 0 for p in chosen for event in events(p, 0))
        expected += sum(step.verb in DETACHED and step.lanes != 0 for p in chosen for step in p)
        assert count_events(result.chunks, CODE_BITS) + result.lost_events == expected
        lost += result.lost_events
    assert lost > 0
