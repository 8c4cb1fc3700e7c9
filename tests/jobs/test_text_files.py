"""Text files as teams get them: each line is a row or in quarantine with its text, or the file is refused by name."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.jobs.test_folders import Pipe
from windowmill.jobs.cli import main
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.json_lines import result_lines
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.reading import VersionRange, reading_of
from windowmill.windowing.columnar.added_columns import REASON
from windowmill.windowing.errors import SourceError, SourceFileError
from windowmill.windowing.specfile import parse_pipeline

#: A day, in a time column.
DAY = "2024-05-01"
SCHEMA = {"schema": "t TIMESTAMP, k STRING, v BIGINT"}


def read(folder: Path, format_: str, options: dict[str, Any], *files: bytes, **changes: Any) -> list[tuple[Any, ...]]:
    """(key, value, reason) of the rows of a folder; those that planning counts."""
    rows = table(folder, format_, options, *files, **changes)
    return list(zip(*(rows.column(name).to_pylist() for name in ("k", "v", REASON)), strict=True))


def table(folder: Path, format_: str, options: dict[str, Any], *files: bytes, **changes: Any) -> pa.Table:
    pipe = Pipe(folder, format_, **changes)
    pipe.write(options=options)
    for number, data in enumerate(files):
        (pipe.inputs / f"{number}.{format_}").write_bytes(data)
    pipeline = parse_pipeline(pipe.spec)
    source = open_source(pipeline)
    reading = reading_of(runnable_of(pipeline), source, VersionRange(-1, source.version))
    plain = PlainRows.of(pipeline, source, reading)
    assert plain is not None
    rows = plain.read(["k", "v"], [], latest=None)
    assert rows is not None
    if pipeline.source is not None and not pipeline.source.filter:
        assert sum(file.rows or 0 for file in reading.files) == rows.num_rows
    return rows


def lines(*cells: str, end: str = "\n") -> bytes:
    return "".join(f"{DAY}T00:00:{number:02}Z,{line}{end}" for number, line in enumerate(cells)).encode()


OK = [("x", 1, None)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('"5 inch,1', ("5 inch,1", None, None)),
        ('5" pipe,1', ('5" pipe', 1, None)),
        ('"a"b,1', ('"a"b', 1, None)),
        ('"a" ,1', ("a", 1, None)),
        (' "a",1', (' "a"', 1, None)),
        ('"a""b",1', ('a"b', 1, None)),
        ('"a,b"c,1', ('"a,b"c', 1, None)),
        ('"a"b"c,1', ('"a"b"c', 1, None)),
        ('"a""b"c,1', ('"a"b"c', 1, None)),
        ('""a,1', ('""a', 1, None)),
        ('"', ('"', None, None)),
        ("x", ("x", None, None)),
        ("x,1,2,3", ("x", 1, None)),
        ("x,1e-1000000000000000000", ("x", None, "cannot_cast")),
        ('a","b,1', ('a"', None, "cannot_cast")),
    ],
)
def test_a_stray_quote_changes_its_own_line_alone_as_in_spark(tmp_path, line, found):
    data = lines("x,1", line, *["x,1"] * 7)
    rows = read(tmp_path, "csv", SCHEMA, data, data.replace(b"\n", b"\r\n"))
    assert sorted(rows, key=str) == sorted([*16 * OK, found, found], key=str)


@pytest.mark.parametrize(
    ("options", "data", "found"),
    [
        ({}, b"\n \n\t\n%s" % lines("x,1"), OK),
        ({}, lines("x,1", "y,2", end="\r"), [*OK, ("y", 2, None)]),
        ({}, lines("x,1", "y,2", end="\r\n").removesuffix(b"\r\n"), [*OK, ("y", 2, None)]),
        ({"sep": "\t"}, lines("x,1").replace(b",", b"\t"), OK),
        ({"sep": "\\t"}, lines("x,1").replace(b",", b"\t"), OK),
        ({"header": True}, b"\n\r\n  \nv,t,k\n1,2024-05-01,x\n", OK),
        ({"header": True}, b"v,t,k,\n1,2024-05-01,x,\n", OK),
        ({"escape": "\\"}, lines(r'"a\"b",1', r'"a\\",1', r'"a\nb",1'), [('a"b', 1, None), ("a\\", 1, None), ("a\\nb", 1, None)]),
        ({"escape": "\\"}, lines('"a""b",1'), [('"a""b"', 1, None)]),
        ({"quote": ""}, lines('"a,1'), [('"a', 1, None)]),
        ({"multiLine": True}, lines('"a\nb",1', '"c\r\nd",2', 'e"f,3'), [("a\nb", 1, None), ("c\r\nd", 2, None), ('e"f', 3, None)]),
        ({"multiLine": True}, lines('"a\r\nb",1', end="\r\n"), [("a\nb", 1, None)]),
        ({"multiLine": True}, lines('"a\rb",1', end="\r"), [("a\nb", 1, None)]),
        ({"multiLine": True, "header": True}, b'"v","t","k"\n\n1,2024-05-01,"x\n"\n', [("x\n", 1, None)]),
        ({}, lines("M\xfcnchen,1", "x,1").decode().encode("latin-1"), [*OK, (None, None, "bad_row")]),
    ],
)
def test_csv_is_read_as_teams_write_it(tmp_path, options, data, found):
    assert read(tmp_path / "plain", "csv", SCHEMA | options, data) == found
    assert read(tmp_path / "gzip", "csv", SCHEMA | options, gzip.compress(data[:9]) + gzip.compress(data[9:])) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"t": "2024-05-01", "k": "x", "v": 30.0}', ("x", 30, None)),
        ('{"t": "2024-05-01", "k": "x", "v": 3e1}', ("x", 30, None)),
        ('{"t": "2024-05-01", "k": "x", "v": 20.5}', ("x", None, "cannot_cast")),
        ('{"t": "2024-05-01", "k": "x", "v": "7"}', ("x", None, "cannot_cast")),
        ('{"t": "2024-05-01", "k": "x", "v": 9223372036854775808}', ("x", None, "cannot_cast")),
        ('{"t": "2024-05-01", "k": "x", "v": 0e1000000000000000000}', ("x", None, "cannot_cast")),
        ('{"t": "2024-05-01", "k": 7.50, "v": -9223372036854775808}', ("7.50", -(2**63), None)),
        ('{"t": "yesterday", "k": "x", "v": "7"}', ("x", None, "bad_time")),
        ('{"t": "2024-05-01", "k": "\\ud83d", "v": 1}', (None, None, "bad_row")),
        ('{"t": "2024-05-01", "k": "x", "v": 1, "other": "\\ud83d"}', ("x", 1, None)),
        ('{"t": "2024-05-01", "k": "\udced\udca0\udc80", "v": 1}', (None, None, "bad_row")),
        ("[" * 50_000, (None, None, "bad_row")),
        ('{"t": "2024-05-01", "k": ' + "[" * 50_000, (None, None, "bad_row")),
        ('{"t": "2024-05-01", "k": "x", "v": 1} {"k": "y"}', (None, None, "bad_row")),
        ('{"t": "2024-05-01",', (None, None, "bad_row")),
        ("[1]", (None, None, "bad_row")),
        ("nonsense", (None, None, "bad_row")),
        ("\ufeff{}", (None, None, "bad_row")),
    ],
)
def test_a_bad_line_of_json_is_quarantined_and_no_other(tmp_path, line, found):
    good = b'{"t": "2024-05-01", "k": "x", "v": 1}\n'
    data = good + line.encode("utf-8", "surrogateescape") + b"\n" + good
    assert sorted(read(tmp_path, "json", SCHEMA, data), key=str) == sorted([*OK, *OK, found], key=str)


def test_objects_split_over_lines_are_not_taken_for_those_beside_others_in_one_line(tmp_path):
    two, split = b'{"t": "2024-05-01", "k": "x", "v": 1} {"t": "2024-05-01", "k": "y", "v": 1}', b'{"t": "2024-05-01",\n"k": "z", "v": 1}'
    assert [reason for _, _, reason in read(tmp_path, "json", SCHEMA, two + b"\n" + split + b"\n")] == ["bad_row"] * 3


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_objects_is_read_as_its_objects(tmp_path, indent):
    rows = [{"t": DAY, "k": "x", "v": 1}, {"t": DAY, "k": "a\nb", "v": 2}, 7]
    data = json.dumps(rows, indent=indent).encode()
    for number, lead in enumerate((b"", b"\xef\xbb\xbf \r\n")):
        assert read(tmp_path / str(number), "json", SCHEMA, lead + data) == [*OK, ("a\nb", 2, None), (None, None, "bad_row")]
    assert read(tmp_path / "none", "json", SCHEMA, b"[ ]\n") == []


def test_decimals_and_long_numbers_of_json_keep_their_digits(tmp_path):
    line = b'{"t": "2024-05-01", "k": 12345678901234567.89, "v": %d}\n' % (2**63 - 1)
    given = {"schema": "t TIMESTAMP, k DECIMAL(20, 2), v BIGINT"}
    for number, more in enumerate((b"", b"nonsense\n")):
        [(k, v, reason), *_] = read(tmp_path / str(number), "json", given, line + more)
        assert (str(k), v, reason) == ("12345678901234567.89", 2**63 - 1, None)
    longer = b'{"t": "2024-05-01", "k": 1234567890123456789, "v": 1}\n'
    assert read(tmp_path / "longer", "json", given, longer) == [(None, 1, "cannot_cast")]


@pytest.mark.parametrize(
    ("format_", "data", "told"),
    [
        ("csv", b"PK\x03\x04zip", "is a ZIP archive or a workbook; unpack it"),
        ("json", b"PK\x03\x04zip", "is a ZIP archive or a workbook; unpack it"),
        ("csv", lzma.compress(b"t,k,v\n", lzma.FORMAT_XZ), "is compressed by xz; unpack it"),
        ("json", lzma.compress(b"{}\n", lzma.FORMAT_ALONE), "is compressed by lzma; unpack it"),
        ("csv", zlib.compress(b"t,k,v\n"), "is compressed by zlib; unpack it"),
        ("csv", b"\xff\x06\x00\x00sNaPpY\x01", "is compressed by snappy; unpack it"),
        ("csv", "t,k,v\n".encode("utf-16"), "is UTF-16; write it in UTF-8"),
        ("csv", "t,k,v\n".encode("utf-16-le"), "is UTF-16, or no text; write it in UTF-8"),
        ("csv", gzip.compress("t,k,v\n".encode("utf-16-be"), mtime=0), "is UTF-16, or no text; write it in UTF-8"),
        ("csv", gzip.compress(lines(*["x,1"] * 50), mtime=0)[:-4], "what gzip has compressed is cut off or damaged"),
        ("json", bz2.compress(b'{"k": "x"}\n')[:-4], "what bz2 has compressed is cut off or damaged"),
        ("csv", b"t,k,v\xff\n", "line 1: the header is not UTF-8"),
        ("csv", b"\nt,k,k\n", "two of its columns are named 'k'; rename one"),
        ("csv", b"\x7fELF" + bytes(12), "or no text; write it in UTF-8, or leave it out by source.options.pathGlobFilter"),
        ("json", b'[{"k": "x"},\n{"k": "y"}\n', "line 3: the JSON array cannot be read (Expecting ',' or ']')"),
    ],
)
def test_what_is_no_text_is_refused_by_name(tmp_path, format_, data, told):
    options = SCHEMA | ({"header": True} if format_ == "csv" else {})
    with pytest.raises(SourceFileError, match="in/0") as raised:
        read(tmp_path, format_, options, data)
    assert told in str(raised.value)


@pytest.mark.parametrize("before", [0, 5_000])
def test_a_nul_is_a_character_wherever_it_is(tmp_path, before):
    """As to Spark's readers: in JSON it is no part of a text."""
    csv = lines("x,1") * before + lines("a\0b,1", "\0,2", "c,3\0")
    assert read(tmp_path / "csv", "csv", SCHEMA, csv)[before:] == [("a\0b", 1, None), ("\0", 2, None), ("c", None, "cannot_cast")]
    row = b'{"t": "2024-05-01", "k": "x", "v": 1}\n'
    found = read(tmp_path / "json", "json", SCHEMA, row * before + row.replace(b"x", b"a\0b") + row.replace(b"x", b"a\\u0000b"))
    assert found[before:] == [(None, None, "bad_row"), ("a\0b", 1, None)]


