"""Carries the state of a pipeline over to a changed spec without reading its source.

Rows of a part whose windows stay are stored again with the columns that the new spec needs. Where windows on grids come or go, stored
slices take the place of new rows: cut at the new edges, they are combined into windows, and into slices and nodes for the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.state.reading import read_file, reporting_damage
from windowmill.checkpoints.state.tables import own_entries
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.base import Part, written
from windowmill.jobs.layouts.input import Emission
from windowmill.jobs.layouts.output import Output, RowWriter, restored_kinds
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar import slices
from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, DUE, GAP, KIND, LEVEL, SEQUENCE, SLICE, SUM
from windowmill.windowing.columnar.grid_windows import advanced
from windowmill.windowing.columnar.hashes import RowCheck, Share, with_checksums
from windowmill.windowing.columnar.keyed import GONE, ROW
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels.lift import int64_of

if TYPE_CHECKING:
    from windowmill.jobs.layouts.keyed_parts import LiveRowPart, PositionPart, SessionPart
    from windowmill.jobs.layouts.slices import SlicePart


class NotStoredError(Exception):
    """The state does not hold what the changed spec needs; the text says what is missing."""


@dataclass(frozen=True)
class CarriedPart:
    """A part of the changed pipeline, and the part ``before``, from whose stored rows its own are made."""

    part: Part
    before: Part
    columns: Mapping[str, str]  #: For each column of its stored rows, except their checksum, the stored column that holds the same.
    recut: bool = False  #: Whether slices are cut at other edges, or fill windows that have ended.


def carried_parts(parts: Sequence[Part], before: Sequence[Part], changed: Collection[str], fills: Collection[str]) -> list[CarriedPart]:
    """How each of ``parts`` continues from the stored rows of those ``before``.

    ``changed``: names of windows that are new, or do not mean what they meant. ``fills``: names of windows whose ended windows are to be
    published. Raises ``NotStoredError`` if the state does not hold what one of them needs.
    """
    return [_carried(part, {each.name: each for each in before}.get(part.name), changed, fills) for part in parts]


def _carried(part: Part, before: Part | None, changed: Collection[str], fills: Collection[str]) -> CarriedPart:
    windows = part.batch.pipeline.windows
    fresh = next((window for window in windows if window.name in changed), None)
    if before is None or (fresh is not None and part.name != "slices"):
        raise _nothing_of((fresh or windows[0]).name, part)
    filled = [window.name for window in windows if window.name in fills]
    if filled and part.name != "slices":
        raise _nothing_of(filled[0], part)
    columns = _columns(part, before)
    gone = {window.name for window in before.batch.pipeline.windows} - {window.name for window in windows}
    if part.name == "sessions" and gone and any(window.greatest_size() for window in before.batch.pipeline.windows):
        raise NotStoredError(f"the state of sessions, of which {min(gone)} is dropped, depends on their greatest sizes")
    recut = part.name == "slices" and bool(gone or filled or fresh or (LEVEL in part.schema.names) != (LEVEL in before.schema.names))
    return CarriedPart(part, before, columns, recut)


def _nothing_of(window: str, part: Part) -> NotStoredError:
    return NotStoredError(f"the state ({part.name}) holds no earlier rows of window {window}")


def _columns(part: Part, before: Part) -> dict[str, str]:
    """For each column of stored rows of ``part``, the column of rows of ``before`` with the same content."""
    own, theirs = (
        each.schema.remove(each.schema.get_field_index(SUM)) if SUM in each.schema.names else each.schema for each in (part, before)
    )
    layout, stored = part.reading.layout, before.reading.layout
    found = {} if layout is None or stored is None else layout.columns_among(stored)
    partials = [] if layout is None else [name for name, _ in layout.stored_columns]
    lacking = [name for name in partials if name not in found]
    if layout is not None and lacking:
        results = (*(result.name for result in layout.results), *(name for held in layout.objects for name, _ in held.results))
        named = next(result for result in results if lacking[0] in layout.columns_of(result))
        raise NotStoredError(f"the state holds no partials of aggregate {named}")
    others = {field.name: field.type for field in theirs}
    # Nodes over slices are left out, or computed again, where only one of the parts has them.
    rest = [field for field in own if field.name not in partials and (field.name != LEVEL or LEVEL in others)]
    # Columns of live rows have other names where the table has other parts, too.
    renamed = {}
    if part.name == "live rows":
        live, stored_live = (cast("LiveRowPart", each).reading.labels for each in (part, before))
        renamed = {label: stored_live[name] for name, label in live.items() if name in stored_live}
    for field in rest:
        found[field.name] = renamed.get(field.name, field.name)
        if others.get(found[field.name]) != field.type:
            raise NotStoredError(f"the state has no column {field.name}, which windows that keep {part.name} need")
    return found


def _windows(part: Part) -> list[str]:
    return [window.name for window in part.batch.pipeline.windows]


def stored_rows(path: str, check: RowCheck) -> Iterator[pa.Table]:
    """The rows of the state at ``path``, verified, a file at a time."""
    if not is_table(path):
        return
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema(table.schema().to_arrow())
        for file in files_of(table):
            rows = read_file(table.table_uri, file, schema, schema.names)
            check.verify(rows)
            yield rows


def carry(
    carried: Sequence[CarriedPart], path: str, check: RowCheck, emission: Emission, writer: RowWriter, fills: Collection[str]
) -> Output:
    """Write the state of ``carried`` parts, from that at ``path``, and windows of ``emission`` among ``fills``; returns counts."""
    done = Output()
    staying = [each for each in carried if not each.recut]
    for rows in stored_rows(path, check) if staying else ():
        for each in staying:
            kept = with_checksums(_kept(each, _typed(each, _own(each, rows))))
            writer.state(kept)
            done += Output(counts=Counts(state_restored=restored_kinds(kept)))
    for each in carried:
        if each.recut:
            done += _recut(each, path, check, emission, writer, fills)
    return done


def _own(each: CarriedPart, rows: pa.Table) -> pa.Table:
    """The stored ``rows`` of the part; without nodes if slices are cut again."""
    names, layout = rows.column_names, each.part.name
    if layout == "slices":
        wanted = reduce(or_, (pc.field(name).is_valid() for name in (SLICE, *each.before.spans)))
        if each.recut and LEVEL in each.before.schema.names:
            wanted &= pc.field(LEVEL) == 0
    elif layout == "sessions":
        wanted = pc.field(GAP).is_valid()
    elif layout == "positions":
        wanted = pc.field(SEQUENCE).is_valid()
    else:
        wanted = own_entries(with_positions=SEQUENCE in names).expression
    return rows.filter(wanted)


def _typed(each: CarriedPart, rows: pa.Table) -> pa.Table:
    """The stored ``rows`` with the columns of the part."""
    schema = pa.schema([field for field in each.part.schema if field.name != SUM])
    columns = [
        rows.column(each.columns[field.name]).cast(field.type) if field.name in each.columns else pa.repeat(0, len(rows))
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _kept(each: CarriedPart, rows: pa.Table) -> pa.Table:
    """Those of ``rows`` that windows of the part still need; live rows that no window holds any more are marked as gone."""
    part = each.part
    if part.name == "sessions":
        return rows.filter(pc.is_in(rows.column(GAP), pa.array(cast("SessionPart", part).gaps, pa.int64())))
    if part.name == "positions":
        return rows.filter(pc.is_in(rows.column(SEQUENCE), pa.array(cast("PositionPart", part).sequences, pa.string())))
    if part.name == "live rows" and part.batch.rule != each.before.batch.rule:
        # At which watermark a key is due depends on the lateness: the next batch reads all.
        due = pc.if_else(pc.is_valid(rows.column(DUE)), AXIS_BEGIN, rows.column(DUE))
        rows = rows.set_column(rows.schema.get_field_index(DUE), rows.schema.field(DUE), due)
    if part.name == "live rows" and _windows(part) != _windows(each.before):
        tables = cast("LiveRowPart", part).reading.log.tables
        held = reduce(pc.or_, (rows.column(table.held).fill_null(False) for table in tables if table.held))
        free = pc.and_(pc.equal(rows.column(KIND), ROW), pc.invert(held))
        return rows.set_column(rows.schema.get_field_index(KIND), rows.schema.field(KIND), pc.if_else(free, GONE, rows.column(KIND)))
    return rows


def _recut(each: CarriedPart, path: str, check: RowCheck, emission: Emission, writer: RowWriter, fills: Collection[str]) -> Output:
    part = cast("SlicePart", each.part)
    stage = part.map_reduce(emission, has_late=False).stage
    stage = replace(stage, grids=tuple((name, grid) for name, grid in stage.grids if name in fills))
    done = Output()
    n_rows = sum(len(_own(each, rows)) for rows in stored_rows(path, check))
    n_shares = 1 + n_rows // limits.rows_within(limits.MAX_STATE_ROWS, stage.slices.layout)
    for number in range(n_shares if part.batch.pipeline.keys else 1):
        share = Share(number, number + 1, n_shares)
        tables = [_cut(each, share.rows(_own(each, rows), stage.slices.keys)) for rows in stored_rows(path, check)]
        whole = pa.concat_tables(tables or [stage.slices.schema.empty_table()]).combine_chunks()
        parts = list(slices.restored(stage.slices, whole.to_batches()))
        done += sum((written(writer, each) for each in advanced(stage, parts)), Output())
        done += Output(counts=Counts(state_restored=restored_kinds(whole)))
    return done


def _cut(each: CarriedPart, rows: pa.Table) -> pa.Table:
    """Stored slices, cut at the edges of the batch's grids."""
    part = cast("SlicePart", each.part)
    stage = part.reading
    rows = _typed(each, rows)
    starts = stage.edges.slice_starts(int64_of(rows.column(SLICE).combine_chunks()))
    marks = rows.column(CLOSED).combine_chunks()
    closed = stage.edges.slice_starts(int64_of(pc.coalesce(marks, rows.column(SLICE).combine_chunks())))
    fields = {SLICE: pa.array(starts), CLOSED: pa.array(closed, mask=marks.is_null().to_numpy(zero_copy_only=False))}
    fields |= {BATCH: pa.repeat(part.batch.batch, len(rows))}
    for name, values in fields.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    return rows.select(stage.schema.names)
