"""What a program's file tells of its GPU code: containers and symbols made by hand, and damaged ones."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warplens.capture.binary import Binary, read_binary
from warplens.errors import SitesError


def fatbin(*entries: tuple[int, int]) -> bytes:
    """A container with entries of kind and architecture, each of 64 bytes of header and 8 of content."""
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, 8, 0, 0, 0, 0, arch) + bytes(32 + 8) for kind, arch in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(sections: dict[str, bytes]) -> bytes:
    """A 64-bit ELF file with these sections and no more."""
    table = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    content = {**sections, ".shstrtab": table}
    data, headers, name_at = b"", bytes(64), 1
    for name, text in content.items():
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(data), len(text), 0, 0, 1, 0)
        name_at += len(name) + 1
        data += text
    head = b"\x7fELF\x02" + bytes(35) + struct.pack("<Q", 64 + len(data)) + bytes(10)
    head += struct.pack("<HHH", 64, len(content) + 1, len(content))
    return head + data + headers


NAMES = b"\0_ZL33__device_stub__Z5scaleILb0EEvPfifPfif\0_ZGVZL33__device_stub__Z5scaleILb0EEvPfifPfifE5__tmp\0"


def test_architectures_and_kernels_are_read() -> None:
    file = elf({".nv_fatbin": fatbin((2, 80), (2, 90)) + fatbin((1, 90), (2, 90)), ".strtab": NAMES})
    assert read_binary(file) == Binary(
        ("sm_80", "sm_90"), ("compute_90",), ("_Z5scaleILb0EEvPfif",), False, False, False
    )


def test_a_kernel_whose_launch_code_was_inlined_is_read_from_its_variables() -> None:
    names = b"\0_ZZL33__device_stub__Z5scaleILb1EEvPfifPfifE8__handle\0"
    assert read_binary(elf({".strtab": names})).kernels == ("_Z5scaleILb1EEvPfif",)


def test_a_program_with_the_host_header_is_told_from_its_variable_or_symbols() -> None:
    assert read_binary(elf({".rodata": b"\0WARPLENS_RECORD\0"})).has_way_in
    assert read_binary(elf({".strtab": b"\0warplens_unit_handle\0"})).has_way_in
    assert read_binary(elf({".text": b"nothing"})) == Binary((), (), (), True, False, False)


@pytest.mark.parametrize(
    "table",
    [b"load, store\x1da.cu\x1d7\0", b"\x1eload\x1fphase\x1f\x1fa.cu\x1f7\x1f\x1da.cu\x1d7\x1dcall of f\0"],
    ids=["WARPLENS_SITES", "warplens nvcc"],
)
def test_record_sees_a_program_with_the_header_and_a_table_of_sites_alone(table: bytes) -> None:
    """One that `warplens nvcc` compiled without marks has the header, and nothing to record."""
    header = b"\0WARPLENS_RECORD\0"
    assert read_binary(elf({".rodata.str1.1": header + table})).recordable
    for sections in (
        {".rodata": header},
        {".rodata": table},
        {".rodata": header, ".nv_fatbin": fatbin((2, 90)) + table},
    ):
        assert not read_binary(elf(sections)).recordable


def test_gpu_code_of_another_form_is_refused() -> None:
    with pytest.raises(SitesError, match="not known here"):
        read_binary(elf({".nv_fatbin": fatbin((7, 80))}))


@settings(max_examples=60)
@given(at=st.integers(0, 700), value=st.integers(0, 255), cut=st.integers(0, 900))
def test_damaged_files_are_read_or_refused(at: int, value: int, cut: int) -> None:
    file = bytearray(elf({".nv_fatbin": fatbin((2, 80), (1, 90)), ".strtab": NAMES}))
    file[min(at, len(file) - 1)] = value
    with contextlib.suppress(SitesError):  # and nothing else
        assert len(read_binary(bytes(file[: len(file) - cut])).cubins) <= 2


def test_doctor_says_whether_record_sees_a_program(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(elf({".nv_fatbin": fatbin((2, 90)), ".strtab": NAMES}))
    command = [sys.executable, "-m", "warplens", "doctor", "--binary", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert (found["cubins"], found["recordable"], done.returncode) == (["sm_90"], False, 5)
    path.write_bytes(elf({".nv_fatbin": fatbin((2, 90)), ".rodata": b"\0WARPLENS_RECORD\0"}))
    found = subprocess.run(command[:-1], capture_output=True, text=True, timeout=60, check=False).stdout
    assert "no kernel has marks: nothing is recorded" in " ".join(found.split())
    assert "program: record does not see it" in found
    path.write_text("no program", encoding="utf-8")
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).returncode == 3


def test_doctor_asks_for_what_launches_a_cubin(tmp_path: Path) -> None:
    program = elf({".text": b"nothing"})
    path = tmp_path / "k.cubin"
    path.write_bytes(program[:18] + struct.pack("<H", 190) + program[20:])
    command = [sys.executable, "-m", "warplens", "doctor", "--binary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "is a cubin: name what launches it" in done.stderr
