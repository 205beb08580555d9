"""`warplens nvcc`: nvcc as ever, with marks put into the PTX between its own steps.

In: the arguments of nvcc. Out: what nvcc makes of them, whose launches `warplens record` sees. nvcc finds its tools by
the profile beside it: it is started from a folder of links, in which ptxas and fatbinary are this module (`tool`). So
nvcc itself decides what is compiled, in which order, on how many threads and with which exit code
(docs/adr/0012-instrumenting-ptx.md). Where marks cannot be had the code is compiled without, and one line says why.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from warplens.capture.audited import tools_of_wheels
from warplens.errors import MissingDependencyError, UsageError
from warplens.instrument import Budget, Selection

VARIABLE: Final = "WARPLENS_NVCC"
TOOLKIT: Final = Path("/usr/local/cuda/bin")
_PREFIX: Final = "--warplens-"
_LEVELS: Final = ("coarse", "waits", "all")
_INSIDE: Final = "WARPLENS_NVCC_INSIDE"
_TOOLS: Final = ("ptxas", "fatbinary")
_NO_CODE: Final = ("--version", "-V", "--help", "-h", "--dryrun", "-dryrun", "-E", "--preprocess", "--list-gpu-arch")
_NO_CODE_EITHER: Final = ("--list-gpu-code", "-arch-ls", "-code-ls", "-M", "-MM", "--generate-dependencies")
_NO_HOST: Final = ("-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin", "-optix-ir", "--optix-ir", "-ltoir")
_LINES: Final = ("-lineinfo", "--generate-line-info", "-G", "--device-debug")
_HEADER: Final = Path(__file__).parent.parent / "include" / "warplens" / "detail" / "automatic.hpp"


@dataclass(frozen=True)
class Wish:
    """What is marked: as `Selection` and the option -k of `warplens instrument`. `nvcc`: which one; "" finds it.

    `counts`: the trace that `budget` goes by; below nvcc a file of JSON that was made of it.
    """

    level: str = "waits"
    kernels: str = ""
    sites: str = ""
    also: str = ""
    nvcc: str = ""
    verbose: str = ""
    budget: str = ""
    counts: str = ""

    @property
    def selection(self) -> Selection:
        """Without its budget. Raises UsageError for what cannot be meant."""
        return Selection(self.level, self.sites or None, also=tuple(filter(None, self.also.split(","))))

    @property
    def within_budget(self) -> Selection:
        """The same with its budget, where `counts` is a file of JSON."""
        if not self.budget:
            return self.selection
        counts = json.loads(Path(self.counts).read_text(encoding="utf-8"))
        return replace(self.selection, budget=Budget.of(self.budget, counts))


def run(arguments: list[str], read_counts: Callable[[str], dict[str, Any]] | None = None) -> int:
    """Runs nvcc; its exit code. `read_counts`: gives the events by site of a trace, of which this stage knows nothing.

    Raises UsageError for a wrong option of ours, MissingDependencyError without nvcc, and what `read_counts` raises.
    """
    wish, rest = read_options(arguments, os.environ.get(VARIABLE, ""))
    nvcc = wish.nvcc or find_nvcc()
    if any(option in rest for option in (*_NO_CODE, *_NO_CODE_EITHER)):
        return subprocess.run([nvcc, *rest], check=False).returncode
    if without := next((option for option in _NO_HOST if option in rest), None):
        say(f"{without} makes no program that could record itself: compiled without marks")
        return subprocess.run([nvcc, *rest], check=False).returncode
    if any(own in ("-dlto", "--dlink-time-opt") or "lto_" in own for own in rest):
        say("link-time optimisation shows no PTX before it links: that code gets no marks")
    environment = {key: value for key, value in os.environ.items() if key not in ("WARPLENS_RECORD", VARIABLE)}
    environment[_INSIDE] = "1"
    own = ["-include", str(_HEADER)]
    if not any(option in rest for option in _LINES):
        own.append("-lineinfo")
    counts = None
    if wish.budget:
        assert read_counts is not None
        counts = read_counts(wish.counts)
        Budget.of(wish.budget, counts)  # raises UsageError
    with tempfile.TemporaryDirectory(prefix="warplens-nvcc-") as name:
        if counts is not None:
            wish = replace(wish, counts=str(Path(name, "counts.json")))
            Path(wish.counts).write_text(json.dumps(counts, ensure_ascii=True), encoding="utf-8")
        started = shadow(nvcc, Path(name), wish)
        return subprocess.run([str(started), *own, *rest], env=environment, check=False).returncode


def main(read_counts: Callable[[str], dict[str, Any]]) -> None:
    """The program `warplens-nvcc`: for what wants one word as its compiler, as CMake does."""
    from warplens.errors import WarplensError

    try:
        code = run(sys.argv[1:], read_counts)
    except WarplensError as error:
        say(f"error: {error}")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def say(line: str) -> None:
    """One line for the user, on stderr, as a compiler's."""
    sys.stderr.write(f"warplens nvcc: {line}\n")


