"""Marks in the source of Triton and Gluon kernels.

In: a name, in a kernel that Triton compiles. Out: nothing, unless the kernel is recorded: then a mark in its PTX. Must
import nothing of Triton's: these functions are called by its compiler, which hands over what they need.
"""

from __future__ import annotations

from typing import Any

from warplens.capture.triton_hooks import emit


def _text(name: Any) -> str:
    """The name, out of Triton's constexpr."""
    text = getattr(name, "value", name)
    if not isinstance(text, str) or not text:
        raise TypeError(f"a mark's name is {text!r}: a text that is known when the kernel is compiled was expected")
    return text


def _leave(verb: str, name: Any, semantic: Any) -> None:
    emit(verb, _text(name), semantic)


def phase(name: str, _semantic: Any = None) -> None:
    """A phase begins here, and the one before it ends: for use in `@triton.jit` and Gluon kernels.

    `name`: a text that is known at compile time. When the kernel is not recorded this leaves nothing in it.
    """
    _leave("phase", name, _semantic)


def mark(name: str, _semantic: Any = None) -> None:
    """An instant, for use in `@triton.jit` and Gluon kernels; else as `phase`."""
    _leave("mark", name, _semantic)


class range:  # noqa: A001, N801  (used as a function is, and its place is warplens.triton.range)
    """A range, for use in `@triton.jit` and Gluon kernels: `with warplens.triton.range("load"):`; else as `phase`.

    Ranges nest, and waits do not end them.
    """

    def __init__(self, name: str, _semantic: Any = None) -> None:
        self._name, self._semantic = _text(name), _semantic

    def __enter__(self) -> None:
        _leave("range_push", self._name, self._semantic)

    def __exit__(self, *_: object) -> None:
        _leave("range_pop", self._name, self._semantic)


_own: Any
for _own in (phase, mark, range):
    _own.__triton_builtin__ = True  # as triton.language.core.builtin does
