"""Names for the arrays that the stages of the decoder hand on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
