"""The rules of ARCHITECTURE.md that can be read from the sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import MARKED_FOLDERS

STAGES = ("audit", "instrument", "capture", "decode", "trace", "kernel", "triton", "analyze", "render", "demo", "cli")
"""In the order in which data goes; a stage imports only those before it."""

FOUNDATIONS = frozenset({"layout", "errors", "whole", "clock"})
"""Below all stages. They may import each other, and nothing else of the package."""

EXCEPTIONS = frozenset(
    {
        ("warplens.trace", "warplens.render.notebook.html"),  # Trace._repr_html_ shows itself
        ("warplens.capture.site.sitecustomize", "warplens.kernel.process.begin"),  # the begin of a process: no stage's
        ("warplens.capture.python_unfinished", "warplens.decode.last.last_events"),  # pure; whether a launch has ended
        ("warplens.capture.corrections", "warplens.decode.corrections"),  # pure; what marks cost is a fact of a capture
    }
)
"""(module, imported name) pairs that may break the order; each needs its reason beside it."""

HEAVY_IN_CAPTURE = frozenset({"polars", "matplotlib", "torch", "triton"})
"""54 MB, thread pools, unsafe with fork: not for the process that is recorded."""

MAX_LINES = 500
MAX_FUNCTION_LINES = 60


def parsed(path: Path) -> ast.Module:
    """Not kept: trees of all files are two million objects, which the collector would look through again and again."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> list[ast.AST]:
    """Those right within: expressions hold neither imports nor functions."""
    fields = ("body", "orelse", "handlers", "finalbody", "cases")
    return [statement for name in fields for statement in getattr(node, name, ())]


def imports_of(path: Path, module: str) -> set[str]:
    """Absolute names of all that the file imports, also inside of functions; those for type checkers alone not."""
    names: set[str] = set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    pending: list[ast.AST] = [parsed(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
        pending += statements(node)
    return names


def modules(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = list(path.relative_to(package.parent).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(module: str) -> str:
    """The stage or foundation of `warplens.room...`; '' for the package itself."""
    return [*module.split("."), ""][1]


def allowed(importer: str, imported: str) -> bool:
    """Whether the module `importer` may import `imported`, a name of the package."""
    here, there = room(importer), room(imported)
    if here == there or there in FOUNDATIONS or here in ("", "__main__") or imported == "warplens.__version__":
        return True
    if here not in STAGES or there not in STAGES:  # a public name of the package would go round the order
        return here == "cli" and there not in STAGES
    return STAGES.index(there) < STAGES.index(here)


def breaches(package: Path) -> set[tuple[str, str]]:
    return {
        (module, name)
        for module, path in modules(package).items()
        for name in imports_of(path, module)
        if name.startswith("warplens.") and not allowed(module, name)
    }


def test_stages_import_only_earlier_stages(package: Path) -> None:
    assert breaches(package) == EXCEPTIONS


def test_the_package_holds_its_stages_and_foundations_and_the_headers(package: Path) -> None:
    names = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert names - {"__pycache__", "__init__", "__main__"} == {*STAGES, *FOUNDATIONS, "include", "cmake"}


def test_a_later_stage_and_a_type_checking_import_are_told_apart(tmp_path: Path) -> None:
    lines = ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", "    import warplens.cli"]
    lines += ["def f():", "    from ..trace import open"]
    path = tmp_path / "fit.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    names = imports_of(path, "warplens.decode.fit")
    assert names == {"typing.TYPE_CHECKING", "warplens.trace.open"}
    assert not allowed("warplens.decode.fit", "warplens.trace.open")
    assert allowed("warplens.trace", "warplens.decode.fit")
    assert not allowed("warplens.layout", "warplens.decode")


def test_capture_imports_nothing_heavy(package: Path) -> None:
    for module, path in modules(package).items():
        if room(module) in ("audit", "instrument", "capture"):
            heavy = {name for name in imports_of(path, module) if name.split(".")[0] in HEAVY_IN_CAPTURE}
            assert not heavy, f"{module} imports {heavy}"


def test_only_clock_knows_a_rate(package: Path) -> None:
    """Nothing else divides by cycles_per_ns or multiplies with it."""
    rate = re.compile(r"[*/]\s*\w*cycles_per_ns|cycles_per_ns\w*\s*[*/]")
    for module, path in modules(package).items():
        if room(module) != "clock":
            assert not rate.findall(path.read_text(encoding="utf-8")), module


def test_every_module_says_what_it_is_for(package: Path) -> None:
    for module, path in modules(package).items():
        assert ast.get_docstring(parsed(path)), module


@pytest.mark.parametrize("suffix", [".cuh", ".h", ".hpp"])
def test_every_header_has_its_include_guard(package: Path, suffix: str) -> None:
    include = package / "include"
    headers = sorted(include.rglob(f"*{suffix}"))
    assert headers
    for header in headers:
        guard = re.sub(r"\W", "_", header.relative_to(include).as_posix()).upper()
        text = header.read_text(encoding="utf-8")
        assert f"#ifndef {guard}\n#define {guard}\n" in text, header.name
        assert text.rstrip().endswith(f"#endif  // {guard}"), header.name


def test_macros_of_the_headers_begin_with_the_name_of_the_project(package: Path) -> None:
    for header in (package / "include").rglob("*.*h*"):
        for macro in re.findall(r"^#\s*define\s+(\w+)", header.read_text(encoding="utf-8"), re.MULTILINE):
            assert macro.startswith("WARPLENS_"), f"{header.name}: {macro}"


def source_files(package: Path, checkout: Path) -> list[Path]:
    suffixes = {".py", ".cuh", ".cu", ".h", ".hpp", ".cpp", ".js"}
    rooms = [package, *(checkout / name for name in ("tests", "benchmarks", "examples", "docs"))]
    return [p for r in rooms for p in r.rglob("*") if p.suffix in suffixes and "_build" not in p.parts]


def test_no_file_is_longer_than_500_lines(package: Path, checkout: Path) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files(package, checkout)}
    assert {path.name: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_function_is_longer_than_60_lines(package: Path, checkout: Path) -> None:
    long = []
    for path in source_files(package, checkout):
        if path.suffix != ".py":
            continue
        pending: list[ast.AST] = [parsed(path)]
        while pending:
            node = pending.pop()
            pending += statements(node)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{path.name}:{node.lineno} {node.name}: {lines}")
    assert long == []


def test_a_module_in_the_folder_of_a_mark_has_it(checkout: Path) -> None:
    for folder in MARKED_FOLDERS:
        paths = list((checkout / "tests" / folder).glob("test_*.py"))
        assert paths
        for path in paths:
            assert f"\npytestmark = pytest.mark.{folder}\n" in path.read_text(encoding="utf-8"), path


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches those wrongly where the group has alternatives (its issue 106052)."""
    found = [
        f"{path}:{number}"
        for path in sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\)(?:[*+?]|\{\d+,?\d*\})\+(?!\s)", line) and "r" in line
    ]
    assert found == []
