"""Documents say what the code does: names, commands, columns, links, generated parts."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import click

import warplens
from warplens import errors, layout
from warplens.cli import exits, main
from warplens.decode.flags import SpanFlag
from warplens.trace.tables import TABLES

OUTSIDE = frozenset(
    {".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "_build", "build", "dist"}
)


def texts(checkout: Path, *suffixes: str) -> dict[Path, str]:
    """Text files of the checkout, by path relative to it."""
    return {
        path.relative_to(checkout): path.read_text(encoding="utf-8")
        for path in sorted(checkout.rglob("*"))
        if path.suffix in suffixes and path.is_file() and OUTSIDE.isdisjoint(path.relative_to(checkout).parts)
    }


def section(text: str, title: str) -> str:
    """The part of a Markdown page under the heading `title`, up to the next heading of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {title!r}"
    return found[2]


def test_public_names_are_those_of_the_python_page(checkout: Path) -> None:
    page = (checkout / "docs/reference/python.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\.\. auto(?:function|class|exception):: warplens\.(\w+)$", page, re.MULTILINE))
    assert documented == set(warplens.__all__) - {"__version__"}


def test_every_public_name_can_be_had_and_has_a_docstring() -> None:
    for name in set(warplens.__all__) - {"__version__"}:
        assert getattr(warplens, name).__doc__, name


def test_commands_and_options_are_those_of_the_command_line_page(checkout: Path) -> None:
    page = (checkout / "docs/reference/cli.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^## warplens (\w+)$", page, re.MULTILINE))
    assert isinstance(main, click.Group)
    context = click.Context(main)
    assert documented == set(main.list_commands(context))
    for name in documented:
        command = main.get_command(context, name)
        assert command is not None
        options = {o for p in command.params if isinstance(p, click.Option) for o in p.opts if o.startswith("--")}
        shown = set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", section(page, f"warplens {name}"), re.MULTILINE))
        assert shown == options - {"--help"}, name


def test_generated_files_are_current(checkout: Path, package: Path) -> None:
    for path, text in layout.generated_files(checkout).items():
        relative = path.relative_to(checkout)
        actual = package.parent / relative.relative_to("src") if relative.parts[0] == "src" else path
        assert actual.read_text(encoding="utf-8") == text, f"{relative}: run python -m warplens.layout"


def test_words_of_chunk_and_block_record_are_those_of_the_records_page(checkout: Path) -> None:
    page = (checkout / "docs/reference/records.md").read_text(encoding="utf-8")
    chunk = {int(n): name for n, name in re.findall(r"^\| (\d+)[\d, to]* \| (\w+) \|", section(page, "Chunk"), re.M)}
    assert chunk == {
        layout.WORD_BLOCK: "block",
        layout.WORD_META: "meta",
        layout.WORD_GRID: "grid",
        layout.WORD_SEQUENCE: "sequence",
        layout.WORD_BASE_LOW: "base_cycles",
        layout.HEADER_WORDS: "records",
    }
    block = re.findall(r"^\| (\d+)[\d, ]* \| `(BLOCK_\w+)`", section(page, "Block record"), re.M)
    assert len(block) >= 6
    for word, constant in block:
        assert int(word) == layout.BLOCK_RECORD_WORD + getattr(layout, constant), constant


def test_decisions_cited_in_the_code_exist(checkout: Path, package: Path) -> None:
    cited = set()
    for path in [*package.rglob("*.py"), *package.rglob("*.cuh"), *package.rglob("*.h"), *package.rglob("*.cu")]:
        cited |= set(re.findall(r"docs/adr/[\w.-]+\.md", path.read_text(encoding="utf-8")))
    assert cited
    assert {name for name in cited if not (checkout / name).is_file()} == set()


def test_every_decision_has_its_four_parts(checkout: Path) -> None:
    pages = sorted((checkout / "docs/adr").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for page in pages:
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Choice", "Cost", "Evidence"], page.name


def test_relative_links_lead_somewhere(checkout: Path) -> None:
    broken = []
    for page, text in texts(checkout, ".md").items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in target and not (checkout / page.parent / target).exists():
                broken.append(f"{page}: {target}")
    assert broken == []


def test_nothing_names_a_path_of_somebodys_machine(checkout: Path) -> None:
    place = re.compile(r"(?<![\w.~-])/(?:work|root|home|farm|Users)/\w")
    files = texts(checkout, ".py", ".md", ".cuh", ".cu", ".h", ".toml", ".cff", ".json", ".txt", ".sh", "")
    found = {str(path): place.findall(text) for path, text in files.items() if place.search(text)}
    assert found == {}


def test_tables_of_columns_are_current(checkout: Path) -> None:
    script = runpy.run_path(str(checkout / "docs/tables.py"))
    for page in script["pages"]():
        text = page.read_text(encoding="utf-8")
        assert script["rewritten"](text) == text, f"{page.name}: run python docs/tables.py"


def test_every_table_stands_in_the_reference(checkout: Path) -> None:
    script = runpy.run_path(str(checkout / "docs/tables.py"))
    shown = {name for page in script["pages"]() for name in script["PLACES"].findall(page.read_text(encoding="utf-8"))}
    assert shown == {*TABLES, "clocks", "stored_spans"}


def test_span_flags_are_those_of_the_tables_page(checkout: Path) -> None:
    page = (checkout / "docs/reference/tables.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", section(page, "spans"), re.MULTILINE)
    assert shown == [(flag.name, str(flag.value)) for flag in SpanFlag]


def test_kinds_of_problems_are_those_of_the_tables_page(checkout: Path, package: Path) -> None:
    sources = [*sorted((package / "clock").glob("*.py")), *sorted((package / "decode").glob("*.py"))]
    sources.append(package / "trace/merge.py")
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    page = section((checkout / "docs/reference/tables.md").read_text(encoding="utf-8"), "problems")
    documented = set(re.findall(r"^\| `([a-z_]+)` \| [^|]+ \|$", page, re.MULTILINE))
    made = set(re.findall(r'(?:Problem|places)\(\s*"(\w+)"|"(\w+_\w+)",\s*"(?:loss|error|note)"', code))
    assert {first or second for first, second in made} <= documented
    assert {kind for kind in documented if f'"{kind}"' not in code} == set()


def test_exit_codes_of_errors_are_those_of_the_command_line_page(checkout: Path) -> None:
    page = (checkout / "docs/reference/cli.md").read_text(encoding="utf-8")
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", section(page, "Exit codes"), re.MULTILINE)}
    codes = {v.exit_code for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.WarplensError)}
    codes |= {exits.FINE, exits.USAGE, exits.LOSSES, exits.MISSING, exits.INTERNAL, exits.INTERRUPTED}
    assert shown == codes


def test_error_classes_are_those_of_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"\b([A-Z]\w+Error)\b", errors.__doc__))
    classes = {n: v for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    defined = {n for n, v in classes.items() if not issubclass(v, Warning)}
    assert drawn == defined
