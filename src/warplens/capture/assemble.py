"""From PTX to machine code, by whatever assembler there is beside the program's own compiler.

In: PTX, the GPU, what the compiler's options say to ptxas. Out: machine code, and what `ptxas -v` says of it. PTX of a
newer version than an assembler is refused by it, and then the next is asked: nvJitLink, which comes with NVRTC's
toolkit; ptxas; the driver, which is often older than NVRTC.
"""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warplens.capture import driver
from warplens.capture.audited import find_tool
from warplens.errors import PtxError
from warplens.instrument.head import target
from warplens.instrument.read import without_comments

_LIMIT: Final = ("--maxrregcount", "-maxrregcount")
_OF_PTXAS: Final = ("--ptxas-options", "-Xptxas")
_SAID: Final = "ptxas info"
_LOG_BYTES: Final = 1 << 20
_SHOWN: Final = 200
_LONGEST: Final = 4000


@dataclass(frozen=True)
class Wish:
    """What options of NVRTC or nvcc say to ptxas: registers of a thread at most, and options of its own."""

    most_registers: int | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Sequence[str]) -> Wish:
        """From options as they are given to the compiler, `-name=value` or `-name` and `value`."""
        most, own = None, []
        given = iter(options)
        for option in given:
            name, equals, value = option.partition("=")
            if name not in (*_LIMIT, *_OF_PTXAS):
                continue
            value = value if equals else next(given, "")
            if name in _OF_PTXAS:
                own += value.split(",")
            elif value.strip().isdigit():
                most = int(value)
        return cls(most, tuple(own))


def assemble(text: str, wish: Wish | None = None) -> tuple[bytes, str]:
    """Machine code of a PTX module for the GPU that it names (sm_90), and the log that `ptxas -v` writes.

    Raises PtxError where no assembler takes it: the first line has the begin of what each says, the others all of it.
    """
    found = target(without_comments(text))
    if found is None:
        raise PtxError("this is no PTX module: it has no .target with a GPU such as sm_90")
    wish = wish or Wish()
    said, logs = [], []
    for name, way in (("nvJitLink", _by_nvjitlink), ("ptxas", _by_ptxas), ("the driver", _by_driver)):
        try:
            cubin, log = way(text, found[0], wish)
            if _SAID not in log:  # it comes from a cache, of nvJitLink or the driver, which keeps no log
                cubin, log = way(f"/* {uuid.uuid4().hex} */{text}", found[0], wish)
            return cubin, log
        except Exception as error:  # it is not there, in the many ways of packages; or it refuses
            said.append(f"{name}: {' '.join(str(error).split())[:_SHOWN]}")
            logs.append(str(error)[:_LONGEST])
    raise PtxError("\n".join([f"nothing here turns PTX into machine code for {found[0]}: {'; '.join(said)}", *logs]))


def _by_nvjitlink(text: str, arch: str, wish: Wish) -> tuple[bytes, str]:
    native: Any = importlib.import_module("cuda.bindings.nvjitlink")
    options = [f"-arch={arch}", "-lineinfo", "-Xptxas=-v", *(f"-Xptxas={own}" for own in wish.options)]
    if wish.most_registers is not None:
        options.append(f"-maxrregcount={wish.most_registers}")
    handle = native.create(len(options), options)
    try:
        data = text.encode("utf-8", "surrogateescape")
        try:
            native.add_data(handle, native.InputType.PTX, data, len(data), "kernels.ptx")
            native.complete(handle)
        except Exception as error:
            log = _read(native.get_error_log_size, native.get_error_log, handle)
            raise PtxError(log.decode("utf-8", "replace").strip("\0\n ") or str(error)) from error
        cubin = _read(native.get_linked_cubin_size, native.get_linked_cubin, handle)
        log = _read(native.get_info_log_size, native.get_info_log, handle)
    finally:
        native.destroy(handle)
    return cubin, log.decode("utf-8", "replace")


def _read(size: Any, content: Any, handle: Any) -> bytes:
    out = bytearray(size(handle))
    content(handle, out)
    return bytes(out)


def _by_ptxas(text: str, arch: str, wish: Wish) -> tuple[bytes, str]:
    tool = find_tool("ptxas")
    if tool is None:
        raise PtxError("not found")
    with tempfile.TemporaryDirectory(prefix="warplens-") as folder:
        ptx, cubin = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        ptx.write_bytes(text.encode("utf-8", "surrogateescape"))
        command = [tool, "-v", "-lineinfo", f"-arch={arch}", str(ptx), "-o", str(cubin), *wish.options]
        if wish.most_registers is not None:
            command.append(f"-maxrregcount={wish.most_registers}")
        done = subprocess.run(command, capture_output=True, check=False)
        log = (done.stdout + done.stderr).decode("utf-8", "replace")
        if done.returncode:
            raise PtxError(log)
        return cubin.read_bytes(), log


def _by_driver(text: str, arch: str, wish: Wish) -> tuple[bytes, str]:
    if wish.options:
        raise PtxError(f"it takes no options of ptxas ({' '.join(wish.options)})")
    native = driver.bindings()
    option = native.CUjit_option
    target = native.CUjit_target
    said, refused = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
    options: dict[Any, Any] = {
        option.CU_JIT_INFO_LOG_BUFFER: said,
        option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        option.CU_JIT_ERROR_LOG_BUFFER: refused,
        option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        option.CU_JIT_LOG_VERBOSE: 1,
        option.CU_JIT_GENERATE_LINE_INFO: 1,
        option.CU_JIT_TARGET: getattr(target, f"CU_TARGET_COMPUTE_{arch.removeprefix('sm_').upper()}"),
    }
    if wish.most_registers is not None:
        options[option.CU_JIT_MAX_REGISTERS] = wish.most_registers
    state = driver.call("cuLinkCreate", len(options), list(options), list(options.values()))
    try:
        data = text.encode("utf-8", "surrogateescape") + b"\0"
        kind = native.CUjitInputType.CU_JIT_INPUT_PTX
        try:
            driver.call("cuLinkAddData", state, kind, data, len(data), b"kernels.ptx", 0, [], [])
            address, size = driver.call("cuLinkComplete", state)
        except Exception as error:
            raise PtxError(refused.rstrip(b"\0").decode("utf-8", "replace") or str(error)) from error
        return ctypes.string_at(int(address), int(size)), said.rstrip(b"\0").decode("utf-8", "replace")
    finally:
        driver.release("cuLinkDestroy", state)
