"""Where launches of `warplens.Kernel` go as they are drained.

In: nothing. Out: the protocol that kernel/recording.py fulfils: capture knows no files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from warplens.capture.arena import Drained


class Keep(Protocol):
    """Where launches go as they are drained."""

    def add(
        self, manifest: Callable[[], dict[str, Any]], launch: dict[str, Any], kernel: dict[str, Any], drained: Drained
    ) -> None:
        """One launch. `manifest`: tells what is known so far, for the first one."""

    def add_stopped(
        self, manifest: dict[str, Any], launch: dict[str, Any], kernel: dict[str, Any], drained: Drained
    ) -> None:
        """The launch that has not ended, as it stands, until another one is added. `manifest` says why, and has the
        texts of `sources` by path."""
