"""`doctor`: what recording needs, what is there, and how to get the rest.

In: this machine. Out: a list of checks as text or JSON, and the exit code: 5 when something that recording needs is
missing. Changes nothing, opens no context on a GPU, and never imports torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import click

from warplens.capture.audited import find_nvdisasm, find_tool
from warplens.capture.machine import gpus_in_mig, has_mps
from warplens.capture.nvcc import find_nvcc
from warplens.cli.exits import FINE, MISSING
from warplens.cli.output import console, finish, json_option, print_json
from warplens.errors import FileError, MissingDependencyError, SitesError
from warplens.render.escape import visible

State = Literal["ok", "missing", "note"]
_STYLES: Final[dict[State, str]] = {"ok": "green", "missing": "bold red", "note": "yellow"}


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, how it stands, what was found, and the command or step that mends it."""

    name: str
    state: State
    found: str
    mend: str = ""


@click.command()
@click.option(
    "--binary", type=click.Path(path_type=Path), metavar="X", help="Say instead what `record` would see of a program."
)
@json_option
def doctor(as_json: bool, binary: Path | None) -> int:
    """Say what recording needs, what is there, and how to get the rest.

    Ends with exit code 5 when a GPU, driver or compiler is missing; reading traces needs none of them. With --binary it
    does where `record` would not see the GPU code of X.
    """
    if binary is not None:
        return _doctor_binary(binary, as_json)
    checks = examine()
    missing = [c for c in checks if c.state == "missing"]
    code = MISSING if missing else FINE
    verdict = "this machine can record" if not missing else "this machine can read traces, but not record"
    if as_json:
        print_json({"can_record": not missing, "exit_code": code, "checks": [asdict(c) for c in checks]})
    else:
        _print(checks, verdict)
    finish(following="warplens demo" + (" --device cpu" if missing else ""))
    return code


def examine() -> list[Check]:
    """All checks, in the order in which recording would run into them."""
    extra = "cu12" if _driver_major() == 12 else "cu13"
    install = f"pip install '.[{extra}]' in the checkout"
    checks = [_python(), Check("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")]
    checks += [_package(name, "") for name in ("numpy", "polars", "matplotlib")]
    checks += [*_driver(install), _nvrtc(install), _nvdisasm(install), _ptxas(), _nvcc(), _permissions()]
    checks += _surroundings()
    return checks


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    return Check("python", "ok", found)


def _package(name: str, install: str) -> Check:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return Check(name, "ok", importlib.metadata.version(name))
    if _has_module(name):
        return Check(name, "ok", "there, version not known")
    return Check(name, "missing", "not installed", install or f"pip install {name}")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the parent package is missing or broken
        return False


def _driver(install: str) -> list[Check]:
    """Driver and GPUs as cuda.bindings sees them; without it, only whether the kernel's module is loaded."""
    version = Path("/proc/driver/nvidia/version")
    loaded = ""
    with contextlib.suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", version.read_text(errors="replace"))
        loaded = found[0] if found else ""
    if not _has_module("cuda.bindings.driver"):
        checks = [Check("cuda-bindings", "missing", "not installed", install)]
        if loaded:
            return [Check("driver", "ok", loaded), *checks]
        return [Check("driver", "missing", "no NVIDIA driver found", "install the NVIDIA driver"), *checks]
    try:
        from cuda.bindings import driver

        status, *_ = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return [Check("driver", "missing", f"{loaded or 'no driver'}: cuInit says {status.name}", _GPU_HINT)]
        _, cuda = driver.cuDriverGetVersion()
        _, count = driver.cuDeviceGetCount()
        names = [_device(driver, index) for index in range(count)]
    except Exception as error:  # whatever a broken installation raises is a finding
        return [Check("driver", "missing", f"{loaded or 'no driver'}: {error}", _GPU_HINT)]
    text = f"{loaded or 'version not known'}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    gpus = Check("gpu", "ok", "; ".join(names)) if names else Check("gpu", "missing", "none seen", _GPU_HINT)
    return [Check("driver", "ok", text), gpus]


