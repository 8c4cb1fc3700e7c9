"""What kernels need of an aggregate; apart, since numpy and pyarrow need not be there to read a spec."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windowmill.plugins import Partials, Recipe, numeric


def variation(result, partials: Partials) -> pa.Array:
    n, (anchor, offset, m2) = partials.ints_of(result.atoms[0])[:, 0], partials.floats_of(result.atoms[0]).T
    mean = anchor + offset
    return pa.array(np.sqrt(m2 / np.maximum(n - 1, 1)) / mean, mask=(n < 2) | (mean == 0.0))


VARIATION = Recipe(numeric("moments"), variation)