def read_options(arguments: list[str], variable: str) -> tuple[Wish, list[str]]:
    """Our own options, `--warplens-NAME=VALUE` in `variable` or in `arguments`, which count more; and nvcc's."""
    try:
        given = shlex.split(variable)
    except ValueError as error:
        raise UsageError(f"{VARIABLE}={variable!r} cannot be read: {error}") from error
    if odd := next((option for option in given if not option.startswith(_PREFIX)), None):
        raise UsageError(f"{VARIABLE}: expected {_PREFIX}NAME=VALUE, found {odd!r}")
    values: dict[str, str] = {}
    for option in (own for own in [*given, *arguments] if own.startswith(_PREFIX)):
        name, equals, value = option.removeprefix(_PREFIX).partition("=")
        if name not in Wish.__dataclass_fields__ or not (equals or name == "verbose"):
            known = ", ".join(f"{_PREFIX}{field}" for field in Wish.__dataclass_fields__)
            raise UsageError(f"{option!r}: expected one of {known}, each with =VALUE")
        values[name] = value or "1"
    wish = Wish(**values)
    if wish.level not in _LEVELS:
        raise UsageError(f"{_PREFIX}level={wish.level}: expected one of {', '.join(_LEVELS)}")
    try:
        re.compile(wish.kernels)
    except re.error as error:
        raise UsageError(f"{_PREFIX}kernels={wish.kernels!r} is no regular expression: {error}") from error
    assert wish.selection
    if bool(wish.budget) != bool(wish.counts):
        both = f"{_PREFIX}budget and {_PREFIX}counts"
        raise UsageError(f"{both}: a budget goes by what a first run counted, and both are needed")
    return wish, [own for own in arguments if not own.startswith(_PREFIX)]


def find_nvcc() -> str:
    """The nvcc of CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda or a wheel, the first that is none of ours."""
    if os.environ.get(_INSIDE):
        raise UsageError("nvcc is warplens-nvcc itself: name NVIDIA's with --warplens-nvcc=PATH")
    own = Path(sys.argv[0]).resolve()
    folders = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    folders.append(TOOLKIT)
    wheels = [tool for tool in tools_of_wheels("nvcc") if tool.name == "nvcc"]
    for found in (*(folder / "nvcc" for folder in folders), *wheels):
        if os.access(found, os.X_OK) and found.is_file() and found.resolve() != own:
            return str(found)
    raise MissingDependencyError(
        "no nvcc in CUDA_HOME, PATH or /usr/local/cuda, and no wheel nvidia-cuda-nvcc: "
        "name one with --warplens-nvcc=PATH"
    )


def shadow(nvcc: str, folder: Path, wish: Wish) -> Path:
    """Fills `folder` with links to nvcc, its tools and what stands beside them, two tools ours; the nvcc to start.

    Raises MissingDependencyError where nvcc does not say where its tools are.
    """
    real = _folder_of_tools(nvcc)
    own = folder / real.name
    for new in (own, folder / "made"):
        new.mkdir()
    for entry in real.parent.iterdir():  # nvcc looks beside its own folder for those of targets
        if not folder.joinpath(entry.name).exists():
            folder.joinpath(entry.name).symlink_to(entry)
    for entry in real.iterdir():
        if entry.name not in ("nvcc.profile", *_TOOLS):
            own.joinpath(entry.name).symlink_to(entry)
    profile = (real / "nvcc.profile").read_text(encoding="utf-8", errors="surrogateescape")
    profile = re.sub(r"(?m)^(\s*PATH\s*\+=\s*)", rf"\g<1>{own}:", profile.replace("$(_HERE_)", str(real)))
    own.joinpath("nvcc.profile").write_text(profile, encoding="utf-8", errors="surrogateescape")
    facts = {"real": str(real), "wish": asdict(wish)}
    folder.joinpath("request.json").write_text(json.dumps(facts), encoding="utf-8")
    start = f"import sys; sys.path[:] = {sys.path!r}; from warplens.capture.nvcc import tool; tool()"
    for name in _TOOLS:
        words = ["exec", sys.executable, "-c", start, name, str(folder)]
        own.joinpath(name).write_text(f'#!/bin/sh\n{shlex.join(words)} "$@"\n', encoding="utf-8")
        own.joinpath(name).chmod(0o755)
    started = own / "nvcc"
    if _said(str(started)).get("PATH", "").partition(":")[0] != str(own):  # it goes by where it truly stands
        started.unlink()
        shutil.copy2(real / "nvcc", started)
    return started


def _folder_of_tools(nvcc: str) -> Path:
    """Where nvcc's tools and profile stand; `nvcc` itself may be a script that calls another."""
    found = Path(_said(nvcc).get("_HERE_", "") or Path(nvcc).resolve().parent)
    missing = [name for name in ("nvcc", "nvcc.profile", *_TOOLS) if not (found / name).exists()]
    if missing:
        raise MissingDependencyError(
            f"{nvcc}: {found} has no {missing[0]}; name NVIDIA's nvcc with --warplens-nvcc=PATH"
        )
    return found


def _said(nvcc: str) -> dict[str, str]:
    """The variables that nvcc sets for its tools."""
    command = [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False)
    except OSError as error:
        raise MissingDependencyError(f"{nvcc} cannot be started: {error.strerror or error}") from error
    return dict(re.findall(r"(?m)^#\$ (\w+)=(.*)$", done.stderr))


def tool() -> None:
    """What stands in the folder of links in place of ptxas and fatbinary: `NAME FOLDER ARGUMENTS...`."""
    from warplens.capture.nvcc_tools import Tools

    name, folder, *arguments = sys.argv[1:]
    request: dict[str, Any] = json.loads(Path(folder, "request.json").read_text(encoding="utf-8"))
    tools = Tools(Path(folder), Path(request["real"]), Wish(**request["wish"]))
    sys.exit(tools.ptxas(arguments) if name == "ptxas" else tools.fatbinary(arguments))
