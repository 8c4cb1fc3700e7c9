"""Compares recomputed windows with those that the sink shows, and numbers the revisions of those that differ, and of later runs.

Kernels number the revisions of a run. :func:`renumbered` raises these above what the sink shows of the same windows, because state that a
restatement has rebuilt counts from 0, and a backfill may have published windows of which the state holds nothing. A restatement numbers
its rows here alone. A backfill replaces rows, and counts from 0.

Windows with policies are identified by the trigger's number (and by its time, if idle keys are forgotten), all others by both bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.data_files import DataFile, read_files, remove, write_files
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.sources.table_rows import ends_in_sql, queried
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Greatest relative difference of floats that are the same result: sums may round differently if they are made of other parts.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Corrections:
    """Rows to publish, with ``RETRACTED`` and the sink's columns: of windows that differ, and of those that are retracted."""

    changed: pa.Table
    retracted: pa.Table


def corrections(pipeline: Pipeline, new: pa.Table, shown: pa.Table, batch: int, within: tuple[int, int]) -> Corrections:
    """What ``batch`` publishes of the recomputed windows, given all rows that the sink has of these windows and keys.

    - ``new``: result rows, with the columns of the sink.
    - ``shown``: rows of the sink, with ``RETRACTED`` in addition to its columns.
    - ``within``: only windows that end, or are shown to end, in this range (begin, end] are compared. Where the rows decide where windows
      begin and end, those that overlap such ones, or others that do, are compared with them; where keys are forgotten, all triggers of the
      key.
    """
    with _comparing(pipeline, new, shown) as (connection, names):
        found = connection.sql(_COMPARED.format(begin=within[0], end=within[1], **names)).to_arrow_table()
    is_new = found.column("is_new")
    fresh, gone = found.filter(is_new), found.filter(pc.invert(is_new))
    changed, own = new.take(fresh.column("place")), shown.take(gone.column("place"))
    changed = changed.append_column(RETRACTED, pa.repeat(False, len(changed))).select(shown.column_names)
    values = {name: own.column(name) for name in own.column_names if name not in pipeline.aggregates}
    values |= {name: pa.nulls(len(own), new.schema.field(name).type) for name in pipeline.aggregates}
    values |= {"batch": pa.repeat(pa.scalar(batch, pa.int64()), len(own)), RETRACTED: pa.repeat(True, len(own))}
    retracted = pa.table({name: values[name] for name in shown.column_names})
    return Corrections(_with_revisions(changed, fresh.column("revision")), _with_revisions(retracted, gone.column("revision")))


def raised_above_shown(pipeline: Pipeline, new: pa.Table, shown: pa.Table) -> pa.Table:
    """``new`` result rows of a run, with revisions raised above those ``shown``: rebuilt state counts from 0."""
    with _comparing(pipeline, new, shown) as (connection, names):
        found = connection.sql(_RAISED.format(**names)).to_arrow_table()
    revisions = new.column("revision").to_numpy().copy()
    revisions[found.column("place").to_numpy()] += found.column("shift").to_numpy()
    return _with_revisions(new, pa.chunked_array([revisions]))


def superseded(pipeline: Pipeline, shown: pa.Table) -> pa.Array:
    """Places, in ``shown``, of the rows that no longer count: a newer revision takes their place, or they are retracted."""
    with _comparing(pipeline, shown, shown) as (connection, names):
        return connection.sql(_SUPERSEDED.format(**names)).to_arrow_table().column("place").combine_chunks()


def _with_revisions(rows: pa.Table, revisions: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("revision"), "revision", revisions.cast(pa.int64()))