def test_a_quoted_value_that_does_not_end_is_refused_by_its_line(tmp_path):
    with pytest.raises(SourceFileError, match=r"0\.csv: line 2: a quoted value does not end, or something follows it"):
        read(tmp_path, "csv", SCHEMA | {"multiLine": True}, lines("x,1", '"5 inch,1', "x,1"))


@pytest.mark.parametrize(
    ("format_", "second"),
    [("csv", b"t,k,trip_duration\n2024-05-01,x,50\n"), ("json", b'{"t": "2024-05-01", "k": "x", "trip_duration": 50}\n')],
)
def test_a_file_that_lacks_a_column_of_the_spec_is_refused_by_name_or_allowed(tmp_path, format_, second):
    first = b"t,k,v\n2024-05-01,x,5\n" if format_ == "csv" else b'{"t": "2024-05-01", "k": "x", "v": 5}\n'
    options = {"header": True} if format_ == "csv" else {}
    with pytest.raises(SourceError, match=r"1\.(csv|json): has no column 'v', which the spec uses"):
        read(tmp_path / "refused", format_, options, first, second)
    allowed = read(tmp_path / "allowed", format_, options | {"mergeSchema": True}, first, second)
    assert allowed == [("x", 5, None), ("x", None, None)]
    assert read(tmp_path / "unused", format_, options | {"schema": "t DATE, k STRING, v INT, w INT"}, first) == [("x", 5, None)]


