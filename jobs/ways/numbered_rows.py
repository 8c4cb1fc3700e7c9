"""The new rows of a batch on Spark, with their place in the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import slice_passes as passes
from windowmill.windowing.columnar.log import NUMBER_OF, WATERMARK_OF
from windowmill.windowing.columnar.slices import CLOSED, LATE, TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.input import Input
    from windowmill.jobs.ways.lateness_on_spark import Survey
    from windowmill.windowing.columnar.slices import Reading


@dataclass(frozen=True)
class NumberedRows:
    """New rows and their survey; ``rows`` are the rows as ``arrived``, with a number in order of arrival, ``CLOSED`` and ``LATE``."""

    arrived: DataFrame
    survey: Survey
    rows: DataFrame

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: Input) -> NumberedRows:
        """Survey the rows in one Spark job."""
        survey = lateness.survey(arrived, batch)
        numbered = lateness.numbered(lateness.with_watermark_at_arrival(arrived, survey, batch), survey, batch.batch)
        watermark = F.col(WATERMARK_OF)
        marks = {CLOSED: watermark - F.lit(batch.lateness), LATE: F.col(TIME) < watermark}
        return cls(arrived, survey, numbered.withColumns(marks))

    def usable(self) -> DataFrame:
        """The rows without a quarantine reason."""
        return self.rows.where(F.col(REASON).isNull())

    def read_by(self, stage: Reading) -> DataFrame:
        """The usable rows with the columns that ``stage`` reads: those of its new rows."""
        own = [F.col(name) for name in (TIME, NUMBER_OF, CLOSED, LATE)]
        return self.usable().select(*passes.inputs(self.rows, stage), *own)
