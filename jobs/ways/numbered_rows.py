"""The new rows of a batch on Spark, with their place in the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.sources.rows import event_end
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import slice_passes as passes
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.input import Input
    from windowmill.jobs.ways.lateness_on_spark import BlockSurvey
    from windowmill.windowing.columnar.slices import Reading


@dataclass(frozen=True)
class NumberedRows:
    """New rows of ``batch`` as they ``arrived``, and their survey."""

    arrived: DataFrame
    survey: BlockSurvey
    batch: Input

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: Input, *, every: bool = False) -> NumberedRows:
        """Survey the rows in one Spark job; ``every`` makes the watermark at each row's arrival known, as of :func:`.survey`."""
        return cls(arrived, lateness.survey(arrived, batch, every=every), batch)

    @cached_property
    def rows(self) -> DataFrame:
        """The rows with end of event, number in order of arrival, watermark at arrival, ``CLOSED`` and ``LATE``."""
        batch, survey = self.batch, self.survey
        ended = self.arrived.withColumn(UNTIL_OF, event_end(batch.pipeline, batch.columns))
        numbered = lateness.numbered(lateness.with_watermark_at_arrival(ended, survey, batch), survey)
        watermark = F.col(WATERMARK_OF)
        return numbered.withColumns({CLOSED: watermark - F.lit(batch.lateness), LATE: F.col(TIME) < watermark})

    def usable(self) -> DataFrame:
        """The rows without a quarantine reason."""
        return self.rows.where(F.col(REASON).isNull())

    def read_by(self, stage: Reading, schema: pa.Schema) -> DataFrame:
        """The usable rows with the columns that ``stage`` reads, and those columns of ``schema`` that the source does not have."""
        read = passes.inputs(self.rows, stage)
        own = [F.col(name) for name in (TIME, UNTIL_OF, NUMBER_OF, WATERMARK_OF, CLOSED, LATE) if name in schema.names]
        return self.usable().select(*read, *own)