_GPU_HINT: Final = "install the NVIDIA driver; in a container start it with --gpus all; look at CUDA_VISIBLE_DEVICES"


def _device(driver: object, index: int) -> str:
    get = driver.cuDeviceGetName, driver.cuDeviceGetAttribute, driver.CUdevice_attribute  # type: ignore[attr-defined]
    name, attribute, kinds = get
    text = name(128, index)[1].split(b"\0")[0].decode(errors="replace")
    prefix = kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    major, minor = (attribute(kind, index)[1] for kind in prefix)
    return f"{text} (sm_{major}{minor})"


def _driver_major() -> int | None:
    """Major CUDA version that the driver supports; None when it cannot be asked."""
    if not _has_module("cuda.bindings.driver"):
        return None
    try:
        from cuda.bindings import driver

        status, version = driver.cuDriverGetVersion()
    except Exception:  # a broken installation is reported by _driver
        return None
    return version // 1000 if status == driver.CUresult.CUDA_SUCCESS else None


def _nvrtc(install: str) -> Check:
    if not _has_module("cuda.bindings.nvrtc"):
        return Check("nvrtc", "missing", "cuda-bindings is not installed", install)
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # whatever a broken installation raises is a finding
        return Check("nvrtc", "missing", str(error).splitlines()[0] if str(error) else type(error).__name__, install)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return Check("nvrtc", "missing", status.name, install)
    return Check("nvrtc", "ok", f"{major}.{minor}")


def _nvdisasm(install: str) -> Check:
    path = find_nvdisasm()
    if path is None:
        return Check("nvdisasm", "note", "not found: recordings come without the audit of their marks", install)
    return _release("nvdisasm", path, install)


def _ptxas() -> Check:
    """For what `warplens instrument` writes; Triton brings its own."""
    path = find_tool("ptxas")
    if path is None:
        return Check("ptxas", "note", "not found: only needed to assemble what `warplens instrument` writes")
    return _release("ptxas", path, "")


def _release(name: str, path: str, install: str) -> Check:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, "note", f"{path} does not run: {error}", install)
    release = re.search(r"release ([\d.]+)", done.stdout)
    return Check(name, "ok", f"{release[1] if release else 'version not known'} at {path}")


def _nvcc() -> Check:
    """For programs that `warplens record` runs; recording by `warplens.Kernel` needs none."""
    path = shutil.which("nvcc")
    if path is not None:
        return Check("nvcc", "ok", path)
    try:
        return Check("nvcc", "ok", f"{find_nvcc()}, not in PATH: `warplens nvcc` finds it there")
    except MissingDependencyError:
        what = "not found: only needed to build programs that `warplens record` runs"
        return Check("nvcc", "note", what, "the CUDA toolkit has it, and the wheel nvidia-cuda-nvcc")


_INJECTED: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUPTI_INJECTION_PATH")
_PRELOADED: Final = re.compile(r"nsys|nsight|cupti|nvbit|sanitizer|memray|vtune", re.IGNORECASE)


def _surroundings() -> list[Check]:
    """What changes how a recording is to be read: other profilers, MIG, MPS, WSL. Empty where there is none."""
    found = []
    injected = [name for name in _INJECTED if os.environ.get(name)]
    injected += ["LD_PRELOAD"] if _PRELOADED.search(os.environ.get("LD_PRELOAD", "")) else []
    if injected or any(name.startswith("NSYS_") for name in os.environ):
        names = ", ".join(injected) or "NSYS_* is set"
        found.append(
            Check("profilers", "note", f"another one is active in this environment ({names}): times include it")
        )
    divided = gpus_in_mig()
    if divided:
        numbers = ", ".join(f"GPU {index}" for index in divided)
        found.append(Check("mig", "note", f"MIG is on ({numbers}): warplens was not tried on a slice of a GPU"))
    if has_mps():
        found.append(Check("mps", "note", "an MPS server runs here: other processes may run kernels beside yours"))
    if "microsoft" in platform.release().lower():
        found.append(Check("wsl", "note", "this is WSL: warplens was not tried there"))
    return found


