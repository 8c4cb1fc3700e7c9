"""Windows from packed slices of all keys in one process, where no shuffle has sorted them by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.rows import key_codes
from windowmill.windowing.columnar.slice_windows import Combined, combined
from windowmill.windowing.columnar.slices import WindowStage


def combined_here(stage: WindowStage, parts: Sequence[pa.Table]) -> Iterator[Combined]:
    """As :func:`.combined`, of packed slices whose keys come in any order; ``parts`` are in order of their ``PLACE``."""
    if not parts:
        return
    packed = pa.concat_tables(parts)
    codes, _ = key_codes([packed.column(key) for key in stage.slices.keys], packed.num_rows)
    # A stable sort by key keeps each key's parts in order of their ranks.
    ordered = packed.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
    yield from combined(stage, ordered.to_batches())
