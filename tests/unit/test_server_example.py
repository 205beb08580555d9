"""`examples/server` with a stand-in for torch: what it does when a worker ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SERVER = Path(__file__).parents[2] / "examples" / "server" / "server.py"
STAND_IN = """
import sys, time, types
def layer(*_):
    raise RuntimeError("no GPU here")
def extension(**_):
    return types.SimpleNamespace(rmsnorm=layer)
def choose(number):
    if number == 0:
        time.sleep(60)
cuda = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, set_device=choose, synchronize=lambda: None)
linspace = zeros = lambda *_, **__: None
for name in ("torch.utils", "torch.utils.cpp_extension"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch.utils.cpp_extension"].load_inline = extension
"""


def test_a_worker_that_dies_ends_the_server_at_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(STAND_IN, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(SERVER)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "RuntimeError: no GPU here" in done.stderr
    assert done.stderr.splitlines()[-1] == "worker 1 ended with exit code 1 and without an answer"
    assert time.monotonic() - begin_s < 30  # and not the minute of the other one