def test_a_column_that_the_spec_does_not_use_never_matters(tmp_path):
    given = {"header": True, "schema": "t DATE, k STRING, v BIGINT, w INT"}
    assert read(tmp_path / "cast", "csv", given, b"t,k,v,w\n2024-05-01,x,1,nonsense\n") == OK
    files = b"t,k,v\n2024-05-01,x,1\n", b"t,k,v,K\n2024-05-01,x,1,other\n"
    assert read(tmp_path / "case", "csv", {"header": True}, *files) == [*OK, *OK]


@pytest.mark.parametrize("aggregate", [{"max": "v"}, {"sum": "v"}, {"arg_max": ["v", "t"]}])
@pytest.mark.parametrize(
    ("format_", "first", "second"),
    [
        ("csv", b"t,k,v\n2024-05-01,x,\n", b"t,k,v\n2024-05-01,x,9\n2024-05-01,x,10\n"),
        ("json", b'{"t": "2024-05-01", "v": null}\n', b'{"t": "2024-05-01", "k": "x", "v": 9}\n{"t": "2024-05-01", "v": 10}\n'),
    ],
)
def test_values_are_compared_when_a_file_has_told_their_type(tmp_path, capsys, format_, first, second, aggregate):
    pipe = Pipe(tmp_path, format_, keys=[], aggregates={"n": {"count": "v"}})
    (pipe.inputs / f"0.{format_}").write_bytes(first)
    assert main(["validate", str(pipe.path), "--source"]) == 0, capsys.readouterr().err
    pipe.spec["aggregates"] = {"found": aggregate}
    pipe.write()
    for command in (["run"], ["run"], ["validate", "--source"]):
        assert main([command[0], str(pipe.path), *command[1:]]) == 2
        said = capsys.readouterr().err
        assert "aggregates.found: column 'v' of the source" in said, said
        assert "has no value yet, so that its type is not known; give the columns as source.options.schema" in said
    (pipe.inputs / f"1.{format_}").write_bytes(second)
    assert main(["run", str(pipe.path)]) == 0, capsys.readouterr().err
    assert pa.types.is_int64(Columns.of(open_source(parse_pipeline(pipe.spec)).schema_json).arrow["v"])


