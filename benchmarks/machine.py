"""Where and with what a benchmark without a GPU was measured: the head of its JSON.

In: its command and the packages that matter. Out: date, command, processor, versions.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path


def described(command: str, *packages: str, **versions: str) -> dict[str, object]:
    """What stands at the top of a result; `versions` of what is no package is given."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "device": {"cpu": models[0] if models else platform.processor(), "cpus": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
            **versions,
            "system": platform.system() + " " + platform.release().split("-")[0],
        },
    }
