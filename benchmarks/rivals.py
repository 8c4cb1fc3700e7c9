"""Spark's own ways to keep a Delta table of windows current: Structured Streaming, and recomputing what a run completed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.pipelines import MINUTE_US, Growing
from benchmarks.spark_ways import session
from windowmill.jobs.batch.progress import CommittedBatch
from windowmill.windowing.axis import from_us

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

DAY_US = 1_440 * MINUTE_US
COUNTS = {"n": {"count": "v"}, "top": {"max": "v"}, "mean": {"mean": "v"}}
SPARK_COUNTS = ("count(v) AS n", "max(v) AS top", "avg(v) AS mean")
LAST, EVERY = 100, 10


class Rival(ABC):
    """Spark's own way to keep a Delta table of the windows of ``pipeline``.

    Attributes
    ----------
    label
        Name of the kind of window, and of Spark's way after a colon.
    window
        The window as the spec has it.
    aggregates
        Aggregates as the spec has them.
    minutes
        Minutes of events in a batch.
    compared
        Columns in which its rows and windowmill's are equal but for rounding.
    least
        How many times as long as windowmill it takes at least.
    """

    label: ClassVar[str]
    window: ClassVar[dict[str, Any]]
    aggregates: ClassVar[dict[str, Any]] = COUNTS
    minutes: ClassVar[int] = 20
    compared: ClassVar[tuple[str, ...]] = ("mean",)
    least: ClassVar[float] = 1

    def __init__(self, pipeline: Growing) -> None:
        self.pipeline, self.path = pipeline, str(pipeline.folder / "rival")

    @abstractmethod
    def take(self, done: CommittedBatch | None) -> None:
        """Bring the table up to date after a run of the pipeline, or after the history."""

    @abstractmethod
    def rows(self) -> DataFrame:
        """The table's rows with the columns k, window_end (µs), n, top and those ``compared``."""

    def events(self, begin: int, end: int) -> DataFrame:
        """The source's events with begin ≤ t < end, in microseconds."""
        within = (F.col("t") >= F.lit(from_us(begin))) & (F.col("t") < F.lit(from_us(end)))
        return session().read.format("delta").load(self.pipeline.source).where(within)


class Streaming(Rival):
    """Structured Streaming over what is new in the source, state in RocksDB; first the history."""

    def take(self, done: CommittedBatch | None) -> None:
        del done
        events = session().readStream.format("delta").load(self.pipeline.source).withWatermark("t", "1 minute")
        writer = self.windows(events).writeStream.outputMode("append").format("delta")
        writer = writer.option("checkpointLocation", f"{self.path}.checkpoint")
        writer.trigger(availableNow=True).start(self.path).awaitTermination()

    @abstractmethod
    def windows(self, events: DataFrame) -> DataFrame:
        """Result rows over the stream."""


class StreamedSessions(Streaming):
    """Sessions by ``session_window``."""

    label = "sessions: Structured Streaming"
    window: ClassVar[dict[str, Any]] = {"name": "w", "type": "session", "gap": "1 minute"}

    def windows(self, events: DataFrame) -> DataFrame:
        return events.groupBy("k", F.session_window("t", "1 minute").alias("window")).agg(*map(F.expr, SPARK_COUNTS))

    def rows(self) -> DataFrame:
        return session().read.format("delta").load(self.path).withColumn("window_end", F.unix_micros("window.end"))


