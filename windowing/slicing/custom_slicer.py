"""Windows that a user's function defines, as in Cutty: it takes each row once, in order, and returns the windows that begin and end there.

``function(state, columns) -> (state, number of windows that begin before the row, numbers of those that end after it)``; ``state`` starts
as ``None``, and the windows of a key are numbered 0, 1, … as they begin.

References
----------
Carbone, Traub, Katsifodimos, Haridi and Markl (2016), Cutty: aggregate sharing for user-defined windows, doi:10.1145/2983323.2983807.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.errors import SpecError, StateError
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.policies import judge_tuples
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest, runs
from windowmill.windowing.watermark import AFTER, Clock, commits_of

WindowFunction = Callable[[Any, Mapping[str, Any]], tuple[Any, int, Iterable[int]]]
_NONE = np.empty(0, np.int64)
#: Prefix of columns that live rows add; a user's function does not see them.
OWN_PREFIX = "_ "


@dataclass
class FunctionProgress:
    """Progress of a user's function on one key."""

    state: Any = None  #: The function's own state.
    #: Number of rows it has taken, and of windows that have begun.
    rows: int = 0
    begun: int = 0
    #: For each chain, the first row of its latest window and the end of the front of its two stacks (−1 for none).
    chains: list[tuple[int, int]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)  #: First row of each open window, by number.

    def feed(self, function: WindowFunction, columns: Mapping[str, Any], time: int) -> list[tuple[int, int]]:
        """Call ``function`` with one row; returns number and first row of each window that ends after it."""
        self.state, begins, ends = function(self.state, columns)
        for number in range(self.begun, self.begun + begins):
            self.open[number] = self.rows
        self.begun += begins
        self.rows += 1
        ended = []
        for number in ends:
            if number not in self.open:
                raise SpecError(f"function: window {number} ends at {time}, but is not open; windows are numbered from 0 as they begin")
            ended.append((number, self.open.pop(number)))
        return ended

    def chain_of(self, first: int, least: int) -> int:
        """Assign a window that ends now and begins at row ``first`` to a chain, at least the ``least``-th one; O(number of chains).

        Windows of a chain begin in the order in which they end, so they share two stacks. The function chooses the chain whose latest
        window begins nearest before this one. So there are as many chains as windows nest in each other.

        Examples
        --------
        >>> progress = FunctionProgress()
        >>> [progress.chain_of(first, 0) for first in (0, 2, 1, 3)]
        [0, 0, 1, 0]
        """
        fitting = [(low, -chain) for chain, (low, _) in enumerate(self.chains) if chain >= least and low <= first]
        chain = -max(fitting)[1] if fitting else len(self.chains)
        if chain == len(self.chains):
            self.chains.append((first, -1))
        self.chains[chain] = first, self.chains[chain][1]
        return chain

    def dump(self) -> str:
        return json.dumps([_plain(self.state), self.rows, self.begun, self.chains, list(self.open.items())])

    @classmethod
    def load(cls, text: str) -> FunctionProgress:
        state, rows, begun, chains, opened = json.loads(text)
        return cls(_unplain(state), rows, begun, [(low, middle) for low, middle in chains], dict(map(tuple, opened)))


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON; a tag preserves tuples and sets.

    >>> _plain((1, "a"))
    {'tuple': [1, 'a']}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, tag in ((tuple, "tuple"), (list, "list"), (set, "set"), (frozenset, "frozenset")):
        if type(value) is kind:
            return {tag: [_plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(name), _plain(item)] for name, item in value.items()]}
    raise StateError(
        f"window function: its state holds a {type(value).__name__}, which cannot be stored; "
        "keep to null, booleans, numbers, texts, lists, tuples, sets and dictionaries"
    )


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(tag, items)] = value.items()
    if tag == "dict":
        return {_unplain(name): _unplain(item) for name, item in items}
    return {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}[tag](map(_unplain, items))


