"""What a recording left that was cut off: its launches, one by one, made into a manifest.

In: the manifest as it was begun, and members `launches/NNNNNN.json`. Out: a manifest with those launches whose records
are whole. Trusts nothing: what cannot be read, or is of a kernel that no entry describes, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

LAUNCH: Final = re.compile(r"launches/\d{1,9}\.json")
MAX_LAUNCH_BYTES: Final = 1 << 20
MAX_KERNELS: Final = 1 << 16


def assemble(manifest: dict[str, Any], names: Collection[str], read: Callable[[str, int], bytes]) -> dict[str, Any]:
    """`manifest` with the launches (and the kernels they name) that stand in members of their own."""
    kernels, launches = list(manifest["kernels"]), list(manifest["launches"])
    for name in sorted(name for name in names if LAUNCH.fullmatch(name)):
        try:
            found = json.loads(read(name, MAX_LAUNCH_BYTES))
            launch, kernel = dict(found["launch"]), dict(found["kernel"])
            index, records = int(launch["kernel"]), launch["records"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if not 0 <= index < MAX_KERNELS or (records is not None and records not in names):
            continue
        kernels += [None] * (index + 1 - len(kernels))
        kernels[index] = kernel
        launches.append(launch)
    known = [index for index, kernel in enumerate(kernels) if kernel is not None]
    renumbered = {index: new for new, index in enumerate(known)}
    launches = [{**entry, "kernel": renumbered[entry["kernel"]]} for entry in launches]
    return {**manifest, "kernels": [kernels[index] for index in known], "launches": launches, "complete": False}
