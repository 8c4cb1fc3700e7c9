"""Corrections of tables in every form that files, columns and logs have: each is read as runs read it. No JVM.

The tables are written by hand, entry by entry of their logs, as other writers leave them.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.latest import latest
from tests.spark.harness import Bench, quiet
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop, restating
from windowmill.windowing.errors import LocalComputeError

Row = dict[str, Any]
MINUTE = 60_000_000
BASE = 1_709_287_200_000_000
LOG_KINDS = {"k": "string", "t": "timestamp", "x": "long", "v": "long", "u": "string"}
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("x", pa.int64()), ("v", pa.int64()), ("u", pa.string())])
FOREVER, OLD = (datetime(year, 12, 31, tzinfo=UTC) for year in (9999, 1500))
#: Alphabets of Python's base 85, and of that of deletion vectors.
PYTHON85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
ZEROMQ85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def deleted(*rows: int) -> dict[str, Any]:
    """A deletion vector within a log entry."""
    bitmap = struct.pack("<IIHHI", 12_346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *sorted(rows))
    data = struct.pack("<iqi", 1_681_511_377, 1, 0) + bitmap
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).decode().translate(str.maketrans(PYTHON85, ZEROMQ85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


@dataclass
class Form:
    """How a table is written: the keys of its rows, what its unused column holds, and types of columns, where they are other ones."""

    keys: tuple[Any, Any] = ("sesame", "b")
    unused: Any = "a"
    #: Types in the log, and metadata; the columns of files, of early ones too.
    kinds: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA
    early: pa.Schema | None = None
    #: Names of table features.
    features: tuple[str, ...] = ()
    parted: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    aggregates: dict[str, Any] = field(default_factory=dict)
    #: Whether this process can write its rows to quarantine.
    quarantines: bool = True
    #: Changes the columns of the log before corrections.
    later: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None


def changed(**fields: pa.DataType) -> pa.Schema:
    """The columns of files with other types of some."""
    return pa.schema([(each.name, fields.get(each.name, each.type)) for each in SCHEMA])


def mapped(fields: list[dict[str, Any]], new: str | None) -> list[dict[str, Any]]:
    """The columns with the unused one under a ``new`` name, or without it."""
    *others, unused = fields
    return others if new is None else [*others, unused | {"name": new}]


CHAR = {"__CHAR_VARCHAR_TYPE_STRING": "char(8)"}
MAPPING = {name: {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": name} for at, name in enumerate(SCHEMA.names, 1)}
INT96 = {"use_deprecated_int96_timestamps": True, "store_schema": False}
INSTANT_UNUSED = {"kinds": {"u": "timestamp"}, "schema": changed(u=pa.timestamp("us", "UTC")), "options": INT96}
STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
FORMS = {
    "plain": Form(),
    "INT96": Form(options=INT96),
    "INT96 of the end of time, used": Form(unused=FOREVER, aggregates={"until": {"max": "u"}}, **INSTANT_UNUSED),
    "INT96 of the end of time, unused": Form(unused=FOREVER, **INSTANT_UNUSED),
    "INT96 of the Julian calendar, unused": Form(quarantines=False, unused=OLD, **INSTANT_UNUSED),
    "a key of fixed length": Form(metadata={"k": CHAR}),
    "an unused text of fixed length": Form(metadata={"u": CHAR}),
    "a struct, unused": Form(quarantines=False, unused={"a": 1}, kinds={"u": STRUCT}, schema=changed(u=pa.struct([("a", pa.int64())]))),
    "a time of day, unused": Form(quarantines=False, unused=5, kinds={"u": "long"}, schema=changed(u=pa.uint64())),
    "keys of bytes": Form(keys=(b"\x00\xff", b"\xed\xa0"), kinds={"k": "binary"}, schema=changed(k=pa.binary())),
    "parted": Form(parted="k"),
    "parted, unused": Form(parted="u"),
    "widened": Form(features=("typeWidening", "vacuumProtocolCheck"), early=changed(v=pa.int32())),
    "dropped": Form(features=("columnMapping",), metadata=MAPPING, later=lambda fields: mapped(fields, None)),
    "renamed": Form(features=("columnMapping",), metadata=MAPPING, later=lambda fields: mapped(fields, "other")),
}


class Table:
    """A Delta table of a form."""

    def __init__(self, place: Path, form: Form) -> None:
        self.place, self.form, self.version, self.written = place, form, -1, 0
        (place / "_delta_log").mkdir(parents=True)
        self.fields = [
            {"name": name, "type": form.kinds.get(name, kind), "nullable": True, "metadata": form.metadata.get(name, {})}
            for name, kind in LOG_KINDS.items()
        ]
        protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
        if form.features:
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": sorted(form.features)}
            protocol["writerFeatures"] = sorted(form.features)
        self.commit({"protocol": protocol}, self.metadata())

    def metadata(self) -> dict[str, Any]:
        of_table = {"id": "6a3c1d0e-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}}}
        of_table["schemaString"] = json.dumps({"type": "struct", "fields": self.fields})
        of_table["partitionColumns"] = [self.form.parted] if self.form.parted else []
        of_table["configuration"] = {"delta.columnMapping.mode": "name"} if "columnMapping" in self.form.features else {}
        return {"metaData": of_table}

    def commit(self, *actions: dict[str, Any], operation: str = "WRITE") -> None:
        self.version += 1
        entry = self.place / "_delta_log" / f"{self.version:020d}.json"
        entry.write_text("\n".join(map(json.dumps, [{"commitInfo": {"operation": operation, "timestamp": self.version}}, *actions])))

    def file(self, rows: Sequence[Row], schema: pa.Schema | None = None, **more: pa.Array) -> dict[str, Any]:
        """Write a file of rows, all of one partition; returns its entry."""
        parted, name = self.form.parted, f"f{self.written}.parquet"
        self.written += 1
        table = pa.Table.from_pylist(list(rows), schema=schema or self.form.schema)
        value = None if parted is None else str(rows[0][parted])
        table = table if parted is None else table.drop_columns([parted])
        for column, values in more.items():
            table = table.append_column(column, values)
        pq.write_table(table, self.place / name, **self.form.options)
        entry = {"path": name, "size": (self.place / name).stat().st_size, "dataChange": True, "modificationTime": self.version}
        return entry | {"partitionValues": {parted: value} if parted else {}, "stats": json.dumps({"numRecords": len(rows)})}

    def files(self, rows: Sequence[Row], schema: pa.Schema | None = None) -> list[dict[str, Any]]:
        """Write files of rows, one for each partition."""
        parted = self.form.parted
        kinds = list(dict.fromkeys(row[parted] for row in rows)) if parted else [None]
        return [self.file([row for row in rows if not parted or row[parted] == kind], schema) for kind in kinds]

    def append(self, rows: Sequence[Row], schema: pa.Schema | None = None) -> list[dict[str, Any]]:
        added = self.files(rows, schema)
        self.commit(*({"add": each} for each in added))
        return added


def removed(file: dict[str, Any], **more: Any) -> dict[str, Any]:
    known = {name: file[name] for name in ("path", "partitionValues", "size")}
    return {"remove": known | {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True} | more}


def bench_of(folder: Path, form: Form) -> Bench:
    spec = {"keys": ["k"], "time": {"column": "t", "tie_break": ["x"]}, "source": {"path": str(folder / "source"), "changes": "restate"}}
    spec |= {"windows": [{"name": "w", "type": "tumbling", "size": "10 minutes"}]}
    return Bench(folder, spec | {"aggregates": {"n": {"count": "*"}, "s": {"sum": "v"}} | form.aggregates})


def shown(bench: Bench) -> list[tuple[Any, int, int | None]]:
    """Key, minute of the window and sum of each window as the sink shows it now."""
    rows = latest(bench.pipeline, bench.rows())
    return sorted(((row["k"], (row["window_start"] - BASE) // MINUTE, row["s"]) for row in rows), key=repr)


pytestmark = pytest.mark.local


def landed(folder: Path, form: Form) -> tuple[Table, Bench, list[Row], list[dict[str, Any]]]:
    """The table with rows in time, two that came too late and are in quarantine, and one behind them; the first rows, and their files."""
    first, other = form.keys

    def row(key: Any, minute: int, number: int, value: int) -> Row:
        return {"k": key, "t": BASE + minute * MINUTE, "x": number, "v": value, "u": form.unused}

    table = Table(folder / "source", form)
    rows = [row(first, 60, 1, 1), row(other, 61, 2, 2), row(first, 62, 3, 4), row(first, 75, 4, 8)]
    files = table.append(rows, form.early)
    if form.quarantines:
        table.append([row(first, 64, 5, 1_000), row(other, 20, 6, 2_000)])
    table.append([row(other, 300, 7, 16)])
    bench = bench_of(folder, form)
    bench.run()
    return table, bench, rows, files


@pytest.mark.covers("S4")
@pytest.mark.parametrize("name", FORMS)
def test_rows_are_read_for_corrections_as_runs_read_them(tmp_path, name):
    form = FORMS[name]
    table, bench, rows, files = landed(tmp_path, form)
    first, other = ("sesame  ", "b       ") if form.metadata.get("k") == CHAR else form.keys
    before = shown(bench)
    assert before == sorted([(first, 60, 5), (other, 60, 2), (first, 70, 8)], key=repr)
    late = 2 if form.quarantines else 0
    assert len([row for row in bench.quarantine() if row["source_file"] and row["source_row"] is not None]) == late
    if form.later is not None:
        table.fields = form.later(table.fields)
        table.commit(table.metadata(), operation="CHANGE COLUMN")
    assert loop.restate(bench.pipeline, quiet(), ends=(None, None)) == []
    corrected = [rows[0] | {"v": 100}, *rows[2:]]
    table.commit(*map(removed, files), *({"add": each} for each in table.files(corrected)), operation="MERGE")
    [done] = bench.run()
    assert (done.plan.action, done.restated.windows) == ("restate", 2)
    assert shown(bench) == sorted([(first, 60, 104), (first, 70, 8)], key=repr)
    assert len(bench.quarantine()) == late
    if not late:
        return
    loop.restate(bench.pipeline, quiet(), late=True)
    assert shown(bench) == sorted([(first, 60, 1_104), (first, 70, 8), (other, 20, 2_000)], key=repr)
    assert (bench.quarantine(), loop.restate(bench.pipeline, quiet(), ends=(None, None))) == ([], [])


@pytest.mark.covers("S4")
def test_rows_that_deletion_vectors_take_out_are_corrections(tmp_path):
    form = Form(features=("deletionVectors",))
    table, bench, _, [file] = landed(tmp_path, form)
    table.commit(removed(file), {"add": file | {"deletionVector": deleted(1, 2)}}, operation="DELETE")
    [done] = bench.run()
    assert (done.plan.action, shown(bench)) == ("restate", [("sesame", 60, 1), ("sesame", 70, 8)])
    again = removed(file, deletionVector=deleted(1, 2))
    table.commit(again, {"add": file | {"deletionVector": deleted(0, 1, 2)}}, operation="DELETE")
    [done] = bench.run()
    assert (done.plan.action, shown(bench)) == ("restate", [("sesame", 70, 8)])
    assert (loop.restate(bench.pipeline, quiet(), ends=(None, None)), len(bench.quarantine())) == ([], 2)


@pytest.mark.covers("S4")
@pytest.mark.parametrize("name", ["plain", "INT96", "a key of fixed length", "parted"])
def test_change_data_tells_which_rows_a_version_changed(tmp_path, name):
    form = FORMS[name]
    table, bench, rows, files = landed(tmp_path, form)
    kinds = pa.array(["update_preimage", "update_postimage"])
    told = table.file([rows[0], rows[0] | {"v": 100}], _change_type=kinds)
    corrected = [rows[0] | {"v": 100}, *rows[1:]]
    told = {name: told[name] for name in ("path", "size", "partitionValues")} | {"dataChange": False}
    table.commit(*map(removed, files), *({"add": each} for each in table.files(corrected)), {"cdc": told}, operation="UPDATE")
    [done] = bench.run()
    assert (done.restated.keys, done.restated.windows) == (1, 1)
    assert [s for key, minute, s in shown(bench) if key.startswith("sesame") and minute == 60] == [104]


def test_rows_in_quarantine_are_known_by_their_values_where_the_table_does_not_name_files(tmp_path, monkeypatch):
    """As in a table that an earlier release wrote, or behind a compaction."""
    from windowmill.jobs.batch.job import Job
    from windowmill.jobs.layouts.output import QuarantineRows

    monkeypatch.setattr(Job, "quarantine", property(lambda job: QuarantineRows(job.runnable.pipeline, job.plan, ())))
    table, bench, _, files = landed(tmp_path, FORMS["INT96 of the end of time, unused"])
    assert [row["source_file"] for row in bench.quarantine()] == [None, None]
    table.commit(*map(removed, files), operation="DELETE")
    [done] = bench.run()
    assert (done.restated.retracted, shown(bench), len(bench.quarantine())) == (3, [], 2)


@pytest.mark.covers("P7")
@pytest.mark.parametrize("alone", [True, False], ids=["on this machine", "in object storage"])
def test_a_restatement_removes_its_own_files_and_those_of_dead_attempts(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(restating, "is_local", lambda _: alone)
    table, bench, rows, files = landed(tmp_path, FORMS["plain"])
    folder = Path(Places.of(bench.pipeline).restated)
    folder.mkdir()
    names = ["part-b000009-other-0-0123abcd-0.snappy.parquet", "part-b000009-dead-0-0123abcd-0.snappy.parquet"]
    for name, age in zip(names, (0, 8 * 86_400), strict=True):
        (folder / name).write_bytes(b"rows")
        os.utime(folder / name, (time.time() - age,) * 2)
    table.commit(*map(removed, files), *({"add": each} for each in table.files(rows[1:])), operation="DELETE")
    bench.run()
    assert [path.name for path in folder.rglob("*")] == ([] if alone else names[:1])


def test_what_only_spark_reads_is_refused_without_it(tmp_path):
    form = Form(unused=OLD, aggregates={"until": {"max": "u"}}, **INSTANT_UNUSED)
    table = Table(tmp_path / "source", form)
    bench, now = bench_of(tmp_path, form), datetime(2024, 3, 1, tzinfo=UTC)
    rows = [{"k": "a", "t": BASE + minute * MINUTE, "x": minute, "v": 1, "u": now} for minute in (60, 300)]
    [file] = table.append(rows)
    bench.run()
    added = table.files([row | {"u": OLD} for row in rows])
    table.commit(removed(file), {"add": added[0]}, operation="UPDATE")
    with pytest.raises(LocalComputeError, match=r"Arrow would read values of f1\.parquet otherwise; compute is local"):
        bench.run()