def test_a_filter_leaves_out_no_row_that_could_not_be_read(tmp_path):
    rows = lines("x,1", "x,0", "x,many")
    given = {"source": {"format": "csv", "path": str(tmp_path / "in"), "filter": "v > 0"}}
    assert read(tmp_path, "csv", SCHEMA, rows, **given) == [*OK, ("x", None, "cannot_cast")]


def test_quarantine_tells_file_line_and_text_and_lines_balance(tmp_path, capsys):
    pipe = Pipe(tmp_path, "csv")
    pipe.write(options={"header": True, "schema": "t TIMESTAMP, k STRING, v BIGINT"})
    data = b"t,k,v\n\n" + lines("x,20", "x,20.5", "x,30.0", '"5 inch,1') + b"soon,x,1\n\xff,x,1\n2024-05-01 01:30,x,0\n"
    (pipe.inputs / "a.csv").write_bytes(data)
    assert pipe.run(capsys) == [7]
    assert pipe.results() == {("x", "01"): (2, 50), ("5 inch,1", "01"): (1, None)}
    rows = DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().to_pylist()
    assert {row["reason"]: (row["detail"].rpartition("/")[2], json.loads(row["row"])) for row in rows} == {
        "cannot_cast": ('a.csv, line 4: v: got "20.5"; expected BIGINT', {"t": f"{DAY}T00:00:01.000Z", "k": "x", "v": "20.5"}),
        "bad_time": ('a.csv, line 7: t: got "soon"; expected TIMESTAMP', {"t": "soon", "k": "x", "v": 1}),
        "bad_row": ("a.csv, line 8: is not UTF-8 (invalid start byte at byte 0)", dict.fromkeys("tkv") | {"_corrupt_record": "\ufffd,x,1"}),
    }
    (pipe.inputs / "b.csv.gz").write_bytes(gzip.compress(b"t,k,v\n" + lines("x,1"))[:-6])
    assert main(["run", str(pipe.path)]) == 2
    assert "in/b.csv.gz: what gzip has compressed is cut off or damaged (Truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    "keys",
    [
        *([1344800117771260417, 1344800117771260418], [2**63 - 1, -(2**63)], [2**63, 2**63 + 1], [2**53 + 1, 2**53, 0.5]),
        *([10**38, 10**38 + 1], [1, 2.5], ["a", 7, True, None], [{"b": [1, "ä"]}, "x"], [True, False]),
    ],
)
def test_try_and_runs_see_the_same_keys_each_by_itself(tmp_path, keys):
    data = "".join(json.dumps({"t": DAY, "k": key, "v": 1}) + "\n" for key in keys).encode()
    by_run = [key for key, _, _ in read(tmp_path, "json", {}, data)]
    pipeline = parse_pipeline(Pipe(tmp_path / "try", "json").spec)
    for engine in ("kernel", "reference"):
        rows = attempt(pipeline, data, engine=engine).rows
        assert sorted((row["k"] for row in rows), key=str) == sorted(by_run, key=str)
        assert {row["n"] for row in rows} == {1}


