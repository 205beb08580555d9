"""The variants on the GPU: compiled, loaded, with their trace memory, each launched into a torch stream.

In: a workload (rows, buffers) and a recorder's name. Out: `Variant`s with `launch`, `reset` and `recorded`.
Each launch of a graph has trace memory of its own in every variant: warplens appends to one arena that holds all
launches of a replay (its cursors are set back before each replay, outside of the timed region), the others get
one buffer a launch. So every variant keeps all marks of all launches, and writes to memory that is not in the L2.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import recorders
import torch
from cuda.bindings import driver

from warplens import layout
from warplens.capture.arena import Arena
from warplens.capture.compile import compile_cubin, get_include
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

EPS = 1e-6
MAX_SMS = 256
CHOICES: dict[str, dict[str, int]] = {
    "warplens, blocks and warps chosen at run time": {},
    "warplens, one block in eight": {"every_block": 8},
    "warplens, switched off at run time": {"warp_mask": 0},
}
SPLIT = "two bodies"
CHOICES |= {f"{name}, {SPLIT}": choice for name, choice in CHOICES.items()}
EVERY = "warplens, one block in eight, known to the compiler"
UNSEEN = "warplens, in a program that nobody records"
TWICE = tuple(f"{name}, {SPLIT}" for name in (EVERY, UNSEEN))
PAID = "warplens, a payload with each mark"
POLICIES = {"warplens, stream": "stream", "warplens, live": "live"}
NEWEST = "warplens, keep newest"
VARIANTS = (
    "clean",
    "warplens",
    *CHOICES,
    EVERY,
    UNSEEN,
    *TWICE,
    *POLICIES,
    NEWEST,
    PAID,
    *recorders.BARE,
    *recorders.RIVALS,
    *recorders.ABLATIONS,
)


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; raises RuntimeError when it failed."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {error!r}")
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class Workload:
    """Rotating buffers larger than the L2 in all, and the number of launches in a graph."""

    rows: int
    hidden: int
    launches: int
    xs: list[Any]
    ys: list[Any]
    weight: Any

    @property
    def warps(self) -> int:
        """Warps of a block: a thread takes 8 values."""
        return -(-self.hidden // 256)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all x and y."""
        return sum(t.numel() * t.element_size() for t in (*self.xs, *self.ys))


def make_workload(rows: int, hidden: int, launches: int) -> Workload:
    """Enough pairs of x and y to make up four times the L2, two at least."""
    pair_bytes = 2 * rows * hidden * 2
    sets = max(2, -(-4 * torch.cuda.get_device_properties(0).L2_cache_size // pair_bytes))
    generator = torch.Generator(device="cuda").manual_seed(2)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    xs = [random(rows, hidden) for _ in range(sets)]
    workload = Workload(rows, hidden, launches, xs, [torch.empty_like(x) for x in xs], random(hidden))
    torch.cuda.synchronize()  # it is used on another stream
    return workload


class Variant:
    """One build of the kernel. The base class is the clean one: nothing recorded, nothing to reset."""

    traced = False
    options: tuple[str, ...] = ()

    def __init__(self, name: str, workload: Workload, arch: str) -> None:
        self.name, self.workload = name, workload
        self.function = self.build(arch)

    def build(self, arch: str) -> Any:
        """Compile and load; the driver's handle of the kernel."""
        expression = recorders.name_expression(traced=self.traced)
        compiled = compile_cubin(
            self.source(), [expression], arch=arch, options=self.options, filename=f"rmsnorm_{self.name}.cu"
        )
        self.library = checked(driver.cuLibraryLoadData(compiled.cubin, [], [], 0, [], [], 0))
        kernel = checked(driver.cuLibraryGetKernel(self.library, compiled.names[expression].encode()))
        return checked(driver.cuKernelGetFunction(kernel))

    def source(self) -> str:
        """Text that is compiled."""
        return recorders.marked_source()

    def launch(self, stream: int, index: int) -> None:
        """Put launch `index` of the graph into `stream`."""
        work = self.workload
        x, y = (buffers[index % len(buffers)] for buffers in (work.xs, work.ys))
        traces = self.trace_pointers(index)
        values = (x.data_ptr(), work.weight.data_ptr(), y.data_ptr(), work.hidden, EPS, *traces)
        types = (*[ctypes.c_void_p] * 3, ctypes.c_uint, ctypes.c_float, *[ctypes.c_void_p] * len(traces))
        shape = (work.rows, 1, 1, work.warps * 32, 1, 1)
        checked(driver.cuLaunchKernel(self.function, *shape, 0, stream, (values, types), 0))

    def trace_pointers(self, index: int) -> tuple[int, ...]:  # noqa: ARG002
        """Further arguments of launch `index`, after those of the clean kernel."""
        return ()

    def reset(self) -> None:
        """Make room for the next replay, on the current stream."""

    def recorded(self) -> dict[str, int]:
        """Check that the last replay left every mark; what was counted."""
        return {}

    def resources(self) -> dict[str, int]:
        """Registers, shared and local bytes, and how many blocks an SM holds."""
        attribute = driver.CUfunction_attribute
        wanted = {
            "registers": attribute.CU_FUNC_ATTRIBUTE_NUM_REGS,
            "shared_bytes": attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            "local_bytes": attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        }
        found = {key: int(checked(driver.cuFuncGetAttribute(a, self.function))) for key, a in wanted.items()}
        threads = self.workload.warps * 32
        blocks = checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, 0))
        return {**found, "resident_blocks_per_sm": int(blocks)}


