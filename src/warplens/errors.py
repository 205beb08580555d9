"""Every error that warplens raises on purpose.

::

    WarplensError                  base; `exit_code` is what the command line ends with
    ├── UsageError                 2: arguments that cannot be meant
    ├── FileError                  3: a file that cannot be used
    │   ├── FormatError               not a .wlens file, damaged or truncated
    │   ├── PtxError                  PTX that cannot be read, or that holds nothing to mark
    │   └── VersionError              written by a newer major version
    ├── RecordingError             5: nothing could be recorded
    │   ├── CompileError              the compiler refused the source
    │   ├── DeviceError               no GPU, no driver, or a CUDA call failed
    │   │   └── StoppedError             the kernel hung, crashed or was interrupted; holds what it recorded
    │   ├── MissingDependencyError    a package or tool to install; names the command
    │   └── SitesError                a kernel without sites, or a site table that cannot be read
    └── DisturbanceError           5: the traced build would not run as the clean one does

and KernelWarning, a UserWarning: kernels of a program that are not recorded, while the program goes on.

A message says what happened, what was expected and found, where, and what to do next.
Doubt about single events is never an exception: it becomes a row of `Trace.problems`.
"""

from __future__ import annotations

from typing import Any, Final

INSTALL: Final = "install it from the checkout: pip install '.[cu13]' (or '.[cu12]' for a CUDA 12 driver)"
"""What to do where a package that recording needs is missing."""


class WarplensError(Exception):
    """Base of all errors of warplens.

    `exit_code` is the exit code of the command line for this class (0 fine, 1 a check failed, 2 usage,
    3 file unusable, 4 recorded with losses or problems, 5 GPU or compiler missing).
    """

    exit_code = 5


class UsageError(WarplensError):
    """Arguments that cannot be meant: an unknown launch, a block outside of the grid."""

    exit_code = 2


class FileError(WarplensError):
    """A file that cannot be read or written."""

    exit_code = 3


class FormatError(FileError):
    """Not a `.wlens` file, or a damaged or truncated one."""


class PtxError(FileError):
    """PTX that cannot be read, or that holds nothing to mark."""


class VersionError(FileError):
    """A file of a newer major version than this warplens reads."""


class RecordingError(WarplensError):
    """Nothing could be recorded."""


class CompileError(RecordingError):
    """The compiler refused the source; the message holds its log."""


class DeviceError(RecordingError):
    """No GPU, no driver, or a CUDA call failed."""


class StoppedError(DeviceError):
    """The kernel did not end: it hung until `timeout_s`, crashed, or was interrupted while it ran.

    `recording`: what had been recorded (`Recording`); `trace`: the same as a `Trace`, where `Kernel.record` raised it;
    `where`: where each resident warp last was, lines of text. Saving the trace needs no GPU: `error.trace.save(path)`.
    """

    def __init__(self, message: str, recording: Any = None) -> None:
        super().__init__(message)
        self.recording = recording
        self.trace: Any = None
        self.where: tuple[str, ...] = ()

    def __str__(self) -> str:
        held = "recording" if self.trace is None else "trace"
        keep = 'error.trace.save("stopped.wlens") keeps' if self.trace is not None else f"error.{held} holds"
        return "\n".join(
            [
                super().__str__(),
                *self.where,
                f"{keep} what was recorded until then.",
                "Then end this process: CUDA cannot be relied on in it any more.",
            ]
        )


class MissingDependencyError(RecordingError):
    """A package or tool is missing; the message names the command that installs it."""


class SitesError(RecordingError):
    """The module holds no sites, or a site table that cannot be read."""


class DisturbanceError(WarplensError):
    """The traced build would not run as the clean one does (fewer resident blocks, say)."""


class KernelWarning(UserWarning):
    """Something of a program's kernels is not recorded; the program itself goes on."""