class CustomSlicer:
    """One user-defined window over all keys."""

    engine: Engine = "two_stacks"

    def __init__(self, function: WindowFunction) -> None:
        self._function = function
        # The function takes rows in order once the windows before them are closed, as policies apply tuples; no ticks, no idle keys.
        self._settings = np.array([kernel.COUNT, kernel.COUNT, 1, AFTER, 1, 1, 0, AFTER, 0, 0, 1], np.int64)
        self._progress: list[FunctionProgress] = []
        self._held, self._waiting, self._last = _NONE, _NONE, _NONE

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        n_new = leaves.n_keys - len(self._progress)
        self._progress += [FunctionProgress() for _ in range(n_new)]
        self._last = np.append(self._last, np.full(n_new, -1, np.int64))
        held, waiting, last = (leaves.among(numbers) for numbers in (self._held, self._waiting, self._last[self._last >= 0]))
        accepted, _, _ = judge_tuples(
            self._settings,
            _NONE,
            leaves.offsets,
            leaves.time,
            commits_of(leaves.number),
            clock.closed_at(leaves.watermark),
            leaves.new,
            held | waiting | last,
        )
        known = waiting | accepted
        ready = known & (leaves.time < clock.closed) if not clock.ended else known
        sequence = np.flatnonzero(held | ready).astype(np.int64)
        # Index into the sequence of each key's row 0, counted over all rows that the key's function has taken.
        offsets = np.searchsorted(leaves.key[sequence], np.arange(leaves.n_keys + 1)).astype(np.int64)
        n_held = np.bincount(leaves.key[held], minlength=leaves.n_keys)
        self._begins = offsets[:-1] - (np.array([each.rows for each in self._progress], np.int64) - n_held)
        key, chain, end, lo, hi = self._feed(leaves, np.flatnonzero(ready), sequence)
        oldest = np.array([min(each.open.values(), default=each.rows) for each in self._progress], np.int64) + self._begins
        live = np.arange(len(sequence)) >= oldest[leaves.key[sequence]]
        self._held, self._waiting = leaves.number[sequence[live]], leaves.number[known & ~ready]
        fed = np.flatnonzero(ready)
        self._last[leaves.key[fed]] = leaves.number[fed]
        kept = known & ~ready
        kept[sequence[live]] = True
        kept[leaves.find(self._last[self._last >= 0])] = True
        self._n_chains = max((len(each.chains) for each in self._progress), default=0)
        group = key * self._n_chains + chain
        at = runs(group)[:-1]
        middles = np.array([self._progress[k].chains[c][1] for k, c in zip(key[at].tolist(), chain[at].tolist(), strict=True)], np.int64)
        windows = Windows.of(
            key,
            leaves.time[sequence[lo]],
            end,
            group=group,
            ranges=(sequence, lo, hi),
            middles=np.where(middles < 0, -1, middles + self._begins[key[at]]),
        )
        return BatchEffect(accepted, leaves.new & ~accepted, kept, [windows])

    def _feed(self, leaves: Leaves, rows: Ints, sequence: Ints) -> Ints:
        """Feed ``rows`` to their keys' functions.

        Returns key, chain, end, lo and hi of each window that ends, grouped by chain; lo and hi are indices into ``sequence``. Int64, shape
        (5, n_windows).
        """
        names = [name for name in leaves.table.column_names if not name.startswith(OWN_PREFIX)]
        cells = leaves.table.select(names).take(pa.array(rows)).to_pylist()
        starts = leaves.time[sequence].tolist()
        ended: list[tuple[int, int, int, int, int]] = []
        # Windows with equal bounds are emitted in the order in which they ended, so a later one takes no chain before an earlier one's.
        taken: dict[tuple[int, int, int], int] = {}
        for columns, key, time in zip(cells, leaves.key[rows].tolist(), leaves.time[rows].tolist(), strict=True):
            progress, begins = self._progress[key], int(self._begins[key])
            for _, first in progress.feed(self._function, columns, time):
                bounds = key, starts[first + begins], time
                chain = taken[bounds] = progress.chain_of(first, taken.get(bounds, 0))
                ended.append((key, chain, time + 1, first + begins, progress.rows + begins))
        ended.sort(key=lambda window: window[:2])
        return np.ascontiguousarray(np.array(ended, np.int64).reshape(-1, 5).T)

    def flipped(self, windows: Windows, flips: Ints) -> None:
        made = flips >= 0
        groups = windows.group[windows.group_offsets[:-1]][made].tolist()
        for group, middle in zip(groups, windows.hi[flips[made]].tolist(), strict=True):
            key, chain = divmod(group, self._n_chains)
            chains = self._progress[key].chains
            chains[chain] = chains[chain][0], middle - int(self._begins[key])

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:  # noqa: ARG002 - rows in open windows wait for no instant
        return earliest(leaves, leaves.among(self._waiting), leaves.time, clock.lateness)

    def snapshot(self) -> dict[str, pa.Table]:
        progress = pa.array([each.dump() for each in self._progress], pa.string())
        rows = {"held": pa.table({"number": self._held}), "waiting": pa.table({"number": self._waiting})}
        return {"keys": pa.table({"function_state": progress, "last": self._last}), **rows}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        keys = tables["keys"]
        self._progress = [FunctionProgress.load(text) for text in keys.column("function_state").to_pylist()]
        self._last = keys.column("last").to_numpy().copy()
        self._held, self._waiting = (tables[name].column("number").to_numpy() for name in ("held", "waiting"))
