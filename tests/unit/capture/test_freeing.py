"""What is freed with an object, and what is not: at the interpreter's end nothing is, and nothing is said."""

from __future__ import annotations

import subprocess
import sys

KEPT = """
import builtins, types
from warplens.capture import driver, library
calls = []
driver.bindings = lambda: types.SimpleNamespace(**{
    name: lambda handle, name=name: print(name) for name in ("cuModuleUnload", "cuMemFree", "cuMemFreeHost")})
def make(kind, **values):
    out = object.__new__(kind)
    vars(out).update(values)
    return out
def some():
    return [make(library.Library, _handle=1), make(driver.DeviceMemory, address=2), make(driver.HostMemory, host=3)]
some()
builtins.kept = some()
"""


def test_objects_that_outlive_the_program_free_nothing_and_say_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["cuMemFree", "cuMemFreeHost", "cuModuleUnload"]
