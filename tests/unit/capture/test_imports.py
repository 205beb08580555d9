"""What is done when the program imports a module."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from warplens.capture.imports import when_imported


def test_it_is_done_behind_the_import_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wl_awaited.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    seen: list[int] = []
    when_imported("wl_awaited", lambda: seen.append(sys.modules["wl_awaited"].value))
    assert seen == []
    importlib.import_module("wl_awaited")
    assert seen == [1]
    assert sys.meta_path == finders
    when_imported("wl_awaited", lambda: seen.append(2))
    assert seen == [1, 2]
    sys.modules.pop("wl_awaited")


def test_a_wish_that_is_forgotten_leaves_nothing() -> None:
    finders = list(sys.meta_path)
    when_imported("wl_never", lambda: None)()
    assert sys.meta_path == finders


@pytest.fixture
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was heard of the module `wl_awaited`, which is waited for."""
    (tmp_path / "wl_awaited.py").write_text("loader = __loader__\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[str] = []
    when_imported("wl_awaited", lambda: seen.append("first"))
    when_imported("wl_awaited", lambda: seen.append("second"))
    yield seen
    sys.modules.pop("wl_awaited", None)


def test_a_program_that_asks_whether_a_module_is_there_imports_it_later(awaited: list[str]) -> None:
    asked = importlib.util.find_spec("wl_awaited")
    assert asked is not None
    assert copy.copy(asked.loader) is not None
    assert awaited == []
    module = importlib.import_module("wl_awaited")
    assert awaited == ["first", "second"]
    assert type(module.loader) is type(module.__loader__) is SourceFileLoader
    importlib.reload(module)
    assert awaited == ["first", "second"]


def test_an_import_that_fails_is_waited_for_again(awaited: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [])
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("wl_awaited")
    importlib.import_module("wl_awaited")
    assert awaited == ["first", "second"]


def test_a_loader_that_takes_no_attributes_loads_as_ever(awaited: list[str]) -> None:
    class Loader:
        __slots__ = ()

        def create_module(self, spec: object) -> None:
            del spec

        def exec_module(self, module: ModuleType) -> None:
            module.__dict__["value"] = 3

    class Finder:
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return ModuleSpec(name, Loader()) if name == "wl_awaited" else None  # type: ignore[arg-type]

    sys.meta_path.insert(2, Finder())
    assert importlib.import_module("wl_awaited").value == 3
    assert awaited == ["first", "second"]


def test_a_module_of_a_package_is_waited_for_where_another_finder_asks_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("theirs/wl_package", "moved/wl_package"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "__init__.py").write_text("")
        (tmp_path / place / "part.py").write_text(f"place = {place!r}\nloader = __loader__\n")
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    class Redirector:
        """As numba-cuda has one, which looks for numba.cuda elsewhere."""

        def find_spec(self, name: str, path: list[str] | None, target: object = None) -> ModuleSpec | None:
            if name != "wl_package.part" or path is None or "moved" in path[0]:
                return None
            own = [place.replace("theirs", "moved") for place in path]
            specs = (finder.find_spec(name, own, target) for finder in sys.meta_path)  # type: ignore[arg-type]
            return next((spec for spec in specs if spec is not None), None)

    sys.meta_path.insert(0, Redirector())  # type: ignore[arg-type]
    seen: list[str] = []
    for what in ("first", "second"):
        when_imported("wl_package.part", lambda what=what: seen.append(what))  # type: ignore[misc]
    importlib.import_module("wl_package")
    assert seen == []
    module = importlib.import_module("wl_package.part")
    assert module.place == "moved/wl_package"
    assert type(module.loader) is type(module.__loader__) is SourceFileLoader
    assert sorted(seen) == ["first", "second"]
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Watch"]
    for name in ("wl_package.part", "wl_package"):
        sys.modules.pop(name)
