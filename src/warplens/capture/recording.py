"""What capture hands on: plain data, no tables.

In: nothing. Out: the `Recording` dataclass. Decoding and files are later stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Recording:
    """Facts and chunks of one recording.

    `manifest`: JSON-able facts as docs/reference/records.md lists them. `records`: member name -> uint32 array of
    shape (chunks, 32), as the GPU wrote them. `sources`: path -> text of the files that declare sites.
    """

    manifest: dict[str, Any]
    records: dict[str, NDArray[np.uint32]]
    sources: dict[str, str] = field(default_factory=dict)