def test_try_reads_long_whole_numbers_exactly_and_quarantines_what_nests_too_deeply(tmp_path):
    pipeline = parse_pipeline(Pipe(tmp_path, "json").spec)
    lines_of_json = [{"t": DAY, "k": "x", "v": value} for value in (2**63, 1, 10**38)]
    data = "".join(json.dumps(line) + "\n" for line in lines_of_json).encode() + b"[" * 50_000
    outcome = attempt(pipeline, data)
    assert [(row.line, row.reason) for row in outcome.refused] == [(3, "cannot_cast"), (4, "bad_json")]
    assert [row["total"] for row in outcome.rows] == [2**63 + 1]
    [line] = map(bytes, result_lines(outcome.rows, pipeline))
    assert b'"total": 9223372036854775809}' in line
    mixed = "".join(json.dumps({"t": DAY, "k": "x", "v": value}) + "\n" for value in (*[0.5] * 1_500, 2**53 + 1)).encode()
    assert [str(row["total"]) for row in attempt(pipeline, mixed).rows] == [str(750 + 2**53 + 1) + ".0"]


def test_fractions_beside_long_whole_numbers_keep_their_digits_in_try_and_in_a_folder(tmp_path):
    values = ["12345678901234567.89", "1344800117571260417", "0.1"]
    data = "".join(f'{{"t":"{DAY}","k":"x","v":{value}}}\n' for value in values).encode()
    [found] = {str(kind) for kind in table(tmp_path, "json", {}, data).column("v").to_pylist() if str(kind).endswith(".89")}
    pipeline = parse_pipeline(Pipe(tmp_path / "try", "json", aggregates={"all": {"collect": "v"}}).spec)
    assert found in [str(value) for row in attempt(pipeline, data).rows for value in row["all"]]


