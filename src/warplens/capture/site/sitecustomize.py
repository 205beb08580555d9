"""For Python processes below `warplens record`: leaves a note of what ran, and gives way to the user's own of its name.

In: the variable WARPLENS_RECORD. Out: PID-python.json in the run's folder, at exit, where a GPU package was loaded.
Imports nothing that Python has not loaded at its start, so that a start costs a millisecond at most; breaks nothing.
"""

import os
import sys


def _next() -> None:
    """Run the sitecustomize that this one hides, if there is one, as Python would have run it."""
    here = os.path.dirname(os.path.abspath(__file__))  # pathlib is not loaded yet
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _note(folder: str, pid: int) -> None:
    """What this process loaded that runs kernels."""
    loaded = [name for name in ("torch", "triton", "cupy", "numba.cuda", "jax", "cuda.bindings") if name in sys.modules]
    if not loaded or os.getpid() != pid:  # a child of fork inherits this handler, and is none of its own
        return
    import json

    program = sys.argv[0] if sys.argv else ""
    note = {"process": {"pid": pid, "program": os.path.basename(program)}, "python": loaded}
    with open(os.path.join(folder, f"{pid}-python.json"), "w", encoding="utf-8") as stream:
        json.dump(note, stream)


def _at_exit(folder: str, pid: int) -> None:
    try:
        _note(folder, pid)
    except OSError:  # the run is over, or the disk is full: the program must not see it
        pass


def _arm() -> None:
    for pair in os.environ.get("WARPLENS_RECORD", "").split("&"):
        key, _, value = pair.partition("=")
        if key == "folder":
            import atexit
            from urllib.parse import unquote_plus

            atexit.register(_at_exit, unquote_plus(value), os.getpid())


try:
    _arm()
except Exception:  # nothing here may stop the user's program
    pass
_next()
