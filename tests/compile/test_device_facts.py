"""The kernels of benchmarks/device_facts.cu as machine code: what they time stands side by side. No GPU."""

from __future__ import annotations

import re

import pytest

from tests.compile.test_rmsnorm import ARCHITECTURES, REPOSITORY
from tests.machine_code import disassemble
from warplens.capture.compile import compile_cubin

pytestmark = pytest.mark.compile

SOURCE = REPOSITORY / "benchmarks" / "device_facts.cu"
BARE, SETTLED, MARKS = "barrier_delay<false>", "barrier_delay<true>", "many_marks<true>"
LOADED_BARE, LOADED_SETTLED = "barrier_loaded<false>", "barrier_loaded<true>"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_the_device_facts_compare_is_read_with_nothing_in_between(arch: str) -> None:
    if not SOURCE.is_file():
        pytest.skip("not a checkout: benchmarks/ is not installed")
    options = ["-DWARPLENS_NO_CLUSTER"]
    compiled = compile_cubin(
        SOURCE.read_text(encoding="utf-8"),
        [BARE, SETTLED, LOADED_BARE, LOADED_SETTLED, MARKS],
        arch=arch,
        options=options,
    )
    assert compiled.log == ""
    clocks = r"(CS2R R\d+, SR_CLOCKLO\n)"
    patterns = {
        "globaltimer_samples": rf"CS2R R\d+, SR_GLOBALTIMERLO\n{clocks}",
        "clock_reads": rf"{clocks}CS2R R\d+, SR_GLOBALTIMERLO\n{clocks}{{3}}(CS2R\.32 R\d+, SR_CLOCKLO\n){{2}}",
        compiled.names[BARE]: rf"{clocks}BAR\.SYNC\S* 0x0\n{clocks}",
        compiled.names[SETTLED]: rf"{clocks}BAR\.SYNC\S* 0x0\n(UMOV .*\n)?LDS (R\d+), .*\n{clocks}",
    }
    for loaded, alone in ((LOADED_BARE, BARE), (LOADED_SETTLED, SETTLED)):
        patterns[compiled.names[loaded]] = patterns[compiled.names[alone]]
    for symbol, pattern in patterns.items():
        code = "\n".join(disassemble(compiled.cubin, symbol))
        assert re.search(pattern, code), f"{symbol}:\n{code}"
