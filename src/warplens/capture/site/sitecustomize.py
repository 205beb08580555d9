"""For Python processes below `warplens record`: leaves a note of what ran, has kernels of Triton, CuPy and Numba
recorded where the program imports these, and gives way to the user's own of its name.

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
    """A finder that finds nothing, and waits for the program to import Triton, CuPy or Numba, to record their kernels.

    capture/imports.py has the same, and says why it is so.
    """

    def __init__(self) -> None:
        self._names = ["triton", "cupy", "numba.cuda"]

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in self._names or (path is None) is ("." in name) or self not in sys.meta_path:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def ran(self, name):  # type: ignore[no-untyped-def]
        """The package's code has run."""
        if name in self._names and self in sys.meta_path:
            self._names.remove(name)
            if not self._names:
                sys.meta_path[:] = [own for own in sys.meta_path if own is not self]
            _record(name)


class _Loader:
    """The module's own loader, which it has again when its code runs."""

    def __init__(self, own, watch) -> None:  # type: ignore[no-untyped-def]
        self._own, self._watch = own, watch

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(vars(self).get("_own"), name)  # a copy has none yet

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        module.__loader__ = module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._watch.ran(module.__name__)


def _record(name: str) -> None:
    """In this process, by the warplens that this file belongs to where the program's Python has none."""
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(here))
    sys.path.append(os.path.dirname(package))
    try:
        from warplens.kernel.process import begin

        begin(name)
    except Exception as error:
        if sys.stderr is not None:  # as where it was closed before the start
            what = f"kernels of {name} in this process ({os.getpid()})"
            sys.stderr.write(f"warplens: {what} are not recorded: {error}\n")
    finally:
        sys.path.remove(os.path.dirname(package))


try:
    _arm()
except Exception:  # nothing here may stop the user's program
    pass
_next()