@pytest.mark.parametrize("numbers", [("NaN", "1"), ("1e400", "1.5"), ("-Infinity", "1"), ("1", "Infinity", "0.5")])
def test_numbers_that_json_lacks_are_numbers_in_a_folder_as_in_try(tmp_path, numbers):
    data = "".join(f'{{"t": "{DAY}", "k": "x", "v": {number}}}\n' for number in numbers).encode()
    column = table(tmp_path, "json", {}, data).column("v")
    assert column.type == pa.float64()
    pipeline = parse_pipeline(Pipe(tmp_path / "try", "json", aggregates={"all": {"collect": "v"}}).spec)
    assert [str(row["all"]) for row in attempt(pipeline, data).rows] == [str([float(number) for number in numbers])]
    assert str(column.to_pylist()) == str([float(number) for number in numbers])


def test_a_time_that_one_value_makes_a_text_is_told_with_the_schema_that_helps(tmp_path, capsys):
    pipe = Pipe(tmp_path, "csv", time={"column": "t", "unit": "s"})
    (pipe.inputs / "a.csv").write_text("t,k,v\n1714521600,x,1\nsoon,x,2\n")
    assert main(["run", str(pipe.path)]) == 2
    assert "give source.options.schema with t BIGINT if the column counts" in capsys.readouterr().err
    pipe.write(options={"header": True, "schema": "t BIGINT, k STRING, v BIGINT"})
    assert pipe.run(capsys) == [2]


