"""Reads in this process, by Arrow, the rows of a source by which sampled windows are recomputed: those of their keys, in their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.batch.restated_rows import kept_out
from windowmill.jobs.column_names import FILE, REASON, ROW
from windowmill.jobs.sources.base import Reading
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, batches_of
from windowmill.jobs.sources.table_rows import Live, left, live_rows
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.errors import SourceFileError, SpecError, UnsupportedError
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from windowmill.checkpoints.places import Runnable
    from windowmill.jobs.verify.files_read import SourceFiles
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.spec import Pipeline

#: Most rows that are kept; where windows have more, Spark reads.
MAX_KEPT = 2_000_000


@dataclass(frozen=True)
class Reaches:
    """The rows that windows ask for, by key and time.

    Attributes
    ----------
    keys
        The key of each window, with the types of the source.
    begins, ends
        Times [begin, end) of its rows; int64, shape (n,).
    """

    keys: pa.Table
    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, keys: pa.Table, reaches: Sequence[tuple[int, int]], types: Mapping[str, pa.DataType]) -> Reaches:
        """Of windows with these ``keys``, whose columns are cast to ``types``, each with its times."""
        begins, ends = np.array(reaches, np.int64).reshape(-1, 2).T
        # Without columns Arrow would lose the number of rows.
        return cls(keys.cast(pa.schema([(name, types[name]) for name in keys.column_names])) if keys.num_columns else keys, begins, ends)

    def __len__(self) -> int:
        return len(self.begins)

    def pairs(self, rows: pa.Table) -> tuple[Ints, Ints]:
        """The indices of windows and ``rows`` that belong together, in order of windows, then of rows."""
        names = self.keys.column_names
        codes = codes_of([self.keys, rows.select(names)], names)[0] if names else np.zeros(len(self) + len(rows), np.int64)
        own, of_rows = codes[: len(self)], codes[len(self) :]
        order = np.argsort(of_rows, kind="stable")
        first, behind = (np.searchsorted(of_rows[order], own, side=side) for side in ("left", "right"))
        time = rows.column(TIME).to_numpy()
        stop = np.maximum(rows.column(UNTIL_OF).to_numpy(), time + 1)
        windows, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for n in range(len(self)):
            found = order[first[n] : behind[n]]
            found = found[(time[found] < self.ends[n]) & (stop[found] > self.begins[n])]
            windows.append(np.full(len(found), n))
            places.append(found)
        return np.concatenate(windows), np.concatenate(places)


@dataclass(frozen=True)
class SampledRows:
    """Rows of a source, with its columns that a pipeline uses, ``TIME``, ``UNTIL_OF``, ``FILE``, ``ROW``, and a column for each condition.

    Attributes
    ----------
    rows
        Those that were asked for.
    latest
        Of each file that was read a row with the greatest event time.
    """

    rows: pa.Table
    latest: pa.Table


@dataclass(frozen=True)
class LocalReader:
    """Reads ``files`` of a source; rows are usable at the instant ``now_us``.

    ``refused`` are the reasons of rows in quarantine that are usable by themselves.
    """

    runnable: Runnable
    files: SourceFiles
    now_us: int
    refused: frozenset[str]

    @property
    def _pipeline(self) -> Pipeline:
        return self.runnable.pipeline

    @property
    def is_plain(self) -> bool:
        """Whether this process can read the rows, as far as is known without opening the files."""
        return self._plain is not None

    @cached_property
    def _plain(self) -> PlainRows | None:
        return PlainRows.of(self._pipeline, self.files.source, Reading(tuple(self.files.files)))

    @cached_property
    def _live(self) -> Live:
        source = self.files.source
        return live_rows(source, source.version) if isinstance(source, DeltaSource) and source.deletion_vectors else {}

    def read(self, chosen: Sequence[int], columns: Sequence[str], reaches: Sequence[Reaches]) -> SampledRows | None:
        """The rows of the files ``chosen`` by index that ``reaches`` ask for; null if they are many, or only Spark can read them.

        Raises
        ------
        SourceFileError
            If one of the files is gone.
        """
        if self._plain is None:
            return None
        conditions, kept, latest, n_kept = self._pipeline.conditions(), list[pa.Table](), list[pa.Table](), 0
        schema = self._schema(columns, conditions)
        try:
            for rows in self._parts(chosen, columns, conditions, schema):
                places = np.unique(np.concatenate([each.pairs(rows)[1] for each in reaches]))
                kept.append(rows.take(pa.array(places)))
                if len(rows):
                    latest.append(rows.slice(int(np.argmax(rows.column(TIME).to_numpy())), 1))
                n_kept += len(places)
                if n_kept > MAX_KEPT:
                    return None
        except (NotPlainError, SpecError, UnsupportedError, OSError, pa.ArrowException):  # Spark reads them, or says what is wrong
            gone = self.files.source.missing([self.files.files[n] for n in chosen])
            if gone is not None:
                path, version = self.files.source.path, self.files.source.version
                raise SourceFileError(
                    f"source {path}: the file {gone.path} of version {version} is gone; bring it back, or restore a version of the source "
                    "whose files are there, and verify again"
                ) from None
            return None
        return SampledRows(*(pa.concat_tables([schema.empty_table(), *parts]) for parts in (kept, latest)))

    def _schema(self, columns: Sequence[str], conditions: Sequence[str]) -> pa.Schema:
        assert self._plain is not None
        own = [(name, self._plain.types[name]) for name in columns]
        added = [(TIME, pa.int64()), (UNTIL_OF, pa.int64()), (FILE, pa.int32()), (ROW, pa.int64())]
        return pa.schema([*own, *added, *((condition_column(text), pa.bool_()) for text in conditions)])

    def _parts(self, chosen: Sequence[int], columns: Sequence[str], conditions: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
        """The usable rows of each of the ``chosen`` files, some at a time."""
        plain, quarantined = self._plain, None
        assert plain is not None
        if self.refused:
            quarantined = kept_out(self.runnable, columns, {file.path for file in self.files.present}, self.refused)
        latest = self._pipeline.time.latest(self.now_us)
        # Of equal rows those in quarantine came last, if it does not say which they are.
        for n in reversed(chosen):
            file, first = self.files.files[n], 0
            for batch in batches_of(plain.files[n], plain.form, plain.needed(columns)):
                rows = pa.Table.from_batches([batch]).append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
                first += batch.num_rows
                rows = plain.evaluated(left(rows, self._live.get(file.path)), columns, conditions, latest)
                rows = rows.filter(pc.is_null(rows.column(REASON)))
                if quarantined is not None and len(rows):
                    staying = quarantined.split(file, rows.select([*columns, ROW]))[0].column(ROW)
                    rows = rows.filter(pc.is_in(rows.column(ROW), staying.combine_chunks()))
                rows = rows.append_column(FILE, pa.repeat(pa.scalar(n, pa.int32()), len(rows)))
                rows = rows if UNTIL_OF in rows.column_names else rows.append_column(UNTIL_OF, rows.column(TIME))
                yield rows.select(schema.names).cast(schema)