#: For each window in the sink, the row of greatest revision.
_CURRENT = """
current AS (SELECT * FROM shown QUALIFY row_number() OVER (PARTITION BY {of_window} ORDER BY revision DESC) = 1)"""
#: The rows to publish after comparing ``new`` windows with the current ones, in steps:
#: ``movable``, new and current windows whose bounds follow from rows; ``clustered``, these by clusters, in which each overlaps others;
#: ``in_range``, the clusters with a window that ends in the range; ``overlapped``, for a new window without a trigger that takes the place
#: of others, a revision above all that it overlaps, and above their retractions, which have the next one; ``paired``, each new window with
#: the current row of the same window, if either is in the range.
_COMPARED = f"""
WITH {_CURRENT},
movable AS (
    SELECT {{n_of_key}}, n.span_begins AS begins, n.span_ends AS ends, n.ends AS shown_end, n.place, true AS is_new
    FROM new AS n WHERE n.may_move
    UNION ALL
    SELECT {{c_of_key}}, c.span_begins, c.span_ends, c.ends, c.place, false AS is_new FROM current AS c
    WHERE c.may_move AND NOT coalesce(c.retracted, false)
),
starts AS (
    SELECT *, coalesce(begins >= max(ends) OVER (
        PARTITION BY {{of_key}} ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), true) AS is_start FROM movable
),
clustered AS (
    SELECT *, count(*) FILTER (is_start) OVER (PARTITION BY {{of_key}} ORDER BY begins, ends ROWS UNBOUNDED PRECEDING) AS cluster_id
    FROM starts
),
in_range AS (
    SELECT * FROM clustered QUALIFY bool_or(shown_end BETWEEN {{begin}} + 1 AND {{end}}) OVER (PARTITION BY {{of_key}}, cluster_id)
),
overlapped AS (
    SELECT n.place, max(s.revision) + 2 AS revision FROM new AS n JOIN shown AS s
    ON {{s_of_key_of_n}} AND s.begins < n.ends AND n.begins < s.ends WHERE n.may_move AND n.id_trigger IS NULL GROUP BY n.place
),
paired AS (
    SELECT n.place AS new_place, c.place AS shown_place, c.revision, coalesce(c.retracted, false) AS retracted,
        n.place IS NOT NULL AND c.place IS NOT NULL AND NOT ({{n_differs_from_c}}) AS same
    FROM new AS n FULL JOIN current AS c ON {{c_of_window_of_n}}
    WHERE n.ends BETWEEN {{begin}} + 1 AND {{end}} OR c.ends BETWEEN {{begin}} + 1 AND {{end}}
        OR n.place IN (SELECT place FROM in_range WHERE is_new) OR c.place IN (SELECT place FROM in_range WHERE NOT is_new)
)
SELECT new_place IS NOT NULL AS is_new, coalesce(new_place, shown_place) AS place,
    CASE WHEN NOT retracted AND shown_place IS NOT NULL THEN paired.revision + 1
        ELSE coalesce(greatest(paired.revision + 1, overlapped.revision), 0) END AS revision
FROM paired LEFT JOIN overlapped ON overlapped.place = new_place
WHERE CASE WHEN new_place IS NULL THEN NOT retracted WHEN shown_place IS NULL THEN true ELSE retracted OR NOT same END
ORDER BY is_new, place
"""
_SUPERSEDED = f"""
WITH {_CURRENT}
SELECT place FROM shown WHERE place NOT IN (SELECT place FROM current WHERE NOT coalesce(retracted, false)) ORDER BY place
"""
_RAISED = """
WITH before AS (
    SELECT n.place, n.revision, {n_of_window}, max(s.revision) + 1 AS least
    FROM new AS n JOIN shown AS s ON {s_of_window_of_n} GROUP BY ALL
)
SELECT place, greatest(0, max(least - revision) OVER (PARTITION BY {of_window})) AS shift FROM before
"""


@contextmanager
def _comparing(pipeline: Pipeline, new: pa.Table, shown: pa.Table) -> Iterator[tuple[DuckDBPyConnection, Mapping[str, str]]]:
    """A connection to both tables, in which all columns have names of ours, and pieces of SQL over these."""
    import duckdb

    keys = [f"k{n}" for n in range(len(pipeline.keys))]
    of_key, of_window = [*keys, "shows"], [*keys, "shows", "id_start", "id_end", "id_trigger"]

    def equal(one: str, other: str, names: list[str]) -> str:
        return " AND ".join(f"({one}.{name} IS NOT DISTINCT FROM {other}.{name})" for name in names)

    values = [(n, new.schema.field(name).type) for n, name in enumerate(pipeline.aggregates) if name in new.schema.names]
    differ = ["(n.begins IS DISTINCT FROM c.begins)", "(n.ends IS DISTINCT FROM c.ends)"]
    differ += [_differs(f"n.v{n}", f"c.v{n}", floating=pa.types.is_floating(kind)) for n, kind in values]
    names = {
        "of_key": ", ".join(of_key),
        "n_of_key": ", ".join(f"n.{name}" for name in of_key),
        "c_of_key": ", ".join(f"c.{name}" for name in of_key),
        "of_window": ", ".join(of_window),
        "n_of_window": ", ".join(f"n.{name}" for name in of_window),
        "n_differs_from_c": " OR ".join(differ),
    }
    names |= {f"{a}_of_window_of_{b}": equal(a, b, of_window) for a, b in ("cn", "sn")} | {"s_of_key_of_n": equal("s", "n", of_key)}
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        connection.register("new", _named(pipeline, new))
        connection.register("shown", _named(pipeline, shown))
        yield connection, names


def _differs(one: str, other: str, *, floating: bool) -> str:
    if not floating:
        return f"({one} IS DISTINCT FROM {other})"
    near = f"isfinite({one}) AND isfinite({other}) AND abs({one} - {other}) <= {TOLERANCE} * greatest(abs({one}), abs({other}))"
    return f"({one} IS DISTINCT FROM {other} AND NOT coalesce({near}, false))"