class Warplens(Variant):
    """warplens as `Kernel.record` builds and feeds it: every block, every warp; the arena holds all launches."""

    traced = True
    include_options: tuple[str, ...] = ()
    record_options = RecordOptions()
    choice: ClassVar[dict[str, int]] = {}
    words = recorders.MARKS
    """That a warp leaves: its records, and the base that is its end."""

    def build(self, arch: str) -> Any:  # noqa: ARG002
        """The build that `Kernel.record` would choose for this launch."""
        name = recorders.name_expression(traced=True)
        kernel = CudaKernel(self.source(), name, options=self.include_options, filename="rmsnorm.cu")
        work = self.workload
        self.chunks = work.launches * work.rows * work.warps
        capacity_bytes = layout.CONTROL_BYTES + 4 * self.chunks * layout.CHUNK_BYTES  # half of it is the pool
        mapped, newest = self.record_options.policy == "live", self.record_options.keep == "newest"
        self.arena = Arena(capacity_bytes, mapped=mapped, newest=newest, sm_count=MAX_SMS)
        if self.choice:
            keeps = (self.choice.get("every_block", 1), self.choice.get("warp_mask", 1))
            self.chunks = -(-work.rows // keeps[0]) * work.launches * work.warps if keeps[1] else 0
        shape = (work.rows, 1, 1), (work.warps * 32, 1, 1)
        build, self.entry = kernel.traced_build(*shape, self.record_options, self.arena)
        self.kernel, self.build_options = kernel, build.options
        address = build.library.symbol(layout.DESCRIPTOR_SYMBOL)
        value = self.arena.descriptor().reshape(1)
        checked(driver.cuMemcpyHtoD(address, value.ctypes.data, value.nbytes))
        self.arena.choose(0, **self.choice)
        return build.function.handle

    def reset(self) -> None:
        """Set the cursors and counters back; the arena's chunks stay and are written over."""
        self.arena.clear_cursors(torch.cuda.current_stream().cuda_stream)

    def recorded(self) -> dict[str, int]:
        """Chunks, events and losses of the last replay; RuntimeError when any is missing."""
        drained = self.arena.drain(torch.cuda.current_stream().cuda_stream)
        meta = drained.chunks[:, layout.WORD_META]
        written = meta >> layout.META_MARKER_SHIFT == layout.META_MARKER
        counts = (meta[written] >> layout.META_COUNT_SHIFT) & ((1 << layout.META_COUNT_BITS) - 1)
        flags = (meta[written] >> layout.META_FLAGS_SHIFT) & ((1 << layout.META_FLAGS_BITS) - 1)
        ends = int(np.count_nonzero(flags & layout.ChunkFlag.LAST))  # the ninth mark is the base of the last chunk
        found = {"chunks": len(meta), "events": int(counts.sum()) + ends, "lost_events": drained.lost_events}
        wanted = {"chunks": self.chunks, "events": self.chunks * self.words, "lost_events": 0}
        if found != wanted:
            raise RuntimeError(f"warplens recorded {found}; expected {wanted}")
        return found


class Newest(Warplens):
    """A ring that keeps the newest events; it holds all launches, so nothing is written over."""

    record_options = RecordOptions(keep="newest")


class Chosen(Warplens):
    """The build that reads at run time what is recorded."""

    record_options = RecordOptions(warps=tuple(range(32)))

    def __init__(self, name: str, workload: Workload, arch: str) -> None:
        self.choice = CHOICES[name]
        super().__init__(name, workload, arch)

    def source(self) -> str:
        """The demo's kernel, or that with two bodies."""
        return recorders.split_source() if SPLIT in self.name else super().source()


class Every(Warplens):
    """The build that `Kernel.record(every_block=8)` makes, which knows the step."""

    record_options = RecordOptions(every_block=8)
    choice: ClassVar[dict[str, int]] = {"every_block": 8}

    def source(self) -> str:
        """The demo's kernel, or that with two bodies."""
        return recorders.split_source() if SPLIT in self.name else super().source()


class Unseen(Variant):
    """A build for no arena, as nvcc makes one, in a module that no host has told of one: nothing is recorded."""

    traced = True
    options = ("-DWARPLENS_1D", "-DWARPLENS_NO_CLUSTER", "--maxrregcount=32")

    def source(self) -> str:
        """The demo's kernel, or that with two bodies."""
        return recorders.split_source() if SPLIT in self.name else super().source()


class Paid(Warplens):
    """Each mark but the end carries a payload, one record more."""

    words = 2 * (recorders.MARKS - 1) + 1

    def source(self) -> str:
        """The demo's kernel with payloads."""
        return recorders.paid_source()


class Streamed(Warplens):
    """Another storage policy, everything recorded."""

    def __init__(self, name: str, workload: Workload, arch: str) -> None:
        self.record_options = RecordOptions(policy=POLICIES[name])
        super().__init__(name, workload, arch)

    def recorded(self) -> dict[str, int]:
        """Chunks and losses of the last replay; RuntimeError when chunks are missing."""
        drained = self.arena.drain(torch.cuda.current_stream().cuda_stream)
        found = {"chunks": len(drained.chunks), "lost_events": drained.lost_events}
        if found != {"chunks": self.chunks, "lost_events": 0}:
            raise RuntimeError(f"{self.name} recorded {found}; expected {self.chunks} chunks and no loss")
        return found


class Rival(Variant):
    """A recorder that writes each event to a fixed place of the launch's own buffer."""

    traced = True
    limit = "--maxrregcount=32"  # as many resident blocks as the clean kernel has

    def __init__(self, name: str, workload: Workload, arch: str) -> None:
        self.options = (self.limit, *recorders.rival_options(name))
        super().__init__(name, workload, arch)
        words = recorders.trace_bytes(name, workload.rows, workload.warps) // 8
        self.traces = torch.zeros(workload.launches, -(-words // 2) * 2, device="cuda", dtype=torch.int64)
        self.words = words

    def source(self) -> str:
        """The demo's kernel with this recorder."""
        return recorders.rival_source(self.name)

    def trace_pointers(self, index: int) -> tuple[int, ...]:
        """The buffer of launch `index`."""
        return (self.traces[index].data_ptr(),)

    def recorded(self) -> dict[str, int]:
        """Events found in all buffers; RuntimeError when any is missing."""
        stride = 2 if self.name == "document" else 1  # the meta of a document's event may be 0, its clock never
        entries = self.traces[:, : self.words : stride]
        headers = self.workload.rows if self.name == "document" else 1
        found = int(torch.count_nonzero(entries)) - self.workload.launches * headers
        wanted = self.workload.launches * self.workload.rows * self.workload.warps * recorders.MARKS
        if found != wanted:
            raise RuntimeError(f"{self.name} recorded {found} events; expected {wanted}")
        return {"events": found}


class Bare(Rival):
    """Marks with nothing but what they cost at least. Its records are not usable."""

    def __init__(self, name: str, workload: Workload, arch: str) -> None:
        self.options = (self.limit,)
        Variant.__init__(self, name, workload, arch)
        words = 8 if recorders.BARE[name][1] else 1  # of 64 bits, a warp
        self.traces = torch.zeros(
            workload.launches, workload.rows * workload.warps * words, device="cuda", dtype=torch.int64
        )

    def source(self) -> str:
        """The demo's kernel with these marks."""
        return recorders.bare_source(self.name)

    def recorded(self) -> dict[str, int]:
        """Nothing is promised."""
        return {}


class Ablated(Warplens):
    """warplens with a part of its device side left out: what that part costs. Its records are not usable."""

    def build(self, arch: str) -> Any:
        """Compile against a copy of the headers in which the replacements of ABLATIONS were made."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "include")
            shutil.copytree(get_include(), root)
            for name, old, new in recorders.ABLATIONS[self.name]:
                path = root / "warplens" / "detail" / name
                text = path.read_text(encoding="utf-8")
                if text.count(old) != 1:
                    raise ValueError(f"{name} holds {old!r} {text.count(old)} times; expected once")
                path.write_text(text.replace(old, new), encoding="utf-8")
            self.include_options = (f"--include-path={root}",)
            return super().build(arch)

    def recorded(self) -> dict[str, int]:
        """Nothing is promised."""
        return {}


def make_variant(name: str, workload: Workload, arch: str) -> Variant:
    """The variant of that name, compiled and loaded in the current context."""
    kinds: dict[str, type[Variant]] = {
        "clean": Variant,
        "warplens": Warplens,
        **dict.fromkeys(CHOICES, Chosen),
        **dict.fromkeys(POLICIES, Streamed),
        NEWEST: Newest,
        PAID: Paid,
        **{name: Every if EVERY in name else Unseen for name in (EVERY, UNSEEN, *TWICE)},
        **dict.fromkeys(recorders.BARE, Bare),
        **dict.fromkeys(recorders.ABLATIONS, Ablated),
    }
    return kinds.get(name, Rival)(name, workload, arch)
