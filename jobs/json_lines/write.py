"""Writes result rows as JSON lines in UTF-8, a column at a time if they are columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.truths import instants_of
from windowmill.jobs.json_lines.read import plain
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.windowing.columnar.results import Column

#: Rows joined at once: the text has tens of megabytes, so the allocator can reuse its memory for each block.
_BLOCK_ROWS = 100_000
#: Range of magnitudes, [least, greatest), of which Arrow writes floats as Python does.
_PLAIN = (1e-4, 1e9)


def result_lines(rows: Sequence[Mapping[str, Any]], pipeline: Pipeline) -> Iterator[bytes | pa.Buffer]:
    """Result rows as JSON lines, in pieces to write one after another. Instants in ``rows`` are microseconds."""
    instants = instants_of(pipeline)
    stamped = {name for name in pipeline.keys if name in instants}
    stamped |= {name for name, spec in pipeline.aggregates.items() if spec.declaration.picks and spec.columns[-1] in instants}
    if not pipeline.time.integer_axis:
        stamped |= {"window_start", "window_end"}
    columns: Mapping[str, Column] | None = getattr(rows, "columns", None)
    if columns is not None:
        yield from _by_column(columns, len(rows), stamped)
        return
    for row in rows:
        members = (f"{json.dumps(name, ensure_ascii=False)}: {_json(value, name in stamped)}" for name, value in row.items())
        yield ("{" + ", ".join(members) + "}\n").encode()


def _by_column(columns: Mapping[str, Column], n_rows: int, stamped: set[str]) -> Iterator[pa.Buffer]:
    for begin in range(0, n_rows, _BLOCK_ROWS):
        pieces: list[Any] = []
        for name, column in columns.items():
            lead = ("{" if not pieces else ", ") + json.dumps(name, ensure_ascii=False) + ": "
            pieces += [pa.scalar(lead), _texts(column[begin : begin + _BLOCK_ROWS], name in stamped)]
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))
        # The array's texts are contiguous in its buffer, which is the output.
        _, ends, texts = lines.buffers()
        yield texts.slice(0, int(np.frombuffer(ends, np.int32)[len(lines)]))


def _texts(column: Column, instant: bool) -> pa.Array:
    """Each value as JSON text."""
    if isinstance(column, list):
        return _each(column, instant)
    kind = column.type
    if instant and pa.types.is_integer(kind):
        # Many rows share a window's bounds, and formatting an instant takes longer than a dictionary lookup.
        known = column.dictionary_encode()
        return _or_null(_stamps(known.dictionary).take(known.indices))
    if pa.types.is_integer(kind):
        return _or_null(column.cast(pa.string()))
    if pa.types.is_boolean(kind):
        return _or_null(pc.if_else(column, "true", "false"))
    if pa.types.is_floating(kind):
        return _or_null(_floats(column))
    if pa.types.is_string(kind):
        known = column.dictionary_encode()
        return _or_null(pa.array([_json(value, False) for value in known.dictionary.to_pylist()], pa.string()).take(known.indices))
    return _each(column.to_pylist(), instant)


def _each(values: list[Any], instant: bool) -> pa.Array:
    return pa.array([_json(value, instant) for value in values], pa.string())


def _json(value: Any, instant: bool) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list) and any(isinstance(each, Decimal) for each in value):
        return f"[{', '.join(_json(each, instant) for each in value)}]"
    return json.dumps(plain(value, instant), ensure_ascii=False)


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _floats(column: pa.Array) -> pa.Array:
    values = np.asarray(pc.fill_null(column, 1.5).to_numpy(zero_copy_only=False))
    texts, size = column.cast(pa.string()), np.abs(values)
    with np.errstate(invalid="ignore"):
        whole, unusual = values == np.floor(values), ~((size >= _PLAIN[0]) & (size < _PLAIN[1])) & ~((values == 0.0) & ~np.signbit(values))
    if whole.any():
        texts = pc.if_else(pa.array(whole & ~unusual), pc.binary_join_element_wise(texts, ".0", ""), texts)
    if unusual.any():
        written = pa.array([_json(float(value), False) for value in values[unusual]], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(unusual), written)
    return texts


def _stamps(column: pa.Array) -> pa.Array:
    """:func:`iso` of each value. Arrow prints instants as Python does only for years that Python's dates have."""
    seconds = pc.divide(column, 1_000_000)
    fine = column.cast(pa.timestamp("us")).cast(pa.string())
    if pc.all(pc.equal(pc.multiply(seconds, 1_000_000), column)).as_py():
        texts = seconds.cast(pa.timestamp("s")).cast(pa.string())
    else:
        exact = pc.equal(pc.multiply(seconds, 1_000_000), column)
        texts = pc.if_else(exact, pc.utf8_slice_codeunits(fine, 0, -7), fine)
    return pc.binary_join_element_wise(pa.scalar('"'), pc.binary_replace_slice(texts, 10, 11, "T"), pa.scalar('Z"'), pa.scalar(""))
