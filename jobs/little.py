"""A little batch, worked on in this process: Spark reads the new rows in one job, the kernels do the rest here.

Starting jobs and Python workers takes Spark longer than a few thousand rows take the kernels. What comes to this process is limited by
what the logs of source and state tell before anything is read: ``MOST_BYTES`` and ``MOST_ROWS`` of new files, ``MOST_STATE_BYTES`` and
``MOST_STATE_ROWS`` of state files, or where nodes are looked up ``MOST_SEARCHED_BYTES`` of files and ``MOST_STATE_ROWS`` found in them;
and by ``MOST_RESULTS``, reckoned before windows are computed. Wide partials lower these (:func:`most`). Beyond any of them Spark does it
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windowmill.jobs import stages
from windowmill.jobs.sources.base import AddedFile
from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.windowing.axis import Grid
from windowmill.windowing.columnar import slices
from windowmill.windowing.columnar.rows import key_codes
from windowmill.windowing.columnar.slices import SLICE, TIME, Combined, SliceStage, WindowStage
from windowmill.windowing.kernels.layout import Layout

#: New files up to which a batch is little, by their size and the rows that the log tells of.
MOST_BYTES, MOST_ROWS = 32 << 20, 200_000
#: State files, of those that may hold what the batch needs, up to which it is.
MOST_STATE_BYTES, MOST_STATE_ROWS = 64 << 20, 1_000_000
#: State files in which nodes are looked up, up to which it is: little of them is read, since a level's rows lie together. A file of
#: 68 MB (1.4 M rows) took 0.03 s on two cores, and 0.07 s with its levels mixed.
MOST_SEARCHED_BYTES = 1 << 30
#: Result rows up to which it is, reckoned as every key having a row for every window end.
MOST_RESULTS = 500_000
#: Numbers of eight bytes in the partials of any of these.
MOST_NUMBERS = 32 << 20


def most(limit: int, layout: Layout) -> int:
    """Rows up to ``limit``, but fewer of wide ones: a histogram's hundreds of counts take little room in a file and much in memory."""
    return min(limit, MOST_NUMBERS // max(1, sum(layout.widths())))


def is_little(files: Sequence[AddedFile], layout: Layout) -> bool:
    """Whether the rows of ``files`` may come to this process; not where the log does not tell how many there are."""
    rows = sum(MOST_ROWS + 1 if file.rows is None else file.rows for file in files)
    return rows <= most(MOST_ROWS, layout) and sum(file.size_bytes for file in files) <= MOST_BYTES


def collect(rows: DataFrame, stage: SliceStage) -> pa.Table:
    """What lifting needs of ``rows``, unusable ones among them, in the order of their arrival."""
    chosen = rows.select(FILE, ROW, REASON, TIME, *stages.inputs(rows, stage, where=F.col(REASON).isNull()))
    return chosen.toArrow().sort_by([(FILE, "ascending"), (ROW, "ascending")])


def fits(rows: pa.Table | None, restored: pa.Table | None, stage: WindowStage) -> bool:
    """Whether the windows of these rows and slices may be computed here."""
    tables = [table for table in (rows, restored) if table is not None and table.num_rows]
    if not tables:
        return True
    times = [pc.min_max(table.column(name)) for table, name in ((rows, TIME), (restored, SLICE)) if table is not None and table.num_rows]
    lows = [low for span in times if (low := span["min"].as_py()) is not None]
    highs = [high for span in times if (high := span["max"].as_py()) is not None]
    if not lows:
        return True
    keys = [pa.chunked_array([chunk for table in tables for chunk in table.column(key).chunks]) for key in stage.slices.keys]
    _, n_keys = key_codes(keys, sum(table.num_rows for table in tables))
    ends = sum(_ends(grid, max(stage.after, min(lows)), stage.through, max(highs)) for _, grid in stage.grids)
    return n_keys * ends <= most(MOST_RESULTS, stage.slices.layout)


def _ends(grid: Grid, after: int, through: int, last: int) -> int:
    return grid.count_ends(after, min(through, grid.last_end_holding(last)))


def work(rows: pa.Table | None, restored: pa.Table | None, stage: WindowStage) -> Iterator[Combined]:
    """What judged ``rows`` and ``restored`` slices come to; rows with a reason are left out."""
    parts: list[pa.Table] = []
    if restored is not None:
        parts += slices.packed(stage.slices, restored.combine_chunks().to_batches(), 0)
    if rows is not None:
        usable = rows.filter(pc.is_null(rows.column(REASON))).drop_columns([FILE, ROW, REASON])
        parts += slices.lifted(stage.slices, usable.combine_chunks().to_batches(), len(parts))
    if not parts:
        return
    packed = pa.concat_tables(parts)
    codes, _ = key_codes([packed.column(key) for key in stage.slices.keys], packed.num_rows)
    # By key, and of a key as they are: the earlier part has the lower place.
    ordered = packed.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
    yield from slices.combined(stage, ordered.to_batches())


def set_aside(rows: DataFrame, judged: pa.Table) -> DataFrame:
    """Of ``rows`` those that have a reason as ``judged`` has it."""
    refused = judged.filter(pc.is_valid(judged.column(REASON))).select([FILE, ROW, REASON])
    return rows.drop(REASON).join(F.broadcast(rows.sparkSession.createDataFrame(refused)), [FILE, ROW])
