"""What tests read from machine code: a kernel's bytes, its instructions, its resources. Needs no GPU."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from warplens.audit import COLUMNS, pick_section, read_sass
from warplens.audit.sass import Instruction, Section
from warplens.capture import audited as audited_builds
from warplens.capture.compile import Compiled
from warplens.capture.modules import read_site_sets

YIELD = 0x946
"""The low 12 bits of the instruction's 128, from sm_80 to sm_120."""


def text_section(cubin: bytes, symbol: str) -> bytes:
    """The kernel's machine code: the bytes of the ELF section `.text.<symbol>`."""
    found = dict(text_sections(cubin))
    assert symbol in found, f"no section .text.{symbol}"
    return found[symbol]


def text_sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Symbol and machine code of each kernel of a module."""
    table, entry_bytes, count, names_index = (
        *struct.unpack_from("<Q", cubin, 0x28),
        *struct.unpack_from("<HHH", cubin, 0x3A),
    )
    entries = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names_at = entries[names_index][4]
    for name_offset, _, _, _, offset, size in entries:
        begin = names_at + name_offset
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), cubin[offset : offset + size]


def yields(cubin: bytes) -> int:
    """How many YIELDs a module has, without nvdisasm, which takes 0.4 s to start (test_modes.py compares both)."""
    codes = [np.frombuffer(code, "<u2")[::8] & 0xFFF for _, code in text_sections(cubin)]  # of 16 bytes the first 2
    return sum(int(np.count_nonzero(code == YIELD)) for code in codes)


def tool(program: str) -> str:
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None, "pip install 'warplens[dev]'"
    assert spec.submodule_search_locations
    found = [Path(root) / "bin" / program for root in spec.submodule_search_locations]
    return str(next((path for path in found if path.is_file()), found[0]))


@lru_cache(64)
def _plain_text(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool("nvdisasm"), "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@lru_cache(64)
def sections(cubin: bytes) -> tuple[Section, ...]:
    """What the audit reads of a module; nvdisasm takes 0.3 to 0.5 s to start, whatever it reads."""
    return tuple(read_sass(audited_builds.disassemble(cubin)))


def disassemble(cubin: bytes, symbol: str) -> list[str]:
    """Instructions of a kernel, in the order in which they lie, with their operands."""
    body = re.split(r"(?m)^\.text\.", _plain_text(cubin))
    kernel = next(part for part in body if part.startswith(symbol + ":"))
    return re.findall(r"(?m)^\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", kernel)


def called_functions(cubin: bytes) -> dict[str, list[str]]:
    """Instructions of the functions that kernels call, by the symbol that nvdisasm gives them."""
    parts = re.split(r"(?m)^\s+\.type\s+(\S+),@function$", _plain_text(cubin))
    return {
        name: re.findall(r"(?m)^\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", body)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
        if "$" in name
    }


def audited(
    compiled: Compiled, name: str, source: str, filename: str, clean: tuple[Compiled, str] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the audit of a kernel, with the name of each row's site, and the facts about both builds."""
    sites = read_site_sets(compiled.cubin)[0]["sites"]
    other = None if clean is None else (clean[0].cubin, clean[0].names[clean[1]])
    return audited_build((compiled.cubin, compiled.names[name]), other, sites, {filename: source})


def audited_build(
    traced: tuple[bytes, str],
    clean: tuple[bytes, str] | None,
    sites: list[dict[str, Any]],
    sources: dict[str, str] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The same of cubins and mangled names; nvdisasm reads each cubin once."""
    with patch.object(audited_builds, "_section", lambda cubin, name: pick_section(list(sections(cubin)), name)):
        entry = audited_builds.audit_builds(traced, clean, sites, sources or {})
    assert entry["not_audited"] is None
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*entry["columns"].values(), strict=True)]
    return [row | {"name": "" if row["site"] is None else sites[row["site"]]["name"]} for row in rows], entry["facts"]


def resources(cubin: bytes, symbol: str, tmp_path: Path) -> dict[str, int]:
    """What `cuobjdump -res-usage` says: REG, STACK, SHARED, LOCAL ..."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool("cuobjdump"), "-res-usage", path], capture_output=True, text=True, check=True).stdout
    line = text[text.index(f"Function {symbol}:") :].splitlines()[1]
    return {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}


def usual_turn(kernel: Section, opcode: str) -> list[Instruction]:
    """The instructions of a turn of the smallest loop around all of this opcode, each branch over other code taken."""
    code = kernel.code
    at_work = [at for at, instruction in enumerate(code) if instruction.name == opcode]
    jumps = [(kernel.labels[label], at) for at, own in enumerate(code) if own.name == "BRA" for label in own.targets]
    # The first jump back: code that is rare jumps back too, from behind.
    end, at = min((end, at) for at, end in jumps if at <= at_work[0] and end >= at_work[-1])
    turn = []
    while at <= end:
        turn.append(code[at])
        ahead = [kernel.labels[label] for label in code[at].targets if at < kernel.labels[label] <= end]
        at = ahead[0] if code[at].name == "BRA" and ahead else at + 1
    return turn


def issue_cycles(turn: list[Instruction]) -> int:
    """Cycles that a warp which is alone takes to issue them, if nothing is waited for by a scoreboard."""
    return sum(instruction.control.stall for instruction in turn)
