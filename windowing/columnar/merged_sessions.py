"""What a batch makes of the fragments of sessions: result rows, and fragments for the state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.output import gives_json, typed
from windowmill.windowing.columnar.session_fragments import Fragments
from windowmill.windowing.columnar.session_partials import FIRST, GONE, LAST, REVISION, SessionStage
from windowmill.windowing.columnar.stored_objects import Objects
from windowmill.windowing.kernels.columns import arenas, stored
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.fragments import combine_nodes
from windowmill.windowing.kernels.lower import lower


@dataclass(frozen=True)
class SessionTable:
    """Some sessions, or pieces of them; shapes (n_sessions,).

    Attributes
    ----------
    key, first, end
        Index of each one's key, first event time, and end.
    revision
        Number of the version that it is.
    part
        What holds it: below the number of fragments a fragment, from there on a node.
    """

    key: Ints
    first: Ints
    end: Ints
    revision: Ints
    part: Ints

    @classmethod
    def of(cls, rows: Ints, part_of: Ints) -> Self:
        """Sessions as the kernel has them, whose part p is ``part_of[p]``."""
        return cls(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], part_of[rows[:, 4]])

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, chosen: Bools) -> SessionTable:
        return SessionTable(self.key[chosen], self.first[chosen], self.end[chosen], self.revision[chosen], self.part[chosen])


@dataclass(frozen=True)
class MergedSessions:
    """The sessions that fragments make.

    Attributes
    ----------
    shown, kept
        The versions that the batch shows, and what it stores: with new rows, or other bounds than before. A session that is kept ends a
        gap after its last event.
    gone
        Mask of the kept ones that are closed: they supersede what is stored of them.
    node_offsets, members
        Node k combines the parts ``members[node_offsets[k]:node_offsets[k + 1]]``.
    refused
        Numbers of the rows that came too late.
    """

    stage: SessionStage
    fragments: Fragments
    shown: SessionTable
    kept: SessionTable
    gone: Bools
    node_offsets: Ints
    members: Ints
    refused: Ints

    def results(self, name: str) -> pa.Table:
        """The result rows of the window ``name``."""
        stage, shown = self.stage, self.shown
        if stage.ends is not None:
            begin, end = stage.ends
            shown = shown.chosen((shown.end > begin) & (shown.end <= end))
        n, layout = len(shown), stage.layout
        ints, floats = self._numbers
        columns = lower(layout, ints[shown.part], floats[shown.part], self.fragments.table)
        found = stage.objects.lowered(stage.objects.decode(self._objects[shown.part]))
        for held in layout.objects:
            for result, spec in held.results:
                columns[result] = typed(result, found[result], stage.results.field(result).type, as_json=gives_json(spec))
        columns |= self._keys(shown)
        columns |= {"window": pa.repeat(name, n), "window_start": pa.array(shown.first), "window_end": pa.array(shown.end)}
        columns |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.array(shown.revision), "batch": pa.repeat(stage.batch, n)}
        return pa.table([columns[field.name].cast(field.type) for field in stage.results], schema=stage.results)

    def state(self) -> pa.Table:
        """The rows that the batch stores."""
        stage, kept, limits = self.stage, self.kept, self.fragments.limits
        ints, floats = self._numbers
        columns = stored(stage.layout, ints[kept.part], floats[kept.part], self.fragments.table)
        columns |= stage.objects.write(self._objects[kept.part]) | self._keys(kept) | stage.own_columns(limits, len(kept))
        columns |= {FIRST: pa.array(kept.first), LAST: pa.array(kept.end - limits.gap), REVISION: pa.array(kept.revision)}
        columns |= {GONE: pa.array(self.gone)}
        return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)

    def _keys(self, sessions: SessionTable) -> dict[str, pa.Array]:
        fragments = self.fragments
        of_key = np.zeros(fragments.n_keys, np.int64)
        of_key[fragments.key] = np.arange(len(fragments))
        rows = pa.array(of_key[sessions.key])
        return {key: fragments.table.column(key).combine_chunks().take(rows) for key in self.stage.keys}

    @cached_property
    def _numbers(self) -> tuple[Ints, Floats]:
        """The numbers of each part's partial, as rows of two arenas."""
        layout = self.stage.layout
        found: tuple[Ints, Floats] = combine_nodes(layout.program(), self.node_offsets, self.members, *arenas(layout, self.fragments.table))
        return found

    @cached_property
    def _objects(self) -> Objects:
        """The objects of each part's partial."""
        return self.stage.objects.with_nodes(self.stage.objects.read(self.fragments.table), self.node_offsets, self.members)
