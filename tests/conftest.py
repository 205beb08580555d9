"""For all tests: Ctrl-C arrives, also where they were started in the background of a shell, which has it ignored; and
they run on all cores, but for those of a GPU and of a browser, whose times and ports are one's own.
"""

from __future__ import annotations

import os
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` of pyproject.toml means."""
    alone = config.option.markexpr in ("gpu", "browser") or config.option.collectonly
    return 0 if alone else os.cpu_count() or 1
