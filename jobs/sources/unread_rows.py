"""Rows that could not be read, or have a value that does not fit its column: the column ``UNREAD``, which a source's own are read with.

It holds a reason and, after a space, JSON: a sentence for people, and the texts that became no values, by column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.column_names import CORRUPT
from windowmill.jobs.conditions.truths import columns_used
from windowmill.jobs.reasons import BAD_ROW, BAD_TIME, CANNOT_CAST
from windowmill.jobs.sources.folder_options import ddl_of

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Characters of a text that a sentence shows.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """What a spec uses of a source's rows.

    Attributes
    ----------
    names
        The columns; of several values that do not fit, that of the first one gives the reason.
    times
        Those of them that are event times.
    """

    names: tuple[str, ...] = ()
    times: frozenset[str] = frozenset()

    @classmethod
    def by(cls, pipeline: Pipeline, columns: Sequence[str]) -> ExpectedColumns:
        """What ``pipeline`` uses of a source with these ``columns``."""
        used, _ = columns_used(pipeline)
        folded = {name.lower() for name in used if name not in columns}  # conditions ignore case
        every = any(window.reads_whole_rows for window in pipeline.windows)
        order = {name: place for place, name in enumerate(used)}
        names = [name for name in columns if every or name in used or name.lower() in folded]
        times = frozenset(filter(None, (pipeline.time.column, pipeline.time.end)))
        return cls(tuple(sorted(names, key=lambda name: order.get(name, len(order)))), times)

    def among(self, columns: Mapping[str, object]) -> ExpectedColumns:
        """What is used of rows that have only these ``columns``."""
        return ExpectedColumns(tuple(name for name in self.names if name in columns), self.times)


def unread_of(
    texts: Mapping[str, pa.Array],
    values: Mapping[str, pa.Array],
    expected: ExpectedColumns,
    bad: Mapping[int, str],
    where: Callable[[int], str],
    lines: Callable[[int], bytes],
) -> pa.Array | None:
    """``UNREAD`` of rows; null if all could be read.

    Parameters
    ----------
    texts, values
        The columns before and after their values were parsed.
    bad
        Why a row could not be read, by its index.
    where, lines
        Where a row is, and its bytes, by its index.
    """
    found = {index: _reject(BAD_ROW, where(index), why, {CORRUPT: lines(index).decode(errors="replace")}) for index, why in bad.items()}
    wrong: dict[int, dict[str, str]] = {}
    for name in expected.names:
        if texts[name].null_count == values[name].null_count:
            continue
        for index in np.flatnonzero(pc.and_(pc.is_valid(texts[name]), pc.is_null(values[name])).to_numpy(zero_copy_only=False)).tolist():
            wrong.setdefault(index, {})[name] = _text_of(texts[name][index])
    for index, own in wrong.items():
        name, text = next(iter(own.items()))
        said = f"{name}: got {json.dumps(text[:_SHOWN], ensure_ascii=False)}; expected {ddl_of(values[name].type)}"
        found[index] = _reject(BAD_TIME if name in expected.times else CANNOT_CAST, where(index), said, own)
    if not found:
        return None
    n_rows = len(next(iter(texts.values()))) if texts else 1 + max(found)
    return pa.array([found.get(index) for index in range(n_rows)], pa.string())


def _text_of(value: pa.Scalar) -> str:
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):  # a date or an instant that Python has none for
        return str(value.value)


def _reject(reason: str, where: str, what: str, texts: Mapping[str, str]) -> str:
    return f"{reason} {json.dumps({'detail': f'{where}: {what}', 'texts': texts}, ensure_ascii=False)}"


def reasons_of(unread: pa.ChunkedArray) -> pa.ChunkedArray:
    """The reasons in ``UNREAD``."""
    return pc.list_element(pc.split_pattern(unread, " ", max_splits=1), 0)


def details_of(unread: pa.ChunkedArray) -> list[str | None]:
    """The sentences in ``UNREAD``."""
    return [None if text is None else json.loads(text.partition(" ")[2])["detail"] for text in unread.to_pylist()]


def with_texts(rows: pa.ChunkedArray, unread: pa.ChunkedArray) -> list[str]:
    """``rows`` as JSON objects, each with the texts in ``UNREAD`` in the place of nulls."""
    found = []
    for row, problem in zip(rows.to_pylist(), unread.to_pylist(), strict=True):
        for name, text in ({} if problem is None else json.loads(problem.partition(" ")[2])["texts"]).items():
            lead, held = json.dumps(name, ensure_ascii=False), json.dumps(text, ensure_ascii=False)
            if f"{lead}:null" in row:
                row = row.replace(f"{lead}:null", f"{lead}:{held}", 1)  # noqa: PLW2901 - with each text
            elif f"{lead}:" not in row:
                row = f"{row[:-1]},{lead}:{held}}}"  # noqa: PLW2901
        found.append(row)
    return found