def test_a_folder_of_unreadable_lines_alone_is_not_called_empty(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    (pipe.inputs / "a.json").write_text('{"t": "2024-05-01"}{"t": "2024-05-01"}\n')
    assert main(["run", str(pipe.path)]) == 1
    assert "none of its files has a row that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_whole_numbers_of_a_first_file_take_fractions_later_where_results_stay_alike(tmp_path, capsys, format_):
    def land(pipe: Pipe, name: str, *values: str) -> None:
        texts = [f"{value},x,{DAY} 00:00" for value in values] if format_ == "csv" else []
        texts = texts or [f'{{"v": {value}, "k": "x", "t": "{DAY} 00:00"}}' for value in values]
        (pipe.inputs / name).write_text("\n".join(["v,k,t", *texts] if format_ == "csv" else texts))

    found = []
    for name, total in (("mean", "mean"), ("sum", "sum")):
        aggregates = {"n": {"count": "v"}, "total": {total: "v"}}
        pipe = Pipe(tmp_path / name, format_, aggregates=aggregates, time={"column": "t", "disorder": "1 day"})
        for file, values in (("1", ["20"]), ("2", ["20.5", "30.0"])):
            land(pipe, file, *values)
            assert pipe.run(capsys) == [len(values)]
        assert main(["run", str(pipe.path)]) == 0
        capsys.readouterr()
        (pipe.inputs / "3").write_bytes((f"v,k,t\n1,x,{DAY}\n" if format_ == "csv" else f'{{"v": 1, "k": "x", "t": "{DAY}"}}\n').encode())
        (pipe.inputs / "4").write_text("v,k,t\n,x,2024-05-04\n" if format_ == "csv" else '{"v": null, "k": "x", "t": "2024-05-04"}\n')
        assert sum(pipe.run(capsys)) == 2
        found.append(pipe.results()["x", "01"])
    assert found == [(4, 71.5 / 4), (3, 51)], "20.5 is quarantined where sums are whole numbers"
    rows = DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().to_pylist()
    assert [(row["reason"], json.loads(row["row"])["v"]) for row in rows] == [("cannot_cast", "20.5")]


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_event_times_that_are_days_in_the_first_file_may_be_instants_later(tmp_path, capsys, format_):
    """Unless a result, key or condition has them as dates: then what is no date is in quarantine with its text."""
    told = []
    cases: list[dict[str, Any]] = [{}, {"keys": ["k", "t"]}, {"aggregates": {"n": {"count": "*"}, "total": {"max": "t"}}}]
    for number, changes in enumerate(cases):
        pipe = Pipe(tmp_path / str(number), format_, **{"time": {"column": "t", "disorder": "2 days"}} | changes)
        for name, times in (("1", [DAY, "2024-05-02"]), ("2", [f"{DAY}T10:00:00Z", "2024-05-09"])):
            rows = [f"{at},x,1" if format_ == "csv" else json.dumps({"t": at, "k": "x", "v": 1}) for at in times]
            (pipe.inputs / name).write_text("\n".join(["t,k,v", *rows] if format_ == "csv" else rows))
            assert pipe.run(capsys) == [2]
        rows = DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().to_pylist() if number else []
        told.append([(row["reason"], json.loads(row["row"])["t"]) for row in rows])
        if not number:
            assert pipe.results() == {("x", "01"): (1, 1), ("x", "11"): (1, 1)}
            assert not (tmp_path / "0/out.windowmill/quarantine").exists()
    assert told == [[], *[[("bad_time", f"{DAY}T10:00:00Z")]] * 2]


def test_validate_says_where_days_of_a_text_file_lie_in_a_zone_west_of_utc(tmp_path, capsys):
    windows = [{"name": "daily", "type": "tumbling", "size": "1 day", "timezone": "America/New_York"}]
    for name, at, is_day in (("days", DAY, True), ("instants", f"{DAY}T00:00:00Z", False)):
        pipe = Pipe(tmp_path / name, "csv", windows=windows)
        (pipe.inputs / "1").write_text(f"t,k,v\n{at},x,1\n")
        assert main(["validate", str(pipe.path), "--source"]) == 0
        assert ("t is a DATE, which counts at 00:00 UTC" in capsys.readouterr().out) is is_day


@pytest.mark.parametrize("levels", [150, 990, 999, 1_000, 1_001, 5_000, 100_000])
def test_values_nested_to_a_thousand_levels_are_read_whatever_lines_are_beside_them(tmp_path, levels):
    """As by Spark's parser, also where no column needs them; the object itself is a level."""
    row = '{"t": "2024-05-01", "k": "x", "v": 1}'
    deep = f'{row[:-1]}, "other": {"[" * (levels - 1)}{"]" * (levels - 1)}}}'
    wanted = [("x", 1, None), ("x", 1, None) if levels <= 1_000 else (None, None, "bad_row")]
    alone, beside, array = f"{row}\n{deep}", f"{row}\n{deep}\noops", f"[{row},\n{deep}]"
    for number, (text, more) in enumerate([(alone, []), (beside, [(None, None, "bad_row")]), (array, [])]):
        assert read(tmp_path / str(number), "json", SCHEMA, text.encode()) == [*wanted, *more]
    pipeline = parse_pipeline(Pipe(tmp_path / "try", "json").spec)
    for text in (alone, beside):
        outcome = attempt(pipeline, text.encode())
        refused = [(row.line, row.reason) for row in outcome.refused]
        assert refused == [(2, "bad_json")] * (levels > 1_000) + [(3, "bad_json")] * (text is beside)


def test_values_that_are_no_doubles_or_dates_are_quarantined_and_nan_is_a_double(tmp_path):
    given, bad = {"schema": "t TIMESTAMP, k DATE, v DOUBLE"}, "(None, None, 'cannot_cast')"
    cells = ('5, "v": true', '"2024-02-31", "v": "x"', '"2024-05-01", "v": NaN')
    data = "".join(f'{{"t": "{DAY}", "k": {each}}}\n' for each in cells).encode()
    assert str(read(tmp_path / "json", "json", given, data)) == f"[{bad}, {bad}, (datetime.date(2024, 5, 1), nan, None)]"
    csv = f"{DAY},24-01-01,NaN\n{DAY},,1_000\n{DAY}\n".encode()
    assert str(read(tmp_path / "csv", "csv", given, csv)) == f"[(None, nan, 'cannot_cast'), {bad}, (None, None, None)]"
