"""Has nvdisasm tell the machine code of both builds, and the audit judge it.

In: cubins, the sites, source texts. Out: the `audit` entry of a kernel in the manifest, plain lists. Where there is no
nvdisasm, or it fails, the entry says why: a recording does not fail for it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from warplens.audit import COLUMNS, audit, pick_section, read_sass
from warplens.audit.sass import Section
from warplens.capture.compile import get_include
from warplens.capture.modules import read_section
from warplens.errors import INSTALL, CompileError, FileError, MissingDependencyError, WarplensError

LINE_INFO: Final = "-lineinfo"
"""For NVRTC: the audit names the user's lines. The machine code is the same (tests/compile/test_audit.py)."""
_HAS_LINES: Final = frozenset({"-lineinfo", "--generate-line-info", "-G", "--device-debug"})
_PTX_SECTION: Final = ".nv_debug_ptx_txt"
_TIMEOUT_S: Final = 120
_MAX_SOURCE_BYTES: Final = 1 << 20


def line_options(options: Sequence[str]) -> tuple[str, ...]:
    """LINE_INFO, unless the options ask for lines or for debugging already."""
    return () if _HAS_LINES & set(options) else (LINE_INFO,)


def find_nvdisasm() -> str | None:
    """Where nvdisasm is."""
    return find_tool("nvdisasm")


def find_tool(name: str) -> str | None:
    """A tool of the toolkit: of a wheel (nvidia/cu13/bin, nvidia/cuda_nvdisasm/bin), of CUDA_HOME or CUDA_PATH, on
    PATH, of /usr/local/cuda; None where there is none."""
    found = tools_of_wheels(name)
    found += [Path(os.environ[v], "bin", name) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    on_path = shutil.which(name)
    found += [*([Path(on_path)] if on_path else []), Path("/usr/local/cuda/bin", name)]
    return next((str(tool) for tool in found if tool.is_file() and os.access(tool, os.X_OK)), None)


def tools_of_wheels(name: str) -> list[Path]:
    """What wheels of NVIDIA's have under this name, or one that begins with it; the newest CUDA first."""
    try:
        nvidia = importlib.import_module("nvidia")
    except ImportError:
        return []
    return [tool for root in nvidia.__path__ for tool in sorted(Path(root).glob(f"*/bin/{name}*"))][::-1]


def disassemble(cubin: bytes) -> str:
    """The text of nvdisasm with encodings, source lines, inlining and lines of the PTX.

    Raises MissingDependencyError without nvdisasm, CompileError when it does not run, FileError when it does not read
    the cubin.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise MissingDependencyError(f"nvdisasm is not found, and the audit of the marks needs it\n{INSTALL}")
    with tempfile.TemporaryDirectory(prefix="warplens-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [tool, "-c", "-hex", "-gi", "-gp", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{tool} does not run: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise FileError(f"{tool} does not read this machine code: {said[0] if said else 'it says nothing'}")
    return done.stdout.decode(errors="replace")


def ptx_lines(cubin: bytes) -> list[str]:
    """Lines of the PTX that a cubin built with -lineinfo carries; empty without."""
    return (read_section(cubin, _PTX_SECTION) or b"").decode(errors="replace").split("\0")


def texts_of(sources: dict[str, str]) -> Callable[[str], str | None]:
    """Finds texts: `sources` by the end of their path, warplens' headers and other files of the compilation on disk."""
    include = Path(get_include())

    def find(path: str) -> str | None:
        for name, text in sources.items():
            if path == name or path.endswith(("/" + name, "\\" + name)):
                return text
        return _read(Path(path)) if not sources or include in Path(path).parents else None

    return find


def audit_builds(
    traced: tuple[bytes, str], clean: tuple[bytes, str] | None, sites: list[dict[str, Any]], sources: dict[str, str]
) -> dict[str, Any]:
    """The `audit` entry of the manifest.

    `traced`, `clean`: cubin and mangled name of the kernel. `columns` holds the rows, `facts` what both builds are made
    of; `not_audited` says why there are none.
    """
    try:
        sections = [_section(*build) for build in (traced, clean) if build is not None]
        ptx = ptx_lines(traced[0])
        found = audit(sections[0], sites, texts_of(sources), ptx=ptx, clean=sections[1] if clean is not None else None)
    except WarplensError as error:
        return not_audited(str(error))
    return {"columns": found.columns, "facts": found.facts, "not_audited": None}


def not_audited(why: str) -> dict[str, Any]:
    """The entry of a kernel whose marks were not looked at."""
    return {"columns": {name: [] for name in COLUMNS}, "facts": None, "not_audited": why}


def _section(cubin: bytes, name: str) -> Section:
    return pick_section(_sections(cubin), name)


@lru_cache(maxsize=1)  # kernels of a module are audited one after the other, and nvdisasm takes 0.4 s to start
def _sections(cubin: bytes) -> list[Section]:
    return read_sass(disassemble(cubin))


def _read(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_SOURCE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
