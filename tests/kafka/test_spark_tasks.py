"""Topics that Spark's tasks read give what this process reads of them."""

from __future__ import annotations

import pytest

from tests.kafka.test_topics import ODD, Pipe, message
from windowmill.jobs.cli import main
from windowmill.jobs.layouts import limits
from windowmill.jobs.sources import kafka

pytestmark = [pytest.mark.thorough, pytest.mark.spark]


@pytest.mark.parametrize("by_many_tasks", [False, True], ids=["one task", "many tasks"])
def test_spark_reads_what_this_process_reads(spark, tmp_path, broker, capsys, monkeypatch, by_many_tasks):
    if by_many_tasks:
        monkeypatch.setattr(limits, "MAX_ROWS", 0)
        monkeypatch.setattr(kafka, "_MESSAGES_OF_A_TASK", 2)
    topic, pipes = broker.topic(2), []
    for name in ("spark", "local"):
        (folder := tmp_path / name).mkdir()
        pipes.append(Pipe(folder, broker, topic, maxOffsetsPerTrigger="12"))
    windows = [{"name": "hourly", "type": "tumbling", "size": "1 hour"}, {"name": "last", "type": "sliding", "evict": {"count": 3}}]
    tables = []
    for number in range(2):
        for partition in (0, 1):
            rows = [message("ab"[minute % 2], 100 * number + minute, minute) for minute in range(partition, 90, 10)]
            broker.send(topic, *rows, *ODD.values(), partition=partition)
        for pipe, compute in zip(pipes, ("spark", "local"), strict=True):
            if compute == "local":
                monkeypatch.undo()
            monkeypatch.setenv("WINDOWMILL_COMPUTE", compute)
            pipe.write(windows=windows, time={"column": "t", "disorder": "2 hours", "tie_break": ["kafka_partition", "kafka_offset"]})
            read = pipe.run(capsys)
            assert sum(read) == 36
            tables.append((pipe.rows(), sorted(map(str, pipe.quarantined()))))
        assert tables[-2] == tables[-1]
    assert len(tables[-1][0]) > 10
    assert {reason for reason, _ in pipes[0].quarantined()} == {"bad_row"}
    if by_many_tasks:
        return
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    before = pipes[0].rows()
    pipes[0].told(capsys, "backfill", "--from", "2024-01-01T01:00", "--to", "2024-01-01T03:00")
    assert [row[:-1] for row in pipes[0].rows()] == [row[:-1] for row in before]
    assert main(["verify", str(pipes[0].path), "--sample", "20"]) == 0
