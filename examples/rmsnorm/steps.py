"""The steps from the document's kernel to the fastest one: their files, what each takes, and how each is launched.

In: a step, rows and hidden size. Out: `Launch`. Knows no arrays and touches no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from warplens.errors import UsageError

VECTOR = 8  # values of a 128-bit vector
VALUE_BYTES = 2
ROW_ALIGNMENT_BYTES = 128  # of a row in shared memory
SHARED_BYTES_PER_SM = 227 << 10  # compute capability 9.0; what blocks there can use
BLOCK_SHARED_BYTES = 2 << 10  # of a block beside its rows: its own variables, and 1 kB that CUDA takes
WARP_SIZE = 32
LONG_ROW = 8192  # values; two vectors a thread make blocks of 1,024 threads above, of which two fit on an SM
LONG_ROW_VECTORS = 4
LEAST_THREADS = 128  # of a shaped block: up to hidden 1024 two rows share one, as a GPU begins one block a ns at most
MAX_ROWS = 2**31 - 1  # largest grid
HERE = Path(__file__).parent
CPP_TYPES = {"bfloat16": "__nv_bfloat16", "float16": "__half"}


@dataclass(frozen=True)
class Step:
    """One kernel of the story.

    least_capability: the oldest GPU that runs it. overlaps: it waits with `griddepcontrol`, and may be launched while
    the kernel before it ends. rows_in_shared: rows that it keeps in dynamic shared memory. blocks_per_sm: the most
    blocks on an SM where they stay and take row after row; 0 is one block a row. shaped: rows above LONG_ROW have
    LONG_ROW_VECTORS a thread, and short rows share a block, which has LEAST_THREADS or more. record_every_block: which
    blocks are recorded at 4096 rows, so that a file has some 100 kB.
    """

    name: str
    title: str
    path: Path
    vectors_per_thread: int
    max_hidden: int
    least_capability: tuple[int, int] = (8, 0)
    overlaps: bool = False
    rows_in_shared: int = 0
    blocks_per_sm: int = 0
    shaped: bool = False
    record_every_block: int = 16

    def vectors(self, hidden: int) -> int:
        """Vectors of a thread for rows of `hidden` values."""
        return LONG_ROW_VECTORS if self.shaped and hidden > LONG_ROW else self.vectors_per_thread

    def kernel_name(self, dtype: str, hidden: int, *, traced: bool) -> str:
        """Name expression of the kernel for `dtype` ("bfloat16" or "float16") and rows of `hidden` values."""
        vectors = f", {self.vectors(hidden)}" if self.shaped else ""
        return f"rmsnorm_fwd<{CPP_TYPES[dtype]}, {'true' if traced else 'false'}{vectors}>"

    def kernel_names(self, dtype: str, *, traced: bool) -> list[str]:
        """Every name that `kernel_name` gives."""
        return list(dict.fromkeys(self.kernel_name(dtype, hidden, traced=traced) for hidden in (1, self.max_hidden)))


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched for checked arguments. numbers: its unsigned parameters, between y and eps."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    numbers: tuple[int, ...]
    dtype: str
    shared_bytes: int


_DEMO = Path(str(files("warplens") / "demo" / "rmsnorm.cu"))
_BULK: Any = {"least_capability": (9, 0), "rows_in_shared": 1, "record_every_block": 8}
_OVERLAP: Any = {**_BULK, "overlaps": True}
_RING: Any = {"least_capability": (9, 0), "rows_in_shared": 5, "blocks_per_sm": 4, "record_every_block": 8}
DOCUMENT = Step("document", "the document's kernel", _DEMO, 1, 8192)
STEPS = (
    DOCUMENT,
    Step("weight_early", "the weight loaded with x", HERE / "steps" / "1_weight_early.cu", 1, 8192),
    Step("one_barrier", "one barrier instead of two", HERE / "steps" / "2_one_barrier.cu", 1, 8192),
    Step("four_vectors", "four vectors a thread", HERE / "steps" / "3_four_vectors.cu", 4, 16384, record_every_block=4),
    Step("ring", "blocks stay and fetch ahead", HERE / "steps" / "4_ring.cu", 4, 16384, **_RING),
    Step("bulk", "a row comes and goes as one bulk copy", HERE / "steps" / "5_bulk.cu", 2, 16384, **_BULK),
    Step("aligned", "the row on 128 bytes", HERE / "steps" / "6_aligned.cu", 2, 16384, **_BULK),
    Step("overlap", "launches overlap", HERE / "steps" / "7_overlap.cu", 2, 16384, **_OVERLAP),
    Step("ahead", "rows fetched ahead of the wait", HERE / "steps" / "8_ahead.cu", 2, 16384, **_OVERLAP),
    Step("direct", "y stored from registers", HERE / "steps" / "9_direct.cu", 2, 16384, **_OVERLAP),
    Step("shaped", "blocks shaped by the row", HERE / "steps" / "10_shaped.cu", 2, 16384, shaped=True, **_OVERLAP),
)


def step_named(name: str) -> Step:
    """The step of that name. Raises UsageError."""
    for step in STEPS:
        if step.name == name:
            return step
    raise UsageError(f"no step is called {name!r}: expected one of {', '.join(step.name for step in STEPS)}")


def check_capability(step: Step, capability: tuple[int, int]) -> None:
    """Raises UsageError where a GPU of this compute capability cannot run the step."""
    if capability < step.least_capability:
        found, least = (".".join(map(str, pair)) for pair in (capability, step.least_capability))
        raise UsageError(f"this GPU has compute capability {found}; step {step.name} needs {least} or newer")


def check_shape(step: Step, rows: int, hidden: int) -> None:
    """Raises UsageError for rows or a hidden size that the step does not take."""
    takes = f"expected a multiple of {VECTOR} from {VECTOR} to {step.max_hidden}"
    if hidden == 0:
        raise UsageError(f"the rows of x are empty (hidden size 0); {takes}")
    if hidden > step.max_hidden:
        threads = step.max_hidden // VECTOR // step.vectors(step.max_hidden)
        raise UsageError(
            f"the rows of x hold {hidden} values; {takes}: a row is one block of at most {threads} threads"
        )
    if hidden % VECTOR:
        padded = -(-hidden // VECTOR) * VECTOR
        raise UsageError(f"the rows of x hold {hidden} values; {takes}. The next that fits is {padded}")
    if not 1 <= rows <= MAX_ROWS:
        raise UsageError(f"x has {rows} rows; expected 1 to {MAX_ROWS}, one block each")


def launch_of(step: Step, rows: int, hidden: int, dtype: str, sm_count: int) -> Launch:
    """The launch for a shape that `check_shape` lets pass, in whole warps, on a GPU of `sm_count` SMs."""
    threads = -(-hidden // (VECTOR * WARP_SIZE * step.vectors(hidden))) * WARP_SIZE
    rows_of_block = max(1, LEAST_THREADS // threads) if step.shaped else 1
    held_bytes = step.rows_in_shared * rows_of_block * hidden * VALUE_BYTES
    if step.blocks_per_sm:
        held_bytes = step.rows_in_shared * aligned(hidden * VALUE_BYTES)
        resident = min(step.blocks_per_sm, max(1, SHARED_BYTES_PER_SM // (held_bytes + BLOCK_SHARED_BYTES)))
        return Launch((min(rows, sm_count * resident), 1, 1), (threads, 1, 1), (rows, hidden), dtype, held_bytes)
    grid, block = (-(-rows // rows_of_block), 1, 1), (threads, rows_of_block, 1)
    return Launch(grid, block, (rows, hidden) if step.shaped else (hidden,), dtype, aligned(held_bytes))


def aligned(size_bytes: int) -> int:
    """The next multiple of what a row in shared memory is aligned to."""
    return -(-size_bytes // ROW_ALIGNMENT_BYTES) * ROW_ALIGNMENT_BYTES
