"""Gives the rows of plain files, read by Arrow in this process or in tasks, the values that :mod:`.spark_files` gives in Spark.

Files are plain if they hold exactly the rows of the source's version, and Arrow gives of their columns what Spark gives
(:mod:`.plain_files`). Where one is not, or only Spark can evaluate the spec, Spark reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.truths import Conditions, Truth, columns_of, every_condition, read_by
from windowmill.jobs.sources.base import PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.parquet_columns import unreadable
from windowmill.jobs.sources.plain_files import FilePart, Form, NotPlainError, OpenFile, read
from windowmill.jobs.sources.unusable_rows import EventTimes
from windowmill.windowing.columnar.added_columns import CORRUPT, FAILED, FILE, REASON, ROW, TIME, UNREAD, UNTIL_OF, VERSION
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.sources.row_steps import RowSteps

#: Metadata of a column that Spark fills in where a file lacks it.
_DEFAULT = "EXISTS_DEFAULT"

#: Errors of reading rows in this process, after which Spark reads them instead, or reports what is wrong.
NOT_HERE = (NotPlainError, SpecError, OSError, pa.ArrowException)


@dataclass(frozen=True)
class Answers:
    """Where conditions hold that only Spark evaluates: for each condition and file one bit a row, packed.

    ``holds``: by condition, and index of the file.
    """

    holds: Mapping[str, Sequence[npt.NDArray[np.uint8]]]

    def of(self, condition: str, file: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether ``condition`` holds of the ``rows`` of a file."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        first = int(rows.min()) // 8
        return np.unpackbits(self.holds[condition][file][first : int(rows.max()) // 8 + 1])[rows - 8 * first].astype(np.bool_)


NO_ANSWERS = Answers({})


@dataclass(frozen=True)
class PlainRows:
    """The rows of plain files; picklable.

    ``files``: the files, in order of arrival.
    ``versions``: the version of each file; none if files have no versions.
    ``form``: that of the columns of the files.
    ``conditions``: all conditions of the spec, including the source's own filter.
    ``has_unread``: whether rows come with the column ``UNREAD``, as those that have gone through steps do.
    ``answers``: those of Spark to conditions that only it evaluates.
    ``steps``: what rows go through; null if windows see them as they are.
    """

    pipeline: Pipeline
    files: Sequence[PlainFile]
    versions: Sequence[int]
    form: Form
    conditions: Conditions
    has_unread: bool = False
    answers: Answers = NO_ANSWERS
    steps: RowSteps | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, reading: Reading, answers: Answers | None = NO_ANSWERS) -> PlainRows | None:
        """The rows of ``reading``, as far as is known without opening the files; null if only Spark can read them.

        Without the ``answers`` that its conditions need, the rows are null too, unless ``answers`` is null: they are asked for then.
        """
        columns = Columns.of(source.schema_json)
        steps = None if source.reader is None else columns.steps(source.reader)
        try:
            conditions = local_conditions(pipeline, columns if steps is None else columns.behind(steps))
        except NotPlainError:
            return None
        if steps is not None and steps.outside:
            return None
        if answers is not None and not conditions.outside.keys() <= answers.holds.keys():
            return None
        files = source.plain_files(reading)
        if files is None:
            return None
        form = Form(columns.arrow, columns.fixed_lengths)
        versions = [file.version for file in reading.files]
        return cls(pipeline, files, versions, form, conditions, source.has_unread or steps is not None, answers or NO_ANSWERS, steps)

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column that windows may see."""
        if self.steps is None:
            return self.form.types
        types = {**self.form.types, **self.steps.made}
        return {name: types[name] for name in self.steps.after(list(self.form.types))}

    def read(self, columns: Sequence[str], conditions: Sequence[str], *, latest: int | None) -> pa.Table | None:
        """As :meth:`read_here`; null if only Spark can read the rows."""
        try:
            return self.read_here(columns, conditions, latest=latest)[0]
        except NOT_HERE:
            return None

    def read_here(self, columns: Sequence[str], conditions: Sequence[str], *, latest: int | None) -> tuple[pa.Table, int]:
        """The rows in order of arrival, and the number of those in the files; raises one of :data:`NOT_HERE` if only Spark reads them.

        The table has ``columns``, for each of ``conditions`` its truth in a :func:`.condition_column`, and what :func:`.read_rows` adds.
        Event times after ``latest`` are not accepted; null for no bound.
        """
        needed, whole = self.needed(columns), []
        for index, file in enumerate(self.files):
            batches = list(batches_of(file, self.form, needed))
            if not batches:
                batches = [pa.record_batch([pa.array([], self.form.types.get(name, pa.string())) for name in needed], names=needed)]
            rows = pa.Table.from_batches(batches)
            for name, column in places(index, self.versions[index], 0, rows.num_rows).items():
                rows = rows.append_column(name, column)
            whole.append(rows)
        stored = pa.concat_tables(whole)
        return self.evaluated(stored, columns, conditions, latest), len(stored)

    def read_part(self, part: FilePart, columns: Sequence[str], conditions: Sequence[str], *, latest: int | None) -> Iterator[pa.Table]:
        """As :meth:`read`, the rows of a part of a file that has been examined, in batches, without ``FILE`` and ``VERSION``.

        Runs in an executor.
        """
        needed = self.needed(columns)
        for batch, places in read(part, self.form, needed):
            rows = pa.Table.from_batches([batch]).append_column(ROW, pa.array(places))
            yield self.evaluated(rows, columns, conditions, latest, part.index)

    def needed(self, columns: Sequence[str]) -> list[str]:
        """The columns of the files from which ``columns`` come, and those that event times and conditions read."""
        own = EventTimes(self.pipeline, None, self.has_unread).read
        if self.steps is None:
            return list(dict.fromkeys([*columns, *own, *read_by(self.conditions.texts, self.form.types)]))
        return [*self.steps.columns_read([*columns, *own, *read_by(self.conditions.texts, self.types)], list(self.form.types)), UNREAD]

    def evaluated(
        self, rows: pa.Table, columns: Sequence[str], conditions: Sequence[str], latest: int | None, file: int | None = None
    ) -> pa.Table:
        """``rows`` as read, all of one ``file`` or with the index of each in a column, with what :meth:`read` adds."""
        rows = rows if self.steps is None else self.steps.over(rows)
        truths = self.conditions.over(rows)
        for condition in self.conditions.outside:
            place, holds = rows.column(ROW).to_numpy(), np.zeros(rows.num_rows, np.bool_)
            for index in range(len(self.files)) if file is None else (file,):
                own = slice(None) if file is not None else rows.column(FILE).to_numpy() == index
                holds[own] = self.answers.of(condition, index, place[own])
            truths[condition] = Truth(pa.array(holds), pa.array(np.zeros(rows.num_rows, np.bool_)))
        if truths:
            rows = rows.append_column(FAILED, reduce(pc.or_, (truth.failed for truth in truths.values())))
        rows = EventTimes(self.pipeline, latest, self.has_unread).of(rows)
        for condition in conditions:
            holds = truths[condition].holds
            known = rows.column(REASON).null_count == rows.num_rows
            rows = rows.append_column(condition_column(condition), holds if known else pc.and_(holds, pc.is_null(rows.column(REASON))))
        wanted = self.pipeline.own_filter
        if wanted:
            # Rows on which the filter fails, or that could not be read, are kept for quarantine.
            kept = pc.or_(truths[wanted].holds, truths[wanted].failed)
            rows = rows.filter(pc.or_(kept, pc.is_valid(rows.column(UNREAD))) if self.has_unread and keeps_unread(wanted) else kept)
        own = [name for name in (FILE, ROW, VERSION, UNREAD) if name in rows.column_names]
        added = [*own, REASON, TIME, *([UNTIL_OF] if self.pipeline.time.end else []), *map(condition_column, conditions)]
        return rows.select([*added, *dict.fromkeys(columns)])


