"""For Python processes below `warplens record`: leaves a note of what ran, and gives way to the user's own of its name.

In: the variable WARPLENS_RECORD. Out: PID-python.json in the run's folder, at exit, where a GPU package was loaded.
Imports nothing that Python has not loaded at its start, so that a start costs a millisecond at most, and at the end
nothing of the user's that has such a name (json.py); breaks nothing.
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


def _note(folder: bytes, pid: int) -> None:
    """What this process loaded that runs kernels."""
    loaded = [name for name in ("torch", "triton", "cupy", "numba.cuda", "jax", "cuda.bindings") if name in sys.modules]
    if not loaded or os.getpid() != pid:  # a child of fork inherits this handler, and is none of its own
        return
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    process = f'{{"pid": {pid}, "program": {_json(os.path.basename(program) if isinstance(program, str) else "")}}}'
    note = f'{{"process": {process}, "python": [{", ".join(map(_json, loaded))}]}}'
    with open(os.path.join(folder, b"%d-python.json" % pid), "wb") as stream:
        stream.write(note.encode("utf-8", "replace"))


def _json(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if c < " " or c in '"\\' else c for c in text) + '"'


def _at_exit(folder: bytes, pid: int) -> None:
    try:
        _note(folder, pid)
    except Exception:  # the run is over, the disk is full, the interpreter half gone: the program must not see it
        pass


def _unquoted(text: str) -> bytes:
    """What urlencode made of a path."""
    first, *rest = text.replace("+", " ").encode().split(b"%")
    return first + b"".join(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)


def _arm() -> None:
    for pair in os.environ.get("WARPLENS_RECORD", "").split("&"):
        key, _, value = pair.partition("=")
        if key == "folder":
            import atexit  # built in

            atexit.register(_at_exit, _unquoted(value), os.getpid())


try:
    _arm()
except Exception:  # nothing here may stop the user's program
    pass
_next()
