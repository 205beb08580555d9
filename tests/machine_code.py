"""What tests read from machine code: a kernel's bytes, its instructions, its resources. Needs no GPU."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

from warplens.audit import COLUMNS
from warplens.capture.audited import audit_builds
from warplens.capture.compile import Compiled
from warplens.capture.modules import read_site_sets


def text_section(cubin: bytes, symbol: str) -> bytes:
    """The kernel's machine code: the bytes of the ELF section `.text.<symbol>`."""
    table, entry_bytes, count, names_index = (
        *struct.unpack_from("<Q", cubin, 0x28),
        *struct.unpack_from("<HHH", cubin, 0x3A),
    )
    entries = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names_at = entries[names_index][4]
    for name_offset, _, _, _, offset, size in entries:
        begin = names_at + name_offset
        if cubin[begin : cubin.index(b"\0", begin)] == b".text." + symbol.encode():
            return cubin[offset : offset + size]
    raise AssertionError(f"no section .text.{symbol}")


def tool(program: str) -> str:
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None, "pip install 'warplens[dev]'"
    assert spec.submodule_search_locations
    found = [Path(root) / "bin" / program for root in spec.submodule_search_locations]
    return str(next((path for path in found if path.is_file()), found[0]))


def disassemble(cubin: bytes, symbol: str, tmp_path: Path) -> list[str]:
    """Instructions of a kernel, in the order in which they lie, with their operands."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool("nvdisasm"), "-c", path], capture_output=True, text=True, check=True).stdout
    body = re.split(r"(?m)^\.text\.", text)
    kernel = next(part for part in body if part.startswith(symbol + ":"))
    return re.findall(r"(?m)^\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", kernel)


def called_functions(cubin: bytes, tmp_path: Path) -> dict[str, list[str]]:
    """Instructions of the functions that kernels call, by the symbol that nvdisasm gives them."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool("nvdisasm"), "-c", path], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"(?m)^\s+\.type\s+(\S+),@function$", text)
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
    entry = audit_builds((compiled.cubin, compiled.names[name]), other, sites, {filename: source})
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
