"""For all tests: Ctrl-C arrives, also where they were started in the background of a shell, which has it ignored; they
run on all cores, but for those of a GPU and of a browser, whose times and ports are one's own; a folder whose mark `-m`
leaves out is not imported; and Python's bytecode is kept, where not beside the sources in pytest's cache.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

MARKED_FOLDERS = ("browser", "compile", "gpu")
"""Every module in them has the mark of this name (tests/repository/test_architecture.py)."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Without bytecode (PYTHONDONTWRITEBYTECODE) each worker rewrites the assertions of all tests, and each program
    that a test starts compiles what it imports."""
    cache = getattr(config, "cache", None)
    if sys.dont_write_bytecode and cache is not None:
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(cache.mkdir("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` of pyproject.toml means: one worker more than cores, as a fifth of the tests' time is waiting."""
    alone = config.option.markexpr in ("gpu", "browser") or config.option.collectonly
    return 0 if alone else (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """What collected tests and imported modules hold stays to the end: the collector need not look through it again,
    nor after every 700 new objects at those of a test, which took a tenth of the time of tests that draw."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import these tests and only then to leave them out takes each worker a third of its start."""
    name = collection_path.name
    marked = name in MARKED_FOLDERS and collection_path.parent == Path(__file__).parent
    return True if marked and f"not {name}" in config.option.markexpr.split(" and ") else None
