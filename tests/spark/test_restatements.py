"""Restatements that Spark computes, of sources with deletion vectors and renamed columns, into a sink that only Spark writes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.jobs.test_corrected_files import INSTANT_UNUSED, OLD, Form, landed, removed, shown
from tests.jobs.test_restatements import Corrected, bench_of
from tests.spark.harness import cut, differences, events, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.layouts import limits

pytestmark = pytest.mark.spark
DELETED = "id = 'e00020' or id = 'e00020x'"


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")


@pytest.mark.parametrize("kind", ["mixed", "policies"])
def test_tasks_compute_what_deletion_vectors_and_renamed_columns_leave(spark, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(limits, "MAX_ROWS", 0)
    bench, rows = bench_of(tmp_path, kind), events(1, 300)
    parts = cut(rows, 1, 3)
    bench.land(parts[0])
    source = f"delta.`{bench.source}`"
    spark.sql(f"ALTER TABLE {source} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    bench.land(parts[1])
    bench.run()
    spark.sql(f"DELETE FROM {source} WHERE {DELETED}")
    spark.sql(f"UPDATE {source} SET i = coalesce(i, 0) + 100 WHERE id = 'e00031' OR id = 'e00031x'")
    assert any((tmp_path / "source").glob("deletion_vector*.bin"))
    [done] = bench.run()
    assert done.plan.action == "restate"
    assert done.outcome.compute["engine"] == "spark"
    assert done.restated.windows > 0
    assert differences(bench.latest(), truth(spark, bench)) == []
    bench.land(parts[2])
    bench.run()
    assert differences(bench.latest(), truth(spark, bench)) == []


def truth(spark: Any, bench: Corrected) -> list[dict[str, Any]]:
    """As :meth:`.Corrected.truth`, of a source that only Spark reads."""
    rows = spark.read.format("delta").load(bench.source).toArrow()
    return bench.truth(pa.table(rows))


@pytest.mark.covers("S4")
@pytest.mark.usefixtures("spark")
def test_rows_that_arrow_would_read_otherwise_are_read_by_spark(tmp_path):
    form = Form(unused=OLD, aggregates={"until": {"max": "u"}}, parted="k", **INSTANT_UNUSED)
    table, bench, rows, files = landed(tmp_path, form)
    until = {row["until"] for row in bench.rows()}
    assert loop.restate(bench.pipeline, quiet(), ends=(None, None)) == []
    corrected = [rows[0] | {"v": 100}, *rows[2:]]
    table.commit(*map(removed, files), *({"add": each} for each in table.files(corrected)), operation="MERGE")
    [done] = bench.run()
    assert (done.restated.windows, shown(bench)) == (2, [("sesame", 60, 104), ("sesame", 70, 8)])
    loop.restate(bench.pipeline, quiet(), late=True)
    assert (shown(bench), bench.quarantine()) == ([("b", 20, 2_000), ("sesame", 60, 1_104), ("sesame", 70, 8)], [])
    assert {row["until"] for row in bench.rows() if row["until"] is not None} == until


def test_a_sink_with_constraints_is_widened_and_restated(spark, tmp_path):
    bench = bench_of(tmp_path, "mixed")
    bench.land(events(1, 150))
    bench.run()
    spark.sql(f"ALTER TABLE delta.`{bench.sink}` ADD CONSTRAINT counted CHECK (n IS NULL OR n > 0)")
    bench.delete(DELETED)
    [done] = bench.run(accepted=Acceptance(changes=True))
    assert done.restated.windows > 0
    assert differences(bench.latest(), bench.truth()) == []


@pytest.mark.usefixtures("spark")
def test_a_filter_that_only_spark_evaluates_hides_no_correction(tmp_path):
    source = {"path": str(tmp_path / "source"), "changes": "restate", "filter": "soundex(left(id, 1)) = 'E000'"}
    bench = bench_of(tmp_path, "mixed", source=source)
    bench.land(events(1, 150))
    bench.run()
    bench.delete(DELETED)
    [done] = bench.run()
    assert done.restated.windows > 0
    assert differences(bench.latest(), bench.truth()) == []
