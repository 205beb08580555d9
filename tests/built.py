"""Fixtures of tests/programs and tests/compile: what many tests run, compiled by the first worker that asks: a program
with a driver that needs no GPU, and those of tests/emulation.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.emulation import build as build_emulation
from tests.host import Built, build


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """One worker at a time; True until one has left without an error."""
    folder.mkdir(exist_ok=True)
    with folder.joinpath("lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def built(of_all_workers: Path) -> Built:
    folder = of_all_workers / "host"
    with alone(folder) as first:
        return build(folder) if first else Built(folder)


@pytest.fixture(scope="session")
def programs(of_all_workers: Path) -> Callable[..., Path]:
    """Gives the program for what `build` of tests/emulation takes behind its folder."""

    @cache
    def program(policy: str, marks: int = 1, **more: Any) -> Path:
        options = "-".join([policy, str(marks), *(f"{name}{value}" for name, value in sorted(more.items()))])
        folder = of_all_workers / f"emulation-{options}"
        with alone(folder) as first:
            if first:
                folder.joinpath("program").symlink_to(build_emulation(policy, folder, marks, **more))
        return folder / "program"

    return program
