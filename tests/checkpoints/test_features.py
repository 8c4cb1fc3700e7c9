"""Which table features are read and written, and by whom."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windowmill.checkpoints.delta_tables import READABLE, Features, check_appendable, check_writable_features, delta_rs_can_write
from windowmill.windowing.errors import ForeignWriteError, SinkError


@pytest.fixture
def table(tmp_path) -> str:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    return str(tmp_path / "t")


def _get(table: str, *features: str) -> None:
    entry = Path(table) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            both = [feature for feature in features if feature in READABLE]
            action["protocol"] = {"minReaderVersion": 3 if both else 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", *features]}
            action["protocol"] |= {"readerFeatures": both} if both else {}
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_a_plain_table_and_one_that_is_not_there_are_written_by_delta_rs(table):
    assert delta_rs_can_write(table)
    assert delta_rs_can_write(table + "_not_there")
    for check in (check_writable_features, check_appendable):
        check(table)
        check(table + "_not_there")


@pytest.mark.parametrize(
    "feature",
    ["clustering", "rowTracking", "domainMetadata", "inCommitTimestamp", "icebergCompatV2", "typeWidening", "allowColumnDefaults"],
)
def test_what_delta_rs_does_not_write_spark_does(table, feature):
    _get(table, feature)
    assert not delta_rs_can_write(table)
    check_writable_features(table)
    with pytest.raises(ForeignWriteError, match=f"got the table feature {feature}"):
        check_appendable(table)


def test_what_is_called_writable_by_delta_rs_is(table):
    _get(table, "invariants", "changeDataFeed")
    assert delta_rs_can_write(table)
    write_deltalake(table, pa.table({"a": [2]}), mode="append")
    assert DeltaTable(table).version() == 1


def test_columns_mapped_to_other_names_are_spark_s(table):
    entry = Path(table) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "a"}
            action["metaData"] |= {"configuration": {"delta.columnMapping.mode": "name"}, "schemaString": json.dumps(schema)}
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    mapped = Features.of(DeltaTable(table))
    assert mapped.beyond_delta_rs == ["columnMapping"]
    assert mapped.unreadable == mapped.unwritable == []


def test_what_nobody_writes_is_one_error_with_its_name(table):
    _get(table, "writtenByMoonlight")
    with pytest.raises(SinkError, match="writtenByMoonlight"):
        check_writable_features(table)
