"""The result of applying a batch's new rows to the restored state of some keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.checksums import with_checksums
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels.combine import Ints


@dataclass(frozen=True)
class Advanced:
    """What a batch makes of some keys.

    Attributes
    ----------
    results
        Result rows, in tables of one window each; may be computed as they are taken.
    state
        The rows that the batch appends to the state, with checksums; null if it keeps none.
    refused
        Numbers of the rows that came too late for every window; int64, shape (n_refused,).
    counts
        The other rows, and the late ones among them; those that missed windows, refused ones included.
    """

    results: Iterable[pa.Table]
    state: pa.Table | None
    refused: Ints
    counts: Counts

    @classmethod
    def of(
        cls,
        results: Sequence[pa.Table],
        state: Sequence[pa.Table] | None,
        refused: Mapping[tuple[str, ...], Ints],
        numbers: Ints,
        late: pa.Array,
    ) -> Self:
        """The result for new rows of these ``numbers``, of which the mask ``late`` marks those behind the watermark; null means no.

        Parameters
        ----------
        results, state
            Parts of the result rows and of the state; no state if none is kept.
        refused
            By the names of windows for which the same rows are late, the numbers of the rows that they refused. A row is too late if all
            did.
        """
        # Mostly some window refuses none, and then there is nothing to compare.
        fewest, *others = sorted((numbers, *refused.values()), key=len)
        common = np.unique(fewest)
        for each in others if len(common) else ():
            common = common[np.isin(common, each)]
        taken = ~np.isin(numbers, common)
        behind = pc.sum(pc.and_(late.fill_null(False), pa.array(taken))).as_py() or 0
        kept = None if state is None else with_checksums(pa.concat_tables(state))
        missed = {name: len(each) for names, each in refused.items() if len(each) for name in names}
        counts = Counts(rows_applied=int(taken.sum()), rows_late=behind, late_missed=missed)
        return cls([table for table in results if len(table)], kept, common, counts)
