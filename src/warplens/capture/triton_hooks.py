"""What is changed of Triton while its kernels are recorded, and is put back afterwards.

In: the key of a recording. Out: Triton, whose caches keep kernels that are compiled meanwhile apart, whose autotuner
tries clean kernels, and whose compiler takes marks of the source, and Proton's scopes, into the kernel.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from warplens.capture import triton_inductor
from warplens.capture.patched import patched

_LEAST_VERSION: Final = (3, 6)
_KEY_FROM_HOOK: Final = (3, 7)
"""From here on Triton asks the hook of its stages for a key of its caches."""

_active: Hooks | None = None


def key_hook(own: str, previous: Any) -> Callable[..., Any]:
    """Triton's hook of a compilation's stages, from 3.7 on: gives a key to its caches, and changes no stage.

    Called with no arguments, which Triton does at every launch, a key and its hash; with five whoever was hooked before
    has the stages.
    """

    @functools.lru_cache(8)
    def joined(before: str) -> tuple[str, str]:
        key = f"{before}{own}"
        return key, hashlib.sha256(key.encode()).hexdigest()

    alone = joined("")

    def hook(*arguments: Any) -> Any:
        if previous is None:
            return None if arguments else alone
        return previous(*arguments) if arguments else joined(previous()[0])

    return hook


class Hooks:
    """The changes of one recording. `undo`: what puts each back. `trying`: above 0 while an autotuner tries kernels."""

    def __init__(self, key: str, tell: Callable[[str], None]) -> None:
        self._key, self._tell = key, tell
        self.undo: list[Callable[[], None]] = []
        self.trying = 0
        self._silent = 0
        self._emitted = 0
        self._of_options = False  # whether a compilation's own options say that it is of this recording
        self._aside: list[tuple[Any, str]] = []
        self._before: list[Any] = []

    def begin(self, triton: Any, *, each_config: bool) -> None:
        """Changes Triton, for a recording that is the only one."""
        global _active
        _active = self
        self.undo.append(_forget)
        self._keep_apart(triton)
        if not each_config:
            self._join_autotuner()
        self._join_compiler()
        self._join_proton()

    def patch(self, owner: Any, name: str, value: Any, *, aside: bool = False) -> None:
        """Sets an attribute until the end. `aside`: it goes back while an autotuner tries kernels."""
        before = getattr(owner, name)
        self.undo.append(patched(owner, name, value, self._tell))
        if aside:
            self._aside.append((owner, name))
            self._before.append(before)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Kernels compiled meanwhile are clean, and not recorded."""
        now = [getattr(owner, name) for owner, name in self._aside]
        self.trying += 1
        try:
            for (owner, name), value in zip(self._aside, self._before, strict=True):
                setattr(owner, name, value)
            yield
        finally:
            for (owner, name), value in zip(self._aside, now, strict=True):
                setattr(owner, name, value)
            self.trying -= 1

    def emit(self, verb: str, name: str, semantic: Any) -> None:
        """Leaves a mark in the kernel that is being compiled: a comment in its PTX that has its place in the order."""
        options = getattr(getattr(semantic, "builder", None), "options", None)
        ours = not self._of_options or getattr(options, "instrumentation_mode", self._key) == self._key
        if self.trying or self._silent or not ours:
            return
        self._emitted += 1
        core: Any = importlib.import_module("triton.language.core")
        from warplens.instrument.source import marker

        core.inline_asm_elementwise(marker(verb, name), "=r", [], core.int32, False, 1, _semantic=semantic)

    def _keep_apart(self, triton: Any) -> None:
        """While recording Triton's caches have a key of their own, and a place that can be written."""
        runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
        self._of_options = _version(triton) < _KEY_FROM_HOOK
        if self._of_options:
            self.patch(compilation, "instrumentation_mode", self._key, aside=True)
        else:
            hook = key_hook(self._key, runtime.add_stages_inspection_hook)
            self.patch(runtime, "add_stages_inspection_hook", hook, aside=True)
        cache = getattr(triton.knobs, "cache", None)
        place = getattr(cache, "dir", None)
        if place and not _writable(str(place)):
            folder = triton_inductor.temporary_folder()
            self.patch(cache, "dir", folder)
            self._tell(f"Triton's cache {place} cannot be written: recorded kernels are compiled into {folder}")

    def _join_autotuner(self) -> None:
        """What an autotuner tries runs clean, as it would without recording; then its choice is recorded."""
        try:
            tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
            bench = tuner._bench
        except (ImportError, AttributeError) as error:
            self._tell(f"what Triton's autotuner tries is recorded too, for it is not where it was expected: {error}")
            return

        @functools.wraps(bench)
        def tried(*arguments: Any, **named: Any) -> Any:
            with self.set_aside():
                return bench(*arguments, **named)

        self.patch(tuner, "_bench", tried)

    def _join_compiler(self) -> None:
        """A kernel that compiles without the marks of its source, and not with them, is compiled without.

        Triton 3.6 is so for sm_100: its pipeliner fails where an instruction of a loop that uses tcgen05 is not known.
        """
        try:
            function: Any = importlib.import_module("triton.runtime.jit").JITFunction
            compile_one = function._do_compile
        except (ImportError, AttributeError):
            return

        @functools.wraps(compile_one)
        def compiled(kernel: Any, *arguments: Any, **named: Any) -> Any:
            before = self._emitted
            try:
                return compile_one(kernel, *arguments, **named)
            except Exception as error:
                if self._emitted == before:
                    raise
                self._silent += 1
                try:
                    out = compile_one(kernel, *arguments, **named)
                finally:
                    self._silent -= 1
                name = getattr(kernel, "__name__", "a kernel")
                why = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
                self._tell(f"{name} does not compile with the marks of its source ({why}): they are left out")
                return out

        self.patch(function, "_do_compile", compiled)

    def _join_proton(self) -> None:
        """Proton's scopes become ranges of ours, unless Proton itself instruments."""
        try:
            language: Any = importlib.import_module("triton.profiler.language")
            flags: Any = importlib.import_module("triton.profiler.flags").flags
            record = language.record
        except Exception:  # an older one, or one that was built without Proton
            return

        @functools.wraps(record)
        def ranges(is_start: Any, scope_name: Any, semantic: Any) -> Any:
            if flags.instrumentation_on:
                return record(is_start, scope_name, semantic)
            name = str(getattr(scope_name, "value", scope_name))
            begins = bool(getattr(is_start, "value", is_start))
            return self.emit("range_push" if begins else "range_pop", name, semantic)

        self.patch(language, "record", ranges)


