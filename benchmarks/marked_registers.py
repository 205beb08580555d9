"""What marks cost in registers, by the mode in which a kernel has them: ptxas on the corpus and on full roles.

In: tests/ptx, tests/full_kernels.py. Out: JSON: registers and bytes that spill, of the clean kernels, with the
recorder's state in registers and in shared memory; and of a kernel with two roles what spills with so many values kept
in one of them, also with registers moved between them. Needs no GPU.

    python benchmarks/marked_registers.py -o benchmarks/results/marked_registers.json --ptxas ptxas
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from machine import described

from tests.full_kernels import roles
from warplens.capture.chosen import Built
from warplens.instrument import Mode, Selection, State, instrument

CORPUS = Path(__file__).parents[1] / "tests" / "ptx"
MODES = {
    "state in registers": Mode(Selection()),
    "state in registers, arithmetic in its place": Mode(Selection(), hoists=False),
    "fewer registers": Mode(Selection(), state=State.FEWER_REGISTERS),
    "state in shared memory": Mode(Selection(), state=State.SHARED),
    "state in local memory": Mode(Selection(), state=State.LOCAL),
}
MOVED = {24: 40, 240: 232}
SMALL, LARGE = (4, 8, 10, 12, 14, 16, 18), (208, 212, 216, 220, 224, 228)


def built(ptxas: str, text: str, folder: Path) -> Built:
    source = folder / "kernel.ptx"
    source.write_text(text, encoding="utf-8")
    target = re.search(r"\.target\s+(\w+)", text)
    assert target
    command = [ptxas, "-v", f"--gpu-name={target[1]}", str(source), "-o", str(folder / "kernel.cubin")]
    return Built.of(subprocess.run(command, check=True, capture_output=True, text=True).stderr)


def with_modes(text: str, modes: dict[str, Mode]) -> dict[str, str]:
    names = [kernel.name for kernel in instrument(text).kernels]
    texts = {name: instrument(text, modes=dict.fromkeys(names, mode)).text for name, mode in modes.items()}
    return {"clean": text} | texts


def corpus(ptxas: str, folder: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path in sorted(CORPUS.glob("*.ptx.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        builds = {name: built(ptxas, own, folder) for name, own in with_modes(text, MODES).items()}
        for kernel in builds["clean"].registers:
            own = {name: [build.registers[kernel], build.spills[kernel]] for name, build in builds.items()}
            out[f"{path.name.partition('.ptx')[0]} {kernel[:40]}"] = own
    return out


def full_roles(ptxas: str, folder: Path) -> dict[str, Any]:
    modes = MODES | {
        "40 and 232 for 24 and 240": Mode(Selection(), setmaxnreg=MOVED),
        "40 and 232 for 24 and 240, state in shared memory": Mode(Selection(), state=State.SHARED, setmaxnreg=MOVED),
    }
    kernels = {f"{n} values in the role with 24": roles(n, 100) for n in SMALL}
    kernels |= {f"{n} values in the roles with 240": roles(4, n) for n in LARGE}
    return {
        what: {name: built(ptxas, own, folder).spills["roles"] for name, own in with_modes(text, modes).items()}
        for what, text in kernels.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ptxas", required=True)
    arguments = parser.parse_args()
    result = described("python benchmarks/marked_registers.py --ptxas ptxas")
    version = subprocess.run([arguments.ptxas, "--version"], check=True, capture_output=True, text=True).stdout
    result["ptxas"] = version.strip().splitlines()[-1]
    with tempfile.TemporaryDirectory() as folder:
        result["registers and bytes that spill"] = corpus(arguments.ptxas, Path(folder))
        result["bytes that spill"] = full_roles(arguments.ptxas, Path(folder))
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
