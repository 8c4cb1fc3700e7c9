"""Merges new rows and stored partials of sessions: sessions that the watermark passes become results, open ones the new state.

New rows at most a gap apart form a fragment, and the kernel merges fragments like events that last from their first row to their last.

A row whose time lay in windows that had been shown when it arrived (a *suspect*) is a fragment of its own, which the kernel applies in
order of arrival: it joins only a session that was still open then, and those that arrived together bring that session's next version where
sessions are revised. All other rows join no session that was shown before they arrived, so in which order they arrive makes no difference.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import verify_once
from windowmill.windowing.columnar.cut_sessions import cut
from windowmill.windowing.columnar.merged_sessions import MergedSessions, SessionTable
from windowmill.windowing.columnar.session_fragments import Fragments, SessionInput
from windowmill.windowing.columnar.session_partials import SessionStage
from windowmill.windowing.kernels import fragments as kernel
from windowmill.windowing.watermark import AFTER, moments_of


def advance(stage: SessionStage, rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new ``rows`` to the ``stored`` fragments of some keys; O(n log n) in both, plus suspects × open sessions of their keys.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.rows``.
    stored
        All fragments of these keys that are not closed, with the columns of ``stage.schema``.
    """
    verify_once(stage.check, stored)
    arrived = SessionInput.of(stage, rows, stored)
    results, kept, refused = [], [], []
    for limits in dict.fromkeys(limits for _, limits in stage.limits):
        if limits.longest < AFTER:
            # No two instants are known to lie in one piece.
            merged = cut(stage, Fragments.of(stage, arrived, limits, apart=0))
        else:
            merged = _joined(stage, Fragments.of(stage, arrived, limits, apart=limits.gap))
        results += [merged.results(name) for name, its_limits in stage.limits if its_limits == limits]
        kept.append(merged.state())
        refused.append(merged.refused)
    return Advanced.of(results, kept if stage.keep else None, refused, arrived.numbers, arrived.late)


def _joined(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The sessions of ``fragments``, which no greatest size cuts."""
    gap, n = fragments.limits.gap, len(fragments)
    # Stored fragments are open: those that end before the instant through which windows were shown have been shown.
    shown = ~fragments.new & (fragments.last + gap < stage.closed_before + stage.ahead)
    moments = moments_of(fragments.number, by_row=stage.by_row)
    # Of suspects that arrived together the latest comes first, so that one that joins others to an open session is there before them.
    order = np.lexsort((-fragments.first, moments, fragments.key))
    by_arrival = kernel.FragmentColumns(
        fragments.offsets(order),
        fragments.first[order],
        fragments.last[order],
        fragments.new[order],
        fragments.suspect[order],
        moments[order],
        fragments.mark[order],
        fragments.revision[order],
        shown[order],
    )
    versions, kept, node_offsets, members, accepted = kernel.sessions_of(gap, stage.ahead, stage.closed, by_arrival)
    # Parts as the kernel has them, in terms of the table.
    part = np.append(order, np.arange(n, n + len(node_offsets)))
    gone, refused = np.zeros(len(kept), np.bool_), fragments.number[order][~accepted]
    return MergedSessions(
        stage, fragments, SessionTable.of(versions, part), SessionTable.of(kept, part), gone, node_offsets, part[members], refused
    )
