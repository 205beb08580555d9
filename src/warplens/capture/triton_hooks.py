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
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from warplens.capture import triton_inductor
from warplens.capture.patched import patched

_LEAST_VERSION: Final = (3, 6)
_KEY_FROM_HOOK: Final = (3, 7)
"""From here on Triton asks the hook of its stages for a key of its caches."""
_NEEDED: Final = (
    "triton:knobs.runtime.interpret",
    "triton:knobs.runtime.add_stages_inspection_hook",
    "triton:knobs.compilation.instrumentation_mode",
    "triton.compiler.compiler:CompiledKernel._init_handles",
    "triton.compiler.compiler:CompiledKernel.launch_metadata",
)
"""Names of Triton's that a recording cannot do without."""
_HOOK: Final = "add_stages_inspection_hook"
_MODE: Final = "instrumentation_mode"
_MARKS: Final = "warplens.triton.marks"
"""What a program whose source has marks has imported, unless they are Proton's scopes."""
_REPLACED: Final = (
    "marks in the source of Triton kernels are left out: the program set a hook of its own after Triton was imported "
    f"(knobs.runtime.{_HOOK}), and they would get into its cache"
)

_active: Hooks | None = None


def key_hook(own: str, previous: Any, live: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    """Triton's hook of a compilation's stages, from 3.7 on: gives a key to its caches, and changes no stage.

    Called with no arguments, which Triton does at every launch, a key and its hash; with five whoever was hooked before
    has the stages. Not `live`: the key is as without it, for a hook of the program's may still call it.
    """

    @functools.lru_cache(8)
    def joined(before: str) -> tuple[str, str]:
        key = f"{before}{own}"
        return key, hashlib.sha256(key.encode()).hexdigest()

    alone = joined("")

    def hook(*arguments: Any) -> Any:
        if previous is None:
            return None if arguments else alone if live() else ("", "")
        return previous(*arguments) if arguments or not live() else joined(previous()[0])

    return hook


class Hooks:
    """The changes of one recording, of which `remark` says a line each. `undo`: what puts each back. `trying`: above 0
    while an autotuner tries kernels."""

    def __init__(self, key: str, remark: Callable[[str], None]) -> None:
        self._key, self._remark = key, remark
        self.undo: list[Callable[[], None]] = []
        self.trying = 0
        self._silent = 0
        self._emitted = 0
        self._of_options = False  # whether a compilation's own options say that it is of this recording
        self._aside: list[tuple[Any, str, Any, Any]] = []  # owner, name, ours, the one before
        self._runtime: Any = None
        self._over = False

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
        self.undo.append(patched(owner, name, value, self.look if aside else self._remark))
        if aside:
            self._aside.append((owner, name, value, before))

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Kernels compiled meanwhile are clean, and not recorded. What the program has set itself stays."""
        own = [entry for entry in self._aside if getattr(entry[0], entry[1]) == entry[2]]
        self.trying += 1
        try:
            for owner, name, _, before in own:
                setattr(owner, name, before)
            yield
        finally:
            for owner, name, value, before in own:
                if getattr(owner, name) == before:
                    setattr(owner, name, value)
            self.trying -= 1

    def look(self, line: str = "") -> None:
        """Tells where the program has set a hook in place of ours, and its source may have marks. line: what is told
        of another attribute."""
        if self._runtime is None:
            if line:
                self._remark(line)
        elif not self.trying and _MARKS in sys.modules and not self._is_apart():
            self._remark(_REPLACED)

    def emit(self, verb: str, name: str, semantic: Any) -> None:
        """Leaves a mark in the kernel that is being compiled: a comment in its PTX that has its place in the order."""
        if self.trying or self._silent:
            return
        if self._of_options:
            options = getattr(getattr(semantic, "builder", None), "options", None)
            if getattr(options, _MODE, self._key) != self._key:
                return
        elif not self._is_apart():
            self._remark(_REPLACED)
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
            self.patch(compilation, _MODE, self._key, aside=True)
        else:
            self._runtime = runtime
            self.undo.append(self._end)
            hook = key_hook(self._key, getattr(runtime, _HOOK), lambda: not self.trying and not self._over)
            self.patch(runtime, _HOOK, hook, aside=True)
        cache = getattr(triton.knobs, "cache", None)
        place = getattr(cache, "dir", None)
        if place and not _writable(str(place)):
            folder = triton_inductor.temporary_folder()
            self.patch(cache, "dir", folder)
            self._remark(f"Triton's cache {place} cannot be written: recorded kernels are compiled into {folder}")

    def _is_apart(self) -> bool:
        """Whether what Triton compiles now has this recording's key in its caches: the program may have set a hook of
        its own in place of ours, which gives another, or one that asks ours too."""
        if self._runtime is None:
            return True
        hook = getattr(self._runtime, _HOOK, None)
        try:
            return hook is not None and self._key in hook()[0]
        except Exception:  # it is the program's, and what it cannot do is between Triton and it
            return False

    def _end(self) -> None:
        self._over = True

    def _join_autotuner(self) -> None:
        """What an autotuner tries runs clean, as it would without recording; then its choice is recorded."""
        try:
            tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
            bench = tuner._bench
        except (ImportError, AttributeError) as error:
            self._remark(f"what Triton's autotuner tries is recorded too, for it is not where it was expected: {error}")
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
                self._remark(f"{name} does not compile with the marks of its source ({why}): they are left out")
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
    shown = f"Triton {getattr(triton, '__version__', '?')}"
    if _version(triton) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        return f"{shown} is not supported, {least} or newer is: nothing is recorded"
    missing = next((name for name in _NEEDED if not _has(name)), None)
    if missing is not None:
        return f"{shown} is not supported, for it has no {missing.replace(':', '.')}: nothing is recorded"
    if triton.knobs.runtime.interpret:
        return "Triton interprets its kernels (TRITON_INTERPRET): nothing runs on the GPU, and nothing is recorded"
    mode = triton.knobs.compilation.instrumentation_mode
    if mode:
        return f"Triton's kernels are instrumented by something else already ({mode}): nothing is recorded"
    return None


def _has(name: str) -> bool:
    """Whether there is a name of Triton's, `module:attribute.attribute`."""
    module, _, attributes = name.partition(":")
    try:
        functools.reduce(getattr, attributes.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


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