def keeps_unread(wanted: str) -> bool:
    """Whether unreadable rows are quarantined regardless of the source's filter ``wanted``: unless it refers to them."""
    return CORRUPT not in columns_of(wanted)


def places(file: int, version: int, first: int, n_rows: int) -> dict[str, pa.Array]:
    """Columns with the places of successive rows of a file, from index ``first``."""
    return {
        FILE: pa.repeat(pa.scalar(file, pa.int32()), n_rows),
        ROW: pa.array(np.arange(first, first + n_rows)),
        VERSION: pa.repeat(pa.scalar(version, pa.int64()), n_rows),
    }


def batches_of(file: PlainFile, form: Form, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The ``columns`` of all rows of a file, in order; raises ``NotPlainError`` if only Spark can read them."""
    if file.row_form is not None:
        yield from file.row_form.batches(file, form, columns)
        return
    try:
        with OpenFile(file, form) as opened:
            opened.check(columns)
            yield from opened.batches(columns)
    except (OSError, pa.ArrowException) as err:
        if file.casts is None:
            raise
        raise unreadable(file.path, err) from err


def local_conditions(pipeline: Pipeline, columns: Columns) -> Conditions:
    """All conditions of the spec over ``columns``; raises ``NotPlainError``, saying why, if only Spark can give one its values."""
    # A source that lacks the column is refused later.
    for name in filter(None, (pipeline.time.column, pipeline.time.end)):
        kind = columns.arrow.get(name, pa.null())
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
            raise NotPlainError(f"{name!r} is no column of a time")
    if columns.taken is not None:
        raise NotPlainError(f"the name of the column {columns.taken!r} is taken")
    for field in columns.struct:
        if any(key.startswith(_DEFAULT) for key in field.metadata):
            raise NotPlainError(f"the column {field.name!r} has a default value")
    conditions = every_condition(pipeline)
    return Conditions.of(conditions, columns.in_conditions if conditions else {})
