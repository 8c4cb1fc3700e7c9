"""Sinks named by URIs: the pipeline's own tables, lease and pages are where the URI points, nothing in the working directory."""

from __future__ import annotations

from tests.spark.harness import Bench, differences, events
from windowmill.jobs.report import write_report

ROWS = events(5, 200)


def test_a_sink_named_by_a_file_uri(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    bench = Bench(tmp_path, {"sink": {"path": f"file://{tmp_path}/sink"}})
    for rows in (ROWS[:100], ROWS[100:]):
        bench.land(rows)
        bench.run()
    write_report(bench.pipeline)
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []
    own = tmp_path / "sink.windowmill"
    assert {".lease", "ledger", "state", "quality", "docs", "report.html"} <= {path.name for path in own.iterdir()}
    assert (own / "docs" / "index.html").is_file()
    assert list(work.iterdir()) == []


def test_a_page_that_cannot_be_written_does_not_fail_its_batch(tmp_path):
    bench = Bench(tmp_path)
    (tmp_path / "sink.windowmill").mkdir()
    (tmp_path / "sink.windowmill" / "docs").write_text("in the way")
    bench.land(ROWS)
    told = bench.run()
    assert [done.outcome.verdict for done in told] == ["passed"]
