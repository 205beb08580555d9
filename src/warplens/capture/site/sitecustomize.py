"""For Python processes below `warplens record`: leaves a note of what ran, has Triton's kernels recorded where the
program imports Triton, and gives way to the user's own of its name.

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
    loaded = [name for name in ("torch", "cupy", "numba.cuda", "jax", "cuda.bindings") if name in sys.modules]
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
            sys.meta_path.insert(0, _Watch())


class _Watch:
    """A finder that finds nothing, and waits for the program to import Triton: then its kernels are recorded."""

    def find_spec(self, name, path=None, _target=None):  # type: ignore[no-untyped-def]
        if name != "triton" or path is not None:
            return None
        sys.meta_path[:] = [own for own in sys.meta_path if own is not self]
        import importlib.util

        spec = importlib.util.find_spec(name)
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            return spec

        def and_record(module):  # type: ignore[no-untyped-def]
            execute(module)
            _record_triton()

        loader.exec_module = and_record
        return spec


def _record_triton() -> None:
    """In this process, by the warplens that this file belongs to where the program's Python has none."""
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(here))
    sys.path.append(os.path.dirname(package))
    try:
        from warplens.triton.process import begin

        begin()
    except Exception as error:
        sys.stderr.write(f"warplens: Triton kernels of this process ({os.getpid()}) are not recorded: {error}\n")
    finally:
        sys.path.remove(os.path.dirname(package))


try:
    _arm()
except Exception:  # nothing here may stop the user's program
    pass
_next()
