"""What marks in loops add to a turn by the control bits of the machine code, without a GPU: results/issue_cycles.json.

The benchmark loop of 64 FMAs on four architectures, its bare forms, and the pipelined matmul: instructions, and cycles
that a lone warp takes to issue them. `--before SRC` adds those of another state of `src`. Run from the checkout:
`python benchmarks/issue_cycles.py -o benchmarks/results/issue_cycles.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), *([] if os.environ.get("WARPLENS_SRC") else [str(ROOT / "src")])]

from cuda.bindings import nvrtc  # noqa: E402

from tests.machine_code import issue_cycles, sections, usual_turn  # noqa: E402
from warplens.capture.compile import compile_cubin  # noqa: E402

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
ARENA = ["-DWARPLENS_ARENA=0x7f0000000000ull", "-DWARPLENS_CHUNKS=0x7f0000100000ull", "-DWARPLENS_SHARED_CHUNKS=4096u"]
BUILDS = {
    "as Kernel builds it": ["-DWARPLENS_1D", *ARENA, "-DWARPLENS_ALL_RECORDED"],
    "chosen at run time": ["-DWARPLENS_1D", *ARENA, "-DWARPLENS_STEPS_ONLY"],
    "in a program": ["-DWARPLENS_1D"],
}
FORMS = 10
ANNOUNCED = "rec.iteration(i); rec.phase(loop::turn)"


def counted(source: Path, name: str, arch: str, options: list[str], opcode: str) -> dict[str, int]:
    """Instructions and cycles of issue of a turn."""
    names = [name] if "<" in name else []
    compiled = compile_cubin(
        source.read_text(encoding="utf-8"), names, arch=arch, options=options, filename=source.name
    )
    wanted = compiled.names[name] if names else name
    turn = usual_turn(next(own for own in sections(compiled.cubin) if own.name == wanted), opcode)
    return {"instructions": len(turn), "cycles": issue_cycles(turn)}


def measured() -> dict[str, object]:
    """All rows with the headers of the `warplens` that is imported."""
    here, common = ROOT / "benchmarks", ["-DWARPLENS_NO_CLUSTER", "-DWARPLENS_LOOPS"]
    loop, forms = here / "marks_in_loops" / "loop.cu", here / "marks_in_loops" / "forms.cu"
    matmul = here / "matmul" / "matmul.cu"
    rows = []
    for arch in ARCHITECTURES:
        for build, options in BUILDS.items():
            off, on = (counted(loop, f"run<{kind}>", arch, [*common, *options], "FFMA") for kind in ("false", "true"))
            announced = counted(loop, "run<true>", arch, [*common, *options, f"-DMARK={ANNOUNCED}"], "FFMA")
            rows.append({"arch": arch, "build": build, "clean": off, "marked": on, "announced": announced})
    bare = [counted(forms, "run", "sm_90a", [f"-DFORM={form}", "-DUNROLL=1"], "FFMA") for form in range(FORMS)]
    kinds = {"clean": "false", "built for loops": "true"}
    options = [*common, *ARENA, "-DWARPLENS_ALL_RECORDED"]
    steps = {k: counted(matmul, f"matmul_pipelined<{v}>", "sm_90a", options, "HMMA") for k, v in kinds.items()}
    return {"loop": rows, "forms_sm_90a": bare, "matmul_step_sm_90a": steps}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write; without it to stdout, the rows alone")
    parser.add_argument("--before", type=Path, help="another `src`, to be counted too")
    asked = parser.parse_args()
    if asked.output is None:
        print(json.dumps(measured()))
        return
    result = {
        "benchmark": "issue_cycles",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/issue_cycles.py", *sys.argv[1:]],
        "device": None,
        "versions": {"nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:]))},
        "method": "stall counts of a turn's instructions, branches over other code taken; nothing waited for",
        "now": measured(),
    }
    if asked.before:
        environment = {**os.environ, "PYTHONPATH": str(asked.before), "WARPLENS_SRC": str(asked.before)}
        done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
        result["before"] = json.loads(done.stdout)
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