def _forget() -> None:
    global _active
    _active = None


def emit(verb: str, name: str, semantic: Any) -> None:
    """A mark in the kernel that is being compiled; nothing unless it is compiled to be recorded."""
    if _active is not None and semantic is not None:
        _active.emit(verb, name, semantic)


def unfit(triton: Any) -> str | None:
    """Why Triton kernels cannot be recorded here; None when they can. Does not ask for a GPU, for that would begin its
    use in a program that may yet fork, or choose another."""
    if _active is not None:
        return "another recording of Triton kernels is under way in this process: this one records none"
    if _version(triton) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        return (
            f"Triton {getattr(triton, '__version__', '?')} is not supported, {least} or newer is: nothing is recorded"
        )
    if triton.knobs.runtime.interpret:
        return "Triton interprets its kernels (TRITON_INTERPRET): nothing runs on the GPU, and nothing is recorded"
    mode = triton.knobs.compilation.instrumentation_mode
    if mode:
        return f"Triton's kernels are instrumented by something else already ({mode}): nothing is recorded"
    return None


def _version(triton: Any) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", str(getattr(triton, "__version__", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _writable(place: str) -> bool:
    """Whether files can be made in a folder, or in the nearest one above that is there."""
    while not os.path.isdir(place):  # noqa: PTH112
        above = os.path.dirname(place)  # noqa: PTH120
        if above == place:
            return False
        place = above
    try:
        with tempfile.TemporaryFile(dir=place):  # permissions say little to root, and of a mount that is read-only
            return True
    except OSError:
        return False
