"""What GPU code a program or shared library holds, and whether `warplens record` would see its launches.

In: bytes of an ELF file. Out: `Binary`. Needs no GPU and runs nothing. Every offset is checked: the file may be of
anybody. Names come from the symbol table of the host side; GPU code itself is mostly compressed, and is not unpacked.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from warplens.capture.modules import read_section, sections_of
from warplens.errors import SitesError

MAX_BYTES: Final = 4 << 30
_FATBIN: Final = struct.pack("<I", 0xBA55ED50)
_PTX, _CUBIN = 1, 2
_MACHINE: Final = struct.pack("<H", 190)
"""e_machine of GPU code, EM_CUDA."""
# The launch code of a kernel, or a variable of it: all that optimisation may leave of a name.
_STUB: Final = re.compile(rb"_Z(?:GVZ|Z)?L?([0-9]{1,5})__device_stub_(_Z[\w.$]{1,4000})")
_STUB_PREFIX: Final = len("__device_stub_")
_OWN: Final = "_ZN8warplens6detail"
_HOST_HEADER: Final = b"warplens_unit_"  # labels of launch functions that host.hpp renames
_SITES: Final = re.compile(rb"\x1d[^\0\x1d]{0,4096}\x1d[0-9]{1,9}[\0\x1d]")
"""Behind the sites their file and line (`parse_sites`)."""
_VARIABLE: Final = b"WARPLENS_RECORD\0"


@dataclass(frozen=True)
class Binary:
    """GPU code of one file.

    cubins, ptx: compute capabilities as `sm_90`, `compute_90`, each once. kernels: mangled names of kernels whose
    launch code is in the file, as far as its symbols are there. stripped: they are not. has_way_in: host.hpp was
    compiled in. recordable: and kernels have marks.
    """

    cubins: tuple[str, ...]
    ptx: tuple[str, ...]
    kernels: tuple[str, ...]
    stripped: bool
    has_way_in: bool
    recordable: bool


def read_binary(elf: bytes) -> Binary:
    """Raises SitesError for a file that is no 64-bit ELF, or damaged."""
    fatbin = read_section(elf, ".nv_fatbin") or b""
    found = set(_entries(fatbin))
    names = read_section(elf, ".strtab")
    found_names = {match[2][: int(match[1]) - _STUB_PREFIX].decode() for match in _STUB.finditer(names or b"")}
    kernels = sorted(name for name in found_names if name and not name.startswith(_OWN))
    has_way_in = _VARIABLE in elf or (names is not None and _HOST_HEADER in names)
    return Binary(
        cubins=tuple(f"sm_{arch}" for kind, arch in sorted(found) if kind == _CUBIN),
        ptx=tuple(f"compute_{arch}" for kind, arch in sorted(found) if kind == _PTX),
        kernels=tuple(kernels),
        stripped=names is None,
        has_way_in=has_way_in,
        recordable=has_way_in and _has_sites(elf),
    )


def _has_sites(elf: bytes) -> bool:
    """Whether the host side holds a table of sites, as WARPLENS_SITES or `warplens nvcc` leave it."""
    return any(_SITES.search(part) for prefix in (".rodata", ".data") for part in sections_of(elf, prefix))


def is_cubin(elf: bytes) -> bool:
    """Whether the file is GPU code itself, which launches nothing."""
    return elf[:4] == b"\x7fELF" and elf[18:20] == _MACHINE


def is_program(elf: bytes) -> bool:
    """Whether the file is code of the host, a program, a library or an object, which may hold GPU code."""
    return elf[:4] == b"\x7fELF" and len(elf) >= 20 and not is_cubin(elf)


def _entries(fatbin: bytes) -> list[tuple[int, int]]:
    """Kind and architecture of each entry of the containers in a section; stops at what is none."""
    out = []
    at = fatbin.find(_FATBIN)
    while at >= 0 and at + 16 <= len(fatbin):
        header, size = struct.unpack_from("<HQ", fatbin, at + 6)
        entry, end = at + header, min(at + header + size, len(fatbin))
        while entry + 32 <= end:
            kind, _, own_header, own_size = struct.unpack_from("<HHIQ", fatbin, entry)
            (arch,) = struct.unpack_from("<I", fatbin, entry + 28)
            if kind not in (_PTX, _CUBIN) or own_header < 32 or not 10 <= arch < 1000:
                raise SitesError("this file's GPU code is in a form that is not known here")
            out.append((kind, arch))
            entry += own_header + own_size
        at = fatbin.find(_FATBIN, max(end, at + 16))
    return out
