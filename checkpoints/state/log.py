"""The state table of live rows: a log of entries per key, in which later entries supersede earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.base import StateTable, files_of
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.checkpoints.state.wanted import Condition, ReadLimit
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.columnar.added_columns import BATCH, DUE, GAP, KIND, NUMBER_OF, SLICE
from windowmill.windowing.columnar.buckets import KeysOfShare
from windowmill.windowing.columnar.checksums import RowCheck, without_checksums
from windowmill.windowing.columnar.positions import SEQUENCE
from windowmill.windowing.columnar.rows import ROW_KEY, codes_of
from windowmill.windowing.columnar.state_log import GONE, KEY_ENTRY
from windowmill.windowing.watermark import AFTER

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools

#: Column beside those of the state in :func:`latest_entries`, quoted; no key column has such a name.
_AGE = '"_ age"'


class LogTable(StateTable):
    """The log of one pipeline's live rows at ``path``; see :mod:`windowmill.windowing.columnar.state_log`.

    Parameters
    ----------
    may_lack
        Columns that the table lacks until a batch adds them.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        check: RowCheck | None = None,
        only: KeysOfShare | None = None,
        *,
        may_lack: Collection[str] = (),
    ) -> None:
        super().__init__(path, schema, check, only)
        self._may_lack = may_lack

    def read(self, touched: pa.Table, keys: Mapping[str, str], *, before_batch: int, watermark: int, limit: ReadLimit) -> pa.Table | None:
        """All entries of the keys that are in ``touched`` or due by ``watermark``, as of the batches before ``before_batch``.

        They are verified, and without their checksums; none if the log exceeds ``limit``. A run reads the whole log once.

        Parameters
        ----------
        touched
            New rows, with the log's columns.
        """
        if not self._exists:
            return self._schema.empty_table()
        with reporting_damage(self._path):
            table = newest(self._path)
            files, names = files_of(table), pa.schema(table.schema().to_arrow()).names
            # Files of other parts have only nulls in the log's columns.
            if limit.is_exceeded_by([file for file in files if file.get(f"null_count.{KIND}") != file["num_records"]]):
                return None
            # A column that entries do not have separates them from rows of positions; files of a spec without positions lack it.
            schema = self._schema.append(pa.field(SEQUENCE, pa.string())) if SEQUENCE in names else self._schema
            log = self._rows(table, files, schema, entries_before(names, before_batch), limit.rows, (*self._may_lack, SEQUENCE))
            if log is None:
                return None
            entries = log.select(self._schema.names)
            # Before any is left out: a damaged key or instant would hide a key that is due.
            self._check.verify(entries)
            return of_keys(without_checksums(entries), touched, list(keys.values()), watermark)


def own_entries(*, beside_positions: bool) -> Condition:
    """The condition for entries of the log; beside positions, whose rows have a kind too, those without a sequence."""
    own = Condition(f"{KIND} IS NOT NULL", pc.field(KIND).is_valid())
    if not beside_positions:
        return own
    return Condition(f"{own.sql} AND {SEQUENCE} IS NULL", own.expression & pc.field(SEQUENCE).is_null())


def entries_before(columns: Collection[str], before_batch: int) -> Condition:
    """The condition for entries of the log of the batches before ``before_batch``, in a table with these ``columns``."""
    own = own_entries(beside_positions=SEQUENCE in columns)
    return Condition(f"{BATCH} < {before_batch} AND {own.sql}", (pc.field(BATCH) < before_batch) & own.expression)


def of_keys(log: pa.Table, touched: pa.Table, keys: Sequence[str], watermark: int) -> pa.Table:
    """The entries of the keys that are in ``touched`` or due by ``watermark``; O(n) in entries and rows."""
    if not keys:
        return log
    codes, n_keys = codes_of([log, touched], keys)
    marks = log.append_column(ROW_KEY, pa.array(codes[: log.num_rows])).filter(pc.equal(log.column(KIND), KEY_ENTRY)).sort_by(BATCH)
    due = np.full(n_keys, AFTER, np.int64)
    # The last value assigned counts: that of a key's latest entry.
    due[marks.column(ROW_KEY).to_numpy()] = marks.column(DUE).to_numpy()
    wanted = due <= watermark
    wanted[codes[log.num_rows :]] = True
    return log.filter(pa.array(wanted[codes[: log.num_rows]]))


def is_log(path: str) -> bool:
    """Whether the state table at ``path`` is a log of live rows and nothing else."""
    names = table_at(path).schema().to_arrow().names
    return KIND in names and not {SEQUENCE, SLICE, GAP} & set(names)


def are_latest(log: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of the entries of ``log``, in order of batches, that :func:`latest_entries` chooses; O(n log n)."""
    kind = log.column(KIND)
    codes = codes_of([log], keys)[0]
    number = pc.if_else(pc.equal(kind, KEY_ENTRY), -1, log.column(NUMBER_OF)).to_numpy()
    order = np.lexsort((number, codes))  # stable, so the last of equals is the latest
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (codes[order][1:] != codes[order][:-1]) | (number[order][1:] != number[order][:-1])
    found = np.zeros(len(order), np.bool_)
    found[order[is_last]] = True
    return np.asarray(found & pc.not_equal(kind, GONE).to_numpy(), np.bool_)


def latest_entries(log: str, keys: Sequence[str], where: str) -> str:
    """The SQL query for the entries of ``log`` that satisfy ``where`` and hold something that no later ones that do have superseded."""
    # Row numbers identify rows, and key columns identify keys: each partition of the window holds the entries of one row or key.
    by = ", ".join([f"CASE WHEN {KIND} = '{KEY_ENTRY}' THEN -1 ELSE {NUMBER_OF} END", *map(quoted, keys)])
    ages = f"SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) AS {_AGE} FROM {log} WHERE {where}"
    return f"SELECT * FROM ({ages}) WHERE {_AGE} = 1 AND {KIND} <> '{GONE}'"