class LastTuples(StatefulProcessor):
    """The last ``LAST`` tuples of a key as an array in its state, and a row for every ``EVERY``-th tuple."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("last", "count long, values array<double>")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        del timerValues
        count, values = self._state.get() or (0, [])
        arrived = pd.concat(list(rows)).sort_values("t")
        times, held = arrived["t"].to_numpy(), np.concatenate((np.asarray(values, np.float64), arrived["v"].to_numpy()))
        before, out = len(values), []
        for index, time in enumerate(times, 1):
            if (count + index) % EVERY == 0:
                window = held[max(0, before + index - LAST) : before + index]
                out.append((key[0], time, len(window), window.max(), window.mean()))
        self._state.update((count + len(times), held[-LAST:].tolist()))
        yield pd.DataFrame(out, columns=["k", "t", "n", "top", "mean"])

    def close(self) -> None:
        pass


class StreamedTuples(Streaming):
    """The last tuples of a key, in a processor of one's own."""

    label = f"the last {LAST} tuples, every {EVERY}: transformWithState"
    window: ClassVar[dict[str, Any]] = {"name": "w", "type": "sliding", "evict": {"count": LAST}, "trigger": {"count": EVERY}}

    def windows(self, events: DataFrame) -> DataFrame:
        schema = "k long, t timestamp, n long, top double, mean double"
        by_key = events.select("k", "t", "v").groupBy("k")
        return by_key.transformWithStateInPandas(LastTuples(), outputStructType=schema, outputMode="Append", timeMode="None")

    def rows(self) -> DataFrame:
        # A window with policies ends at the time of the tuple that fired it.
        return session().read.format("delta").load(self.path).withColumn("window_end", F.unix_micros("t"))


class Recomputing(Rival):
    """Spark recomputing the windows that a run completed, each from the events that it holds; the history's windows are not its business.

    Attributes
    ----------
    computed
        The aggregates in SQL.
    """

    least = 5
    computed: ClassVar[tuple[str, ...]] = SPARK_COUNTS

    def take(self, done: CommittedBatch | None) -> None:
        if done is None:
            return
        assert done.plan.emitted is not None
        assert done.outcome.emitted is not None
        windows = [
            self.events(begin, end).groupBy("k").agg(*map(F.expr, self.computed)).withColumn("window_end", F.lit(end))
            for begin, end in self.bounds(done.plan.emitted, done.outcome.emitted)
        ]
        reduce(DataFrame.unionByName, windows).write.format("delta").mode("append").save(self.path)

    @abstractmethod
    def bounds(self, after: int, through: int) -> list[tuple[int, int]]:
        """Start and end of the windows that end in (``after``, ``through``], in microseconds."""

    def rows(self) -> DataFrame:
        return session().read.format("delta").load(self.path)


class RecomputedWeeks(Recomputing):
    """A quantile of weeks that overlap."""

    label = "p95 of the last 7 days, every 10 minutes: Spark recomputing"
    window: ClassVar[dict[str, Any]] = {"name": "w", "type": "hopping", "size": "7 days", "hop": "10 minutes"}
    aggregates: ClassVar[dict[str, Any]] = COUNTS | {"p95": {"quantile": {"column": "v", "q": 0.95}}}
    computed = (*SPARK_COUNTS, "percentile_disc(0.95) WITHIN GROUP (ORDER BY v) AS p95")

    def bounds(self, after: int, through: int) -> list[tuple[int, int]]:
        hop = 10 * MINUTE_US
        return [(end - 7 * DAY_US, end) for end in range((after // hop + 1) * hop, through + 1, hop)]


class RecomputedDays(Recomputing):
    """Windows by a calendar, which Spark's ``window`` does not have."""

    label = "the last 30 days of New York, every hour: Spark recomputing"
    window: ClassVar[dict[str, Any]] = {"name": "w", "type": "hopping", "size": "30 days", "hop": "1 hour", "timezone": "America/New_York"}
    minutes = 120

    def bounds(self, after: int, through: int) -> list[tuple[int, int]]:
        zone = "America/New_York"
        first, last = (pd.Timestamp(end, unit="us", tz=zone) - pd.DateOffset(days=days) for end, days in ((after, 31), (through, 29)))
        starts = pd.date_range(first.tz_convert("UTC").ceil("h"), last.tz_convert("UTC"), freq="h").tz_convert(zone)
        bounds = [(start.value // 1_000, (start + pd.DateOffset(days=30)).value // 1_000) for start in starts]
        return [(start, end) for start, end in bounds if after < end <= through]


RIVALS: tuple[type[Rival], ...] = (StreamedSessions, StreamedTuples, RecomputedWeeks, RecomputedDays)
