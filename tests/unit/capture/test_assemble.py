"""Assemblers keep what they made, and not what they said of it."""

from __future__ import annotations

from typing import Any

import pytest

from warplens.capture import assemble as assembling
from warplens.capture.assemble import assemble
from warplens.capture.chosen import Built
from warplens.errors import PtxError

PTX = ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry one() { ret; }\n"
LOG = """ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers
"""
OF_CACHE = ["", "info    : Function properties for 'one':\ninfo    : used 24 registers, 0 stack, 0 bytes lmem\n"]
"""nvJitLink 13.0 and a driver of 580 say so of a module that they have assembled before."""


class Cached:
    """An assembler with a cache."""

    def __init__(self, of_cache: str) -> None:
        self._of_cache = of_cache
        self.texts: list[str] = []

    def __call__(self, text: str, *_: Any) -> tuple[bytes, str]:
        known = text in self.texts
        self.texts.append(text)
        return b"machine code", self._of_cache if known else LOG


@pytest.mark.parametrize("of_cache", OF_CACHE)
def test_a_module_that_was_assembled_before_is_told_of_as_at_first(
    of_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program recorded twice neither registers nor spills nor complaints were known the second time."""
    cached = Cached(of_cache)

    def missing(*_: Any) -> Any:
        raise PtxError("not there")

    monkeypatch.setattr(assembling, "_by_nvjitlink", missing)
    monkeypatch.setattr(assembling, "_by_ptxas", missing)
    monkeypatch.setattr(assembling, "_by_driver", cached)
    for _ in range(3):
        cubin, log = assemble(PTX)
        assert cubin == b"machine code"
        assert Built.of(log).registers == {"one": 24}
    assert len(cached.texts) == 5  # each time it was asked first whether it is there
    assert all(text.removeprefix(text.partition("*/")[0] + "*/") == PTX for text in cached.texts if text != PTX)
    assert all(text.count("\n") == PTX.count("\n") for text in cached.texts)  # lines keep their numbers in messages
