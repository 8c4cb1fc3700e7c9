"""Folders of files on Spark: the rows that this process reads, by the task of a small batch and by Spark's own reader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.test_folders import FORMATS, Pipe
from windowmill.jobs.sources.plain_rows import PlainRows

pytestmark = pytest.mark.spark
ROWS = [[("a", 10 * n, None if n % 7 == 0 else n), ("b", 10 * n + 5, n)] for n in range(40)]


def results(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> dict[Any, Any]:
    for number, rows in enumerate(ROWS):
        pipe.land(f"site={number % 3}/{number:02}", *rows, mtime=number)
        if number in (20, 39):
            assert sum(pipe.run(capsys)) in (42, 38)
    return pipe.results()


@pytest.mark.parametrize("format_", FORMATS)
def test_spark_gives_what_this_process_gives(spark, tmp_path, capsys, monkeypatch, format_):
    changes = {"aggregates": {"n": {"count": "*"}, "total": {"sum": "v", "where": "site > 0"}}}
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    here = results(Pipe(tmp_path / "here", format_, **changes), capsys)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    by_task = results(Pipe(tmp_path / "task", format_, **changes), capsys)
    monkeypatch.setattr(PlainRows, "of", classmethod(lambda *_: None))
    by_reader = results(Pipe(tmp_path / "reader", format_, **changes), capsys)
    assert here == by_task == by_reader
    assert len(here) == 12
