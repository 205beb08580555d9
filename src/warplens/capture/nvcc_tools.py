"""ptxas and fatbinary as nvcc calls them below `warplens nvcc`.

In: their arguments. Out: what they make, from PTX with marks; behind the fatbinary of a translation unit, as C++, the
names of its sites, so that host.hpp can tell them. What was made of which file is kept in the folder of links, since
ptxas and fatbinary are processes of their own. A failure of ours compiles the clean PTX.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from warplens.capture.chosen import Chosen, choose
from warplens.capture.nvcc import Wish, say
from warplens.errors import PtxError, WarplensError
from warplens.instrument import site_text
from warplens.instrument.head import target
from warplens.instrument.module import ALL_MARKED
from warplens.instrument.read import without_comments
from warplens.instrument.sites import TOO_MANY

_CHATTER: Final = re.compile(r"ptxas info\s*:|\s+\d+ bytes stack frame|\s*$")
_IMAGE: Final = re.compile(r"(--image3?=(?:kind=ptx|profile=compute_).*?file=)(.*)", re.DOTALL)
_FILE: Final = re.compile(r"--image3?=.*?file=([^,]*)", re.DOTALL)
_EMBEDDED: Final = re.compile(r"--embedded-fatbin=(.*)", re.DOTALL)


class Tools:
    """Both tools. `folder`: the folder of links; `real`: where NVIDIA's stand."""

    def __init__(self, folder: Path, real: Path, wish: Wish) -> None:
        self._made, self._real, self._wish = folder / "made", real, wish

    def ptxas(self, arguments: list[str]) -> int:
        """Assembles the PTX with marks; its exit code is that of the clean PTX where that fails."""
        found = _input_and_output(arguments)
        if found is None or any(own.startswith("-arch=compute_") for own in arguments):
            return self._as_it_is("ptxas", arguments)
        at, to = found
        source = Path(arguments[at])
        chosen = self._choose(source, arguments, at, to)
        if chosen is None or chosen.text is None:
            return self._as_it_is("ptxas", arguments)
        cubin, log = self._cubin(chosen.text)
        shutil.copyfile(cubin, arguments[to])
        wants_all = any(own in ("-v", "--verbose", "-warn-spills") or own.startswith("-v,") for own in arguments)
        kept = log if wants_all else "".join(line for line in log.splitlines(True) if not _CHATTER.match(line))
        sys.stderr.write(kept)
        self._keep(Path(arguments[to]), source, chosen)
        return 0

    def fatbinary(self, arguments: list[str]) -> int:
        """Takes PTX with marks where PTX goes in; behind what it embeds come the sites of all that is in it."""
        sets: dict[str, str] = {}
        changed = []
        for own in arguments:
            image = _IMAGE.match(own)
            if image and (marked := self._marked(Path(image[2]))):
                changed.append(image[1] + marked)
            else:
                changed.append(own)
            if file := _FILE.match(own):
                sets.update(self._sets(Path(file[1])))
        code = self._as_it_is("fatbinary", changed)
        embedded = next((found[1] for own in arguments if (found := _EMBEDDED.match(own))), None)
        if code == 0 and embedded and sets:
            with Path(embedded).open("a", encoding="ascii") as stream:
                stream.write(_registered(sets))
        return code

    def _as_it_is(self, tool: str, arguments: list[str]) -> int:
        return subprocess.run([str(self._real / tool), *arguments], check=False).returncode

    def _choose(self, source: Path, arguments: list[str], at: int, to: int) -> Chosen | None:
        """The module with marks; None where it stays as it is, which is told."""
        if not re.search(r"\.entry\b", without_comments(text := _text(source))):
            return None

        def assemble(text: str) -> str:
            base = self._base(text)
            base.with_suffix(".ptx").write_bytes(text.encode("utf-8", "surrogateescape"))
            command = list(arguments)
            command[at], command[to] = str(base.with_suffix(".ptx")), str(base.with_suffix(".cubin"))
            done = subprocess.run([str(self._real / "ptxas"), "-v", *command], capture_output=True, check=False)
            log = (done.stdout + done.stderr).decode("utf-8", "replace")
            if done.returncode:
                raise PtxError(f"ptxas refuses it: {log.strip()[:2000]}")
            base.with_suffix(".log").write_text(log, encoding="utf-8")
            return log

        name = source_name(text, source)
        try:
            wish = self._wish
            chosen = choose(text, wish.within_budget, assemble, kernels=wish.kernels or None, in_program=True)
        except WarplensError as error:
            if str(error) != ALL_MARKED:  # host.hpp's own kernels alone, or the source's marks
                self._say_once(f"{name}: compiled without marks: {error}")
            return None
        except Exception as error:  # a build must not fail by us
            self._say_once(f"{name}: compiled without marks: {type(error).__name__}: {error}")
            return None
        lowered = any(own.startswith("it gets", own.find(": ") + 2) for own in chosen.lines)
        wanted = self._wish.verbose or self._wish.budget or lowered
        for line in chosen.lines:
            if wanted or TOO_MANY in line:
                self._say_once(shortened(f"{name}: {line}"))
        for own in chosen.kernels if self._wish.verbose else []:
            self._say_once(shortened(f"{name}: {own.name}: {len(own.site_set['sites']) if own.site_set else 0} sites"))
        names = [site["name"] for own in chosen.kernels if own.site_set for site in own.site_set["sites"]]
        if self._wish.sites and not lowered and not any(re.search(self._wish.sites, own) for own in names):
            told = f"no site has a name that holds {self._wish.sites!r}: begin and end alone are marked"
            self._say_once(f"{name}: {told}")
        return chosen

    def _say_once(self, line: str) -> None:
        """Of a file that both tools come by the same is told once."""
        told = self._made / (hashlib.sha256(line.encode("utf-8", "surrogateescape")).hexdigest() + ".told")
        with contextlib.suppress(FileExistsError):
            told.touch(exist_ok=False)
            say(line)

    def _base(self, text: str) -> Path:
        """Where what is made of this PTX is kept, without its suffix."""
        return self._made / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _cubin(self, text: str) -> tuple[Path, str]:
        base = self._base(text)
        return base.with_suffix(".cubin"), base.with_suffix(".log").read_text(encoding="utf-8")

    def _keep(self, output: Path, source: Path, chosen: Chosen) -> None:
        """So that `fatbinary` finds the sites by the file it is given, and the marked text by the clean one's."""
        sets = {own.site_set["name"]: site_text(own.site_set) for own in chosen.kernels if own.site_set}
        facts = {"sets": sets, "marked": str(self._base(chosen.text or "").with_suffix(".ptx"))}
        for path in (output, source):
            self._record(path).write_text(json.dumps(facts), encoding="utf-8", errors="surrogateescape")

    def _record(self, path: Path) -> Path:
        return self._made / (hashlib.sha256(str(path.resolve()).encode("utf-8", "replace")).hexdigest() + ".json")

    def _sets(self, path: Path) -> dict[str, str]:
        record = self._record(path)
        return dict(json.loads(record.read_text(encoding="utf-8"))["sets"]) if record.exists() else {}

    def _marked(self, source: Path) -> str | None:
        """The file of the PTX with marks; made now where no ptxas run of this compilation has made it."""
        record = self._record(source)
        if not record.exists() and source.exists():
            gpu = target(without_comments(_text(source)))
            if gpu is not None:
                output = self._base(str(source)).with_suffix(".cubin")
                arguments = [f"-arch={gpu[0]}", "-m64", str(source), "-o", str(output)]
                chosen = self._choose(source, arguments, 2, 4)
                if chosen is not None and chosen.text is not None:
                    self._keep(output, source, chosen)
        return str(json.loads(record.read_text(encoding="utf-8"))["marked"]) if record.exists() else None


