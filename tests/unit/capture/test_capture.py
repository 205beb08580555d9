"""What capture does without a GPU: arguments, options, the arena's arithmetic, symbols of modules, clear errors."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warplens import errors, layout
from warplens.capture import arena, cuda, driver, machine, modules
from warplens.capture import compile as compiler
from warplens.capture.arguments import Arguments, pointer_of
from warplens.capture.options import RecordOptions, stream_handle
from warplens.instrument import site_text


def packed(value: Any, size: int | None) -> bytes:
    arguments = Arguments([value], None if size is None else (size,))
    address = ctypes.cast(arguments.table, ctypes.POINTER(ctypes.c_void_p))[0]
    assert address is not None
    return ctypes.string_at(address, size or 4)


class OnGpu:
    def __init__(self, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "data": (0x7F0000001000, False),
            "shape": (4, 8),
            "strides": strides,
            "typestr": "<f4",
        }


def test_numbers_take_the_width_of_the_kernels_parameter() -> None:
    assert packed(-2, 8) == struct.pack("<q", -2)
    assert packed(7, 2) == struct.pack("<H", 7)
    assert packed(True, 1) == b"\1"
    assert packed(0.5, 8) == struct.pack("<d", 0.5)
    assert packed(0.5, 4) == struct.pack("<f", 0.5)
    assert packed(np.float16(1.5), 2) == np.float16(1.5).tobytes()
    assert packed(ctypes.c_uint32(9), 4) == struct.pack("<I", 9)
    assert packed(None, 8) == bytes(8)


def test_numbers_that_a_sign_leaves_no_room_are_those_without_and_floats_keep_their_bits() -> None:
    assert packed(0xFFFFFFFF, 4) == packed(-1, 4) == b"\xff" * 4
    assert packed(1 << 63, 8) == struct.pack("<Q", 1 << 63)
    assert packed(3, None) == struct.pack("<i", 3)
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert packed(1e300, 4) == struct.pack("<f", np.inf)
    for bits in (0x7F800001, 0xFFC00123, 0x80000000):
        own = np.array([bits], np.uint32).view(np.float32)[0]
        assert packed(own, 4) == struct.pack("<I", bits)


@pytest.mark.parametrize("kind", [*np.sctypeDict.values()])
def test_each_scalar_of_numpy_is_passed_as_it_lies_in_memory(kind: type[Any]) -> None:
    if issubclass(kind, np.number | np.bool_):
        own = kind(3)
        assert packed(own, own.nbytes) == own.tobytes()


def test_values_lie_where_any_type_of_cudas_may_and_their_addresses_stand_in_the_table() -> None:
    class Array:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:  # as arrays have it: their type says so
            return {"data": (0x7000, False), "shape": (4,), "typestr": "<f4"}

    for value, words in ((Array(), [0x7000, 5]), (None, [0, 5])):  # all at once, and one by one
        given = Arguments([value, True, np.float32(2), 5], (8, 1, 4, 8))
        pointers = ctypes.cast(given.table, ctypes.POINTER(ctypes.c_uint64))[:4]
        assert [(pointer - pointers[0]) % 16 for pointer in pointers] == [0] * 4
        assert ctypes.string_at(pointers[2], 4) == struct.pack("<f", 2)
        assert given.words() == words


def test_arrays_are_passed_by_their_device_address() -> None:
    assert packed(OnGpu(), 8) == struct.pack("<Q", 0x7F0000001000)
    assert pointer_of(OnGpu((32, 4))) == 0x7F0000001000
    with pytest.raises(errors.UsageError, match="gaps"):
        pointer_of(OnGpu((64, 4)))


@pytest.mark.parametrize(
    ("values", "sizes", "text"),
    [
        ([1], (4, 4), "takes 2 arguments, 1 were given"),
        ([1 << 40], (4,), "only 4 bytes"),
        ([np.float64(1)], (4,), "8 bytes, the kernel's parameter 4"),
        (["text"], (8,), "is a str"),
        ([np.zeros((4, 4))[:, ::2]], (8,), "C-contiguous"),
        ([OnGpu((64, 4))], (8,), "gaps"),
        ([OnGpu()], (4,), "8 bytes, the kernel's parameter 4"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(values: list[Any], sizes: tuple[int, ...], text: str) -> None:
    with pytest.raises(errors.UsageError, match=text):
        Arguments(values, sizes)


@given(st.integers(layout.CONTROL_BYTES, 1 << 37))
def test_shares_and_rest_use_the_arena_and_no_more(capacity_bytes: int) -> None:
    shared, chunks = arena.divide(capacity_bytes)
    assert shared % layout.CURSOR_COUNT == 0
    assert 0 <= shared <= chunks
    assert chunks * layout.CHUNK_BYTES + layout.CONTROL_BYTES <= capacity_bytes
    assert capacity_bytes - chunks * layout.CHUNK_BYTES - layout.CONTROL_BYTES < layout.CHUNK_BYTES


@pytest.mark.parametrize("capacity_bytes", [0, -1, layout.CONTROL_BYTES - 1, 1 << 50])
def test_a_capacity_that_cannot_be_is_refused(capacity_bytes: int) -> None:
    with pytest.raises(errors.UsageError, match="capacity"):
        arena.divide(capacity_bytes)


def test_options_are_checked_by_name_and_value() -> None:
    assert RecordOptions(warps=(0, 3)).warp_mask == 0b1001
    assert RecordOptions().warp_mask == 0xFFFFFFFF
    with pytest.raises(errors.UsageError, match=r"'round'.*rounds"):
        RecordOptions.of({"round": 3})
    for bad in ({"rounds": -1}, {"launches": 0}, {"every_block": 0}, {"warps": (32,)}, {"keep": "all"}):
        with pytest.raises(errors.UsageError):
            RecordOptions.of(bad)


def test_streams_of_all_libraries_are_taken() -> None:
    class Torch:
        cuda_stream = 11

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 12)

    assert [stream_handle(s) for s in (None, 5, Torch(), Protocol())] == [0, 5, 11, 12]
    with pytest.raises(errors.UsageError, match="stream is a str"):
        stream_handle("default")


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("k<true>", "k<false>"),
        ("rmsnorm_fwd<__nv_bfloat16, true>", "rmsnorm_fwd<__nv_bfloat16, false>"),
        ("k<true, true>", None),
        ("k", None),
    ],
)
def test_the_clean_kernel_is_found_where_one_argument_is_true(name: str, clean: str | None) -> None:
    assert cuda._clean_name(name) == clean


@pytest.mark.parametrize("value", [0, (), (1, 2, 3, 4), (1, -1)])
def test_a_grid_has_one_to_three_positive_numbers(value: Any) -> None:
    assert cuda.dim3((2, 3), "grid") == (2, 3, 1)
    with pytest.raises(errors.UsageError, match="grid"):
        cuda.dim3(value, "grid")


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF\x02", b"\x7fELF\x02" + b"\xff" * 200])
def test_a_module_that_is_no_elf_file_is_told_so(content: bytes) -> None:
    with pytest.raises(errors.SitesError, match="module"):
        modules.read_site_sets(content)


@given(st.binary(max_size=400))
def test_random_bytes_behind_an_elf_head_raise_nothing_else(tail: bytes) -> None:
    head = b"\x7fELF\x02" + bytes(35) + struct.pack("<Q", 64) + bytes(10) + struct.pack("<HH", 64, 3) + bytes(2)
    symbols: list[tuple[str, bytes]] = []
    with contextlib.suppress(errors.SitesError):
        symbols.extend(modules.read_symbols(head + tail, ""))
    assert all(content in head + tail for _, content in symbols)


def test_a_site_table_that_cannot_be_read_is_refused() -> None:
    for content in (
        b"",
        b"load, store",
        b"load\x1dfile",
        "load\x1dfile\x1d²".encode(),
        b"load\x1dfile\x1d" + b"9" * 5000,
        b"\x1eone\x1fphase\x1dfile\x1d3",
        b"\x1ea\x1fnap\x1f\x1dfile\x1d3",
        b"\x1ea\x1fwait\x1f\x1ff\x1f3\x1fmany\x1dfile\x1d3",
    ):
        with pytest.raises(errors.SitesError):
            modules.parse_sites("s", content)


def test_names_and_files_that_hold_what_ends_a_field_leave_the_table_whole() -> None:
    ends = ["\0", layout.SITE_SEPARATOR, layout.FIELD_SEPARATOR, layout.TAIL_SEPARATOR]
    kind = {"kind": "phase", "resource": "", "arrivals": None}
    sites = [{"name": f"a{end}b", "file": f"k{end}.cu", "line": 7, **kind} for end in ends]
    read = modules.parse_sites("s", (site_text({"sites": sites, "left_out": []}) + "\0").encode())["sites"]
    assert [(site["name"], site["file"], site["line"]) for site in read] == [("a\ufffdb", "k\ufffd.cu", 7)] * 4


def test_a_table_of_sites_says_how_many_arrivals_each_makes_or_nothing_as_older_ones_do() -> None:
    site = {"name": "wait", "kind": "wait", "resource": "mbarrier a", "file": "k.cu", "line": 7}
    sites = [site | {"arrivals": 128}, site | {"arrivals": None}]
    text = site_text({"sites": sites, "left_out": ["call of f (k.cu:7)", "one \x1d two"]}) + "\0"
    read = modules.parse_sites("s", text.encode())
    assert [own["arrivals"] for own in read["sites"]] == [128, None]
    assert read["left_out"] == ["call of f (k.cu:7)", "one \ufffd two"]
    older = b"\x1ewait\x1fwait\x1fmbarrier a\x1fk.cu\x1f7\x1dk.cu\x1d7"
    assert modules.parse_sites("s", older) == {"name": "s", "hash": layout.sites_hash("s"), "sites": [site | {"id": 1}]}


def test_without_the_bindings_the_error_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    driver.bindings.cache_clear()
    monkeypatch.setattr(driver, "has_driver", lambda: False)
    with pytest.raises(errors.DeviceError, match="no NVIDIA driver on this machine"):
        driver.bindings()
    monkeypatch.setattr(driver, "has_driver", lambda: True)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install '\.\[cu13\]'"):
        driver.bindings()
    with pytest.raises(errors.MissingDependencyError, match=r"pip install '\.\[cu13\]'"):
        compiler.load_nvrtc()


def test_without_nvml_the_state_is_unknown_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert set(machine.clock_state(0).values()) == {None}


def test_a_device_name_ends_where_the_driver_ended_it() -> None:
    assert machine.c_text(b"NVIDIA H200\0\0\0\x05of an earlier call\0") == "NVIDIA H200"


def test_a_source_that_is_not_there_is_a_file_error(tmp_path: Any) -> None:
    with pytest.raises(errors.FileError, match=r"nowhere\.cu"):
        cuda.CudaKernel.from_file(tmp_path / "nowhere.cu", "k<true>")


@pytest.mark.parametrize("value", [np.int64(4), (np.int32(4),), [4, np.uint8(1)], np.array([4, 1, 1])])
def test_numbers_of_numpy_are_grid_sizes(value: Any) -> None:
    assert cuda.dim3(value, "grid") == (4, 1, 1)


@pytest.mark.parametrize("value", [1.5, (1.5, 1), "32", None, (), (1, 2, 3, 4), 0, (1, -1), {}])
def test_grid_sizes_that_cannot_be_meant_are_refused(value: Any) -> None:
    with pytest.raises(errors.UsageError, match="one to three positive numbers"):
        cuda.dim3(value, "grid")


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": "3"},
        {"launches": 1.5},
        {"capacity_bytes": -1},
        {"every_block": None},
        {"warps": 5},
        {"warps": ("0",)},
        {"cluster": (2,)},
        {"cluster": 2},
        {"loops": 1},
        {"loops": "yes"},
        {"cluster": (0, 1, 1)},
    ],
)
def test_options_of_a_wrong_type_or_size_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError, match=next(iter(options))):
        RecordOptions.of(options)


def test_numbers_of_numpy_in_options_reach_a_trace_as_pythons() -> None:
    """JSON knows none of numpy's: a recording with one of them was lost at its end."""
    names = ("rounds", "warmup", "launches", "shared_bytes", "capacity_bytes", "every_block", "every_iteration")
    options = RecordOptions.of(dict.fromkeys(names, np.int64(5)))
    assert json.loads(json.dumps(vars(options)))["shared_bytes"] == 5
    assert options == RecordOptions.of(dict.fromkeys(names, 5))


def test_warps_may_come_from_numpy() -> None:
    assert RecordOptions.of({"warps": np.array([0, 3])}).warp_mask == 0b1001


@pytest.mark.parametrize("odd", ["int a;\0 int b;", "\udcff"])
def test_text_that_nvrtc_cannot_take_is_refused_and_not_cut(odd: str) -> None:
    plain: dict[str, Any] = {"source": "", "name_expressions": [], "arch": "sm_90a"}
    for where in ({"source": odd}, {"filename": odd}, {"options": [odd]}, {"name_expressions": [odd]}, {"arch": odd}):
        with pytest.raises(errors.CompileError, match=r"zero byte|UTF-8"):
            compiler.compile_cubin(**(plain | where))


def test_a_site_that_is_given_a_number_is_refused() -> None:
    with pytest.raises(errors.SitesError, match="'load = 5'"):
        modules.parse_sites("s", b"load = 5, store\x1dk.cu\x1d3\0")