def _named(pipeline: Pipeline, rows: pa.Table) -> pa.Table:
    """``rows`` as :func:`_comparing` names their columns, with what identifies the window of each."""

    def among(names: list[str]) -> pa.ChunkedArray:
        return pc.is_in(rows.column("window"), pa.array(names, pa.string()))

    restarts = among([window.name for window in pipeline.windows if window.restarts_triggers])
    moves = among([window.name for window in pipeline.windows if not (window.on_grid or window.follows_policies)])
    begins, ends, trigger = (rows.column(name).cast(pa.int64()) for name in ("window_start", "window_end", "trigger"))
    nothing = pa.scalar(None, pa.int64())
    numbered = pc.is_valid(trigger)
    columns = {f"k{n}": rows.column(name) for n, name in enumerate(pipeline.keys)}
    columns |= {"shows": rows.column("window"), "begins": begins, "ends": ends, "revision": rows.column("revision")}
    columns |= {"id_start": pc.if_else(numbered, nothing, begins), "id_trigger": trigger, "may_move": pc.or_(moves, restarts)}
    columns |= {"id_end": pc.if_else(pc.and_not(numbered, restarts), nothing, ends), "place": pa.array(np.arange(len(rows)))}
    # All triggers of a key that may be forgotten overlap.
    columns |= {"span_begins": pc.if_else(restarts, AXIS_BEGIN, begins), "span_ends": pc.if_else(restarts, AXIS_END, ends)}
    columns |= {f"v{n}": rows.column(name) for n, name in enumerate(pipeline.aggregates) if name in rows.column_names}
    return pa.table(columns | ({"retracted": rows.column(RETRACTED)} if RETRACTED in rows.column_names else {}))


def renumbered(runnable: Runnable, ledger: Ledger, plan: Plan, schema: pa.Schema, changes: Changes) -> Changes:
    """``changes`` of the sink by the run of ``plan``, whose rows have the columns of ``schema``; reads nothing where none comes again."""
    if not changes.files or not is_table(runnable.sink_path):
        return changes
    table, pipeline = newest(runnable.sink_path), runnable.pipeline
    has_revisions, backfilled = any(file.get("max.revision") != 0 for file in files_of(table)), ledger.totals.backfills > 0
    # A backfill may have published open windows from rows that the state does not count.
    revises = pipeline.emit == "revise" and (has_revisions or backfilled)
    filling = [window.name for window in pipeline.windows if window.fills_gaps] if backfilled else []
    if not has_revisions and not revises and not filling:
        return changes
    own = [*pipeline.keys, "window", "window_start", "window_end", "trigger", "revision"]
    types = {name: schema.field(name).type for name in own}
    new = pa.concat_tables([_empty(types), *(pa.Table.from_batches([rows]) for rows in read_files(runnable.sink_path, changes.files, own))])
    if not len(new):
        return changes
    span, ends = pc.min_max(int64_of(new.column("window_end").combine_chunks())).as_py(), ends_in_sql(timed=not pipeline.time.integer_axis)
    # The number of a trigger alone identifies a window with policies.
    same = "true" if any(window.follows_policies for window in pipeline.windows) else f"{ends} BETWEEN {span['min']} AND {span['max']}"
    wanted = []
    if has_revisions and RETRACTED in (field.name for field in table.schema().fields):
        # Triggers that were retracted may come again, and so may empty windows between the first and the last event of a key.
        wanted.append(f"(revision > 0 AND {RETRACTED} AND {same})")
    if revises:
        # Other windows that are closed never come back.
        wanted.append(same if plan.emitted is None else f"({ends} >= {plan.emitted} AND {same})")
    if filling:
        # When a key comes again, a run emits the empty windows since its last event; a backfill may have counted quarantined rows there.
        wanted.append(f"(window IN ({', '.join(map(sql_text, filling))}) AND {same})")
    if not wanted:
        return changes
    shown = pa.concat_tables([_empty(types), *queried(table, types, " OR ".join(wanted), {name: name for name in types})])
    if not len(shown):
        return changes
    revisions = int64_of(raised_above_shown(pipeline, new, shown).column("revision").combine_chunks())
    shifted = revisions != int64_of(new.column("revision").combine_chunks())
    going = {"adds": list[DataFile](), "kept": list[DataFile]()}
    first = 0
    for role, files in (("adds", changes.adds), ("kept", changes.kept)):
        for file in files:
            part = slice(first, first := first + file.rows)
            going[role] += _rewritten(runnable, plan, file, pa.array(revisions[part])) if shifted[part].any() else [file]
    return replace(changes, adds=tuple(going["adds"]), kept=tuple(going["kept"]))


def _empty(types: dict[str, pa.DataType]) -> pa.Table:
    return pa.schema(list(types.items())).empty_table()


def _rewritten(runnable: Runnable, plan: Plan, file: DataFile, revisions: pa.Array) -> tuple[DataFile, ...]:
    """The rows of ``file`` with these ``revisions``, in a file of their own; removes the old one."""
    rows = pa.Table.from_batches(list(read_files(runnable.sink_path, (file,))))
    place = rows.schema.get_field_index("revision")
    rows = rows.set_column(place, rows.schema.field(place), revisions)
    files = write_files(runnable.sink_path, rows.schema, [rows], batch=plan.batch, attempt=plan.attempt)
    remove(runnable.sink_path, [file])
    return files