def _input_and_output(arguments: list[str]) -> tuple[int, int] | None:
    """Where among ptxas' arguments the PTX and the cubin stand; None for another use of it."""
    output = next((n + 1 for n, own in enumerate(arguments[:-1]) if own in ("-o", "--output-file")), None)
    inputs = [n for n, own in enumerate(arguments) if own.endswith(".ptx") and n != output]
    return None if output is None or len(inputs) != 1 else (inputs[0], output)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def shortened(line: str) -> str:
    """A line without the middle of mangled names that would fill a screen: one of CUTLASS's has 1,300 characters."""
    return re.sub(r"\b(\w{60})\w{40,}(\w{20})\b", r"\1...\2", line)


def source_name(text: str, path: Path) -> str:
    """What the user knows the module by: its source, else the file of PTX without nvcc's `tmpxft_..._`; and the GPU."""
    plain = without_comments(text)
    files = re.findall(r'\.file\s+\w+\s*"([^"]*)"', plain)
    own = next((file for file in files if not re.search(r"/(?:include|targets)/", file)), None)
    own = own or re.sub(r"^tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_", "", path.name)
    gpu = target(plain)
    return f"{own.rpartition('/')[2]} ({gpu[0] if gpu else 'no .target'})"


def _registered(sets: dict[str, str]) -> str:
    """C++ that puts site sets where WARPLENS_SITES puts its own (detail/registry.h)."""
    lines = [
        f"static const ::warplens::detail::SiteSet warplens_automatic_{number}({_literal(name)}, {_literal(text)});\n"
        for number, (name, text) in enumerate(sets.items())
    ]
    return "\n#ifdef __cplusplus\n" + "".join(lines) + "#endif\n"


def _literal(text: str) -> str:
    """A string of C++ that is ASCII whatever the text holds."""
    plain = frozenset(range(32, 127)) - frozenset(b'"\\?')
    data = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in data) + '"'