def _permissions() -> Check:
    """Recording reads clocks inside the user's own kernel: no performance counters, no root. Device files must open."""
    closed = [str(p) for p in sorted(Path("/dev").glob("nvidia[0-9]*")) if not os.access(p, os.R_OK | os.W_OK)]
    if closed:
        return Check(
            "permissions", "missing", f"cannot open {', '.join(closed)}", "join the group that owns these files"
        )
    return Check("permissions", "ok", "nothing special needed: no performance counters, no root")


_LISTED: Final = 12


def _doctor_binary(path: Path, as_json: bool) -> int:
    """What GPU code a file holds, and whether `warplens record` would see its launches."""
    from warplens.capture.binary import MAX_BYTES, is_cubin, read_binary

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise FileError(f"{path}: expected a program or a library, found a device or a pipe")
        if path.stat().st_size > MAX_BYTES:
            raise FileError(f"{path}: a program of at most {MAX_BYTES >> 30} GiB was expected")
        elf = path.read_bytes()
        if is_cubin(elf):
            raise FileError(f"{path} is a cubin: name what launches it; `warplens audit` reads the cubin itself")
        found = read_binary(elf)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except SitesError as error:
        raise FileError(f"{path}: expected a whole 64-bit ELF program or shared library, made by nvcc") from error
    code = ", ".join([*found.cubins, *(f"{name} (PTX)" for name in found.ptx)])
    names = ", ".join(_demangled(found.kernels[:_LISTED])) + (", ..." if len(found.kernels) > _LISTED else "")
    where = "its symbols are stripped" if found.stripped else "its symbols name none"
    shown = f"{len(found.kernels)}: {names}" if names else f"not known: {where}"
    checks = [
        Check("gpu code", "ok" if code else "note", code or "none in this file; libraries that it loads may hold some"),
        Check("kernels", "ok" if names else "note", shown),
        Check(
            "record",
            "ok" if found.recordable else "note",
            "launches are seen of files that include warplens/host.hpp, or that `warplens nvcc` put marks into"
            if found.recordable
            else "warplens/host.hpp is compiled in, but no kernel has marks: nothing is recorded"
            if found.has_way_in
            else "launches are not seen: warplens has no way into machine code that was built without it",
            ""
            if found.recordable
            else "mark a kernel by WARPLENS_SITES, or see what `warplens nvcc` said of its kernels"
            if found.has_way_in
            else "mark a kernel and include warplens/host.hpp in its .cu file, or build it again by `warplens nvcc`",
        ),
    ]
    verdict = f"{path.name}: {'record sees it' if found.recordable else 'record does not see it'}"
    if as_json:
        print_json({**asdict(found), "checks": [asdict(c) for c in checks]})
    else:
        _print(checks, visible(verdict))
    return MISSING if code and not found.recordable else FINE


def _demangled(names: tuple[str, ...]) -> list[str]:
    """The names as a source has them, by the toolkit's cu++filt or c++filt; as they are where neither is there."""
    tool = find_tool("cu++filt") or shutil.which("c++filt")
    if tool is None or not names:
        return list(names)
    try:
        done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return list(names)
    found = done.stdout.splitlines()
    return found if len(found) == len(names) else list(names)


def _print(checks: list[Check], verdict: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        text = Text(visible(check.found, limit=400))
        if check.mend:
            text.append(f"\n-> {visible(check.mend)}", style="bold")
        table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), text)
    terminal = console()
    terminal.print(table)
    terminal.print(Text(verdict, style="bold"))
