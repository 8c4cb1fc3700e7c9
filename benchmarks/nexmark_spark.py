"""The queries of Nexmark by ``aggregate``, on the session that windowmill configures; from the pipelines of ``examples/nexmark``."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.spark_ways import Frame
from examples.nexmark.bids import SCHEMA
from examples.nexmark.queries import QUERIES
from windowmill import aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Answer(Frame):
    """A query over the bids of the task: its pipeline's windows, and what its SQL makes of them."""

    def __init__(self, task: dict[str, Any], *, name: str) -> None:
        super().__init__(task)
        self._query = QUERIES[name]

    @cached_property
    def events(self) -> DataFrame:
        return self._spark.read.schema(from_arrow_schema(SCHEMA)).parquet(self._task["bids"])

    def rows(self) -> DataFrame:
        return self._query.changelog(aggregate(self.events, self._query.pipeline("/warehouse")))


WAYS = {f"windowmill {name}": partial(Answer, name=name) for name in QUERIES}
