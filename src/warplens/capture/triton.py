"""Triton's door: its kernels get their marks as it loads them, whoever compiled them (triton_builds.py).

In: a capture. Out: Triton, whose loading and launches that capture sees, until it is put back
(docs/adr/0013-triton.md). Triton is the user's own, and is not imported before `start`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from warplens import layout
from warplens.capture import triton_inductor
from warplens.capture.forked import in_children
from warplens.capture.modules import read_site_sets
from warplens.capture.python import PythonCapture, PythonOptions
from warplens.capture.python_manifest import Loaded
from warplens.capture.tell import one_line
from warplens.capture.triton_hooks import Hooks, unfit
from warplens.errors import KernelWarning
from warplens.instrument.staged import STAGE, own_shared_bytes


class TritonWarning(KernelWarning):
    """Something of a program's Triton kernels is not recorded; the program itself goes on."""


class TritonDoor:
    """Where Triton's kernels get their marks, and where their launches are seen: a `Door`."""

    package = "Triton"
    warning: type[KernelWarning] = TritonWarning

    def __init__(self, capture: PythonCapture) -> None:
        self._capture = capture
        self.hooks = Hooks(capture.options.key, self._remark)
        self._undo = self.hooks.undo
        self._settled: list[tuple[Any, type]] = []

    def start(self) -> None:
        """Kernels loaded from now on are marked. Where Triton is not there or cannot be recorded: one line."""
        try:
            triton: Any = importlib.import_module("triton")
        except ImportError as error:
            self._tell(f"Triton cannot be imported ({error}): none of its kernels is recorded")
            return
        why = unfit(triton)
        if why is not None:
            self._tell(why)
            return
        hooks, capture = self.hooks, self._capture
        hooks.begin(triton, each_config=capture.options.each_config)
        compiled = importlib.import_module("triton.compiler.compiler").CompiledKernel
        load, metadata = compiled._init_handles, compiled.launch_metadata
        plain = _unseen(compiled, metadata)

        @functools.wraps(load)
        def init_handles(kernel: Any) -> Any:
            if capture.left_to_parent():
                return compiled._init_handles(kernel)
            if kernel.module is None and not hooks.trying and capture.marks:
                try:
                    self._mark(kernel)
                except Exception as error:  # recording must not harm the program
                    self._tell(f"{getattr(kernel, 'name', 'a kernel')} is not marked: {one_line(error)}")
            return load(kernel)

        @functools.wraps(metadata)
        def launch_metadata(kernel: Any, grid: Any, stream: Any, *arguments: Any) -> Any:
            if capture.left_to_parent():
                return compiled.launch_metadata(kernel, grid, stream, *arguments)
            if capture.about_to_launch(self, kernel, tuple(grid), int(stream), wanted=not hooks.trying):
                self._settle(kernel, plain)
            return metadata(kernel, grid, stream, *arguments)

        self._undo += [in_children(self._see_all), self._see_all]
        hooks.patch(compiled, "_init_handles", init_handles)
        hooks.patch(compiled, "launch_metadata", launch_metadata)
        self._undo += triton_inductor.prepare()

    def put_back(self) -> None:
        """Leaves Triton as it was."""
        while self._undo:
            self._undo.pop()()

    def loaded(self, kernel: Any) -> Loaded | None:
        """A compiled kernel of Triton's with marks; None for one without. Loads it."""
        kernel._init_handles()
        text, cubin = kernel.asm.get("ptx") or "", kernel.asm.get("cubin")  # AMD's has neither
        sets = read_site_sets(cubin) if layout.DESCRIPTOR_SYMBOL in text else []
        if not sets:
            return None
        from warplens.capture.triton_builds import clean_resources, launch_of

        facts = kernel.metadata
        return Loaded(
            name=kernel.name,
            symbol=kernel.name,
            module=kernel.module,
            function=kernel.function,
            cubin=cubin,
            site_set=sets[0],
            level=self._capture.options.selection.level,
            launch=launch_of(text, facts, dynamic=False),
            shared_bytes=facts.shared,
            state_bytes=own_shared_bytes(text),
            policy="staged" if STAGE in text else "stream",
            cluster=tuple(getattr(facts, "cluster_dims", None) or (getattr(facts, "num_ctas", 1) or 1, 1, 1)),
            clean=clean_resources(text),
            target=str(getattr(facts, "arch", "")),
            left_out=tuple(getattr(kernel, "warplens_notes", [])),
        )

    def _tell(self, line: str) -> None:
        self._capture.tell(line, self.warning)

    def _remark(self, line: str) -> None:
        self._capture.remark(line, self.warning)

    def _settle(self, kernel: Any, plain: type) -> None:
        """Launches of a kernel are not seen any more, and cost what they cost without recording."""
        before = type(kernel)
        if before in plain.__bases__:
            kernel.__class__ = plain
            self._settled.append((kernel, before))

    def _see_all(self) -> None:
        """Launches of all kernels are seen again: in a child of fork, which begins anew with the first of them."""
        while self._settled:
            kernel, before = self._settled.pop()
            kernel.__class__ = before

    def _mark(self, kernel: Any) -> None:
        """Gives a kernel that is about to be loaded its marks."""
        self._undo += triton_inductor.join(self.hooks.set_aside)
        self.hooks.look()
        if layout.DESCRIPTOR_SYMBOL in str(kernel.asm.get("ptx")):
            return
        own, notes = self._capture.options, self._capture.notes
        if not self._capture.takes(str(getattr(kernel, "name", "a kernel"))):
            return
        from warplens.capture.triton_builds import Choice, assembler, mark  # what reads PTX takes its time to import

        before = len(notes)
        choice = Choice(own.kernels, own.selection, own.key, self._tell, notes, self._remark, own.staged)
        marked = mark(kernel, choice, lambda text: assembler(kernel)(text))
        if marked is not None:
            kernel.warplens_notes = notes[before:]  # for a later recording that meets it loaded
            kernel.asm["ptx"], kernel.asm["cubin"], kernel.kernel = marked.ptx, marked.cubin, marked.cubin


def _unseen(compiled: Any, metadata: Any) -> type:
    """Triton's class of compiled kernels, with its own launches. An instance's class and not its attribute: Inductor
    pickles attributes."""
    names = {name: getattr(compiled, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(compiled.__name__, (compiled,), {"launch_metadata": metadata, **names})


class TritonCapture(PythonCapture):
    """Records the Triton kernels alone that the program launches between `start` and `stop`; a context manager too."""

    def __init__(self, options: PythonOptions | None = None, **named: Any) -> None:
        super().__init__(options, **named)
        self.door = TritonDoor(self)

    def __enter__(self) -> TritonCapture:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Kernels that Triton loads from now on are marked."""
        self.join(lambda _: self.door)
