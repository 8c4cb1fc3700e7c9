"""Combines partials of positions in a trie, whatever their form: numbers by the kernels, Python objects one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windowmill.windowing.columnar.stored_objects import Objects, StoredObjects
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.tries import Items, Stretches, Trie, combine_work, list_work, most_work

#: Lines of work that are listed before they are carried out; more if one total needs more.
_LISTED = 1 << 14


@dataclass(frozen=True)
class PartialColumns:
    """Partials of any form; one row per partial.

    Attributes
    ----------
    ints, floats, objects
        Rows of two arenas, and objects; shapes (n, number of columns).
    """

    ints: Ints
    floats: Floats
    objects: Objects

    def at(self, chosen: Bools | Ints | slice) -> PartialColumns:
        """The partials that ``chosen`` masks or lists."""
        return PartialColumns(self.ints[chosen], self.floats[chosen], self.objects[chosen])


def combine_totals(layout: Layout, stored: StoredObjects, partials: PartialColumns, items: Items, totals: Stretches) -> PartialColumns:
    """The partial of each total; an empty one has identities, and null for objects.

    Parameters
    ----------
    partials
        The partials of the items, one row per item; objects are decoded.
    """
    ints, floats = partials.ints, partials.floats
    n, largest = len(totals.key), int(np.diff(items.offsets).max(initial=0))
    trie, n_nodes = Trie.roomy(largest), 2 * largest + 1
    node_ints, node_floats = np.empty((n_nodes, ints.shape[1]), np.int64), np.empty((n_nodes, floats.shape[1]), np.float64)
    work, ends, roots = np.empty((max(_LISTED, most_work(items, totals)), 3), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    out_ints, out_floats = np.empty((n, ints.shape[1]), np.int64), np.empty((n, floats.shape[1]), np.float64)
    nodes, out = stored.none(n_nodes), stored.none(n)
    program: Any = layout.program()
    begun = 0
    while begun < n:
        ended = list_work(begun, items, totals, trie, work, ends, roots)
        given = begun, ended, work, ends, roots
        combine_work(program, *given, ints, floats, node_ints, node_floats, out_ints, out_floats)
        if len(stored):
            stored.combine_work(*given, partials.objects, nodes, out)
        begun = ended
    return PartialColumns(out_ints, out_floats, out)
