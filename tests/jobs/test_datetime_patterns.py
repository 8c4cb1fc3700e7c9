"""Texts by the datetime patterns of Spark's readers: what each pattern takes, which are refused, and whole runs, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from tests.jobs.test_folders import Pipe
from windowmill.jobs.cli import main
from windowmill.jobs.instants import PatternError, pattern_of
from windowmill.jobs.sources import kafka
from windowmill.jobs.sources.options import declared
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_values import TextTimes

CASES = {
    "d/M/yyyy H:mm": {"1/2/2024 3:04": "2024-02-01T03:04", "31/02/2024 1:00": None, "1/2/2024": None, " 1/2/2024 3:04": None, "": None},
    "dd/MM/yyyy": {"29/02/2024": "2024-02-29", "29/02/2023": None, "1/02/2024": None},
    "M/d/yy h:mm a": {"1/2/24 3:04 PM": "2024-01-02T15:04", "1/2/69 12:00 am": "2069-01-02T00:00"},
    "yyyyMMddHHmmss": {"20240501123456": "2024-05-01T12:34:56", "20240501": None},
    "yyyyDDD": {"2024366": "2024-12-31", "2023366": None},
    "MMM d, yyyy h:mm:ss a": {"jul 1, 2024 12:00:01 pm": "2024-07-01T12:00:01"},
    "yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX": {
        "2024-07-01T00:00:00Z": "2024-07-01T00:00",
        "2024-07-01T00:00:00.12+02:00": "2024-06-30T22:00:00.120",
        "2024-07-01T00:00:00.1234+02:00": None,
    },
    "yyyy-MM-dd HH:mm:ss z": {
        "2024-07-01 00:00:00 UTC": "2024-07-01",
        "2024-07-01 00:00:00 EST": "2024-07-01T04:00",
        "2024-03-31 02:30:00 Europe/Vienna": "2024-03-31T01:30",
        "2024-10-27 02:30:00 Europe/Vienna": "2024-10-27T00:30",
        "2024-07-01 00:00:00 Nowhere": None,
    },
    "[yyyy-MM-dd][dd.MM.yyyy]": {"2024-07-01": "2024-07-01", "01.07.2024": "2024-07-01", "2024-07-0101.07.2024": "2024-07-01", "": None},
    "yyyy-MM-dd HH:mm:ss.SSSSSSSSSxx": {"1969-12-31 23:59:59.123456789-0030": "1970-01-01T00:29:59.123456"},
    "yyyy''MM": {"2024'05": "2024-05-01"},
}
REFUSED = {
    "EEE d MMM yyyy": "'E' is not read; the letters are y M L d D H k h K m s S a X x Z z VV",
    "YYYY-MM-dd": "'Y' is not read",
    "yyyy-MM-dd'T": "a quote that is not closed",
    "yyyy-MM-dd[ HH:mm": "a bracket that has no partner",
    "dMyyyy": "write 'MM' for two digits",
    "yyyyyyyy": "'yyyyyyyy' is not read; expected y, yy, yyyy",
    "yyyy-MM-dd yyyy": "gives the year twice",
    "": "no field of a date",
    "#yyyy": "# is reserved",
}


@pytest.mark.parametrize("pattern", CASES)
def test_a_pattern_takes_what_it_takes_for_spark(pattern):
    texts, wanted = zip(*CASES[pattern].items(), strict=True)
    at = [None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC) for text in wanted]
    found = pattern_of(pattern).instants(pa.array([*texts, None])).cast(pa.timestamp("us", "UTC")).to_pylist()
    assert found == [*at, None]
    # A date is the one that is written, whatever the zone behind it.
    written = pattern_of(pattern).dates(pa.array(texts)).to_pylist()
    assert [day is None for day in written] == [each is None for each in at]
    assert all(day is None or abs(day - each.date()) <= date.resolution for day, each in zip(written, at, strict=True))


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_no_reader_takes_is_refused_with_what_is_known(pattern):
    with pytest.raises(PatternError) as refused:
        pattern_of(pattern)
    assert REFUSED[pattern] in str(refused.value)


@pytest.mark.parametrize(
    ("format_", "pattern", "told"),
    [("csv", "EEE d MMM yyyy", "got 'EEE d MMM yyyy': 'E' is not read; the letters are"), ("parquet", "yyyy", "unknown")],
)
def test_validate_names_the_option_and_the_letters(tmp_path, capsys, format_, pattern, told):
    pipe = Pipe(tmp_path, format_)
    pipe.write(options={"timestampFormat": pattern} | ({"header": "true"} if format_ == "csv" else {}))
    assert f"source.options.timestampFormat: {told}" in pipe.told(capsys, "validate", code=2)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"timestampFormat": "d.M.yyyy H:mm"}, ("31.1.2024 9:05", "1.2.2024 10:00")),
        ({"timestampFormat": "yyyyMMddHHmm"}, ("202401310905", "202402011000")),
        ({}, ("2024-01-31 09:05:00 UTC", "2024-02-01 10:00:00.000000 UTC")),
        ({"dateFormat": "d.M.yyyy", "timestampFormat": "d.M.yyyy H:mm"}, ("31.1.2024 9:05", "1.2.2024 10:00")),
        ({"dateFormat": "M/d/yyyy"}, ("1/31/2024", "2/1/2024")),
        ({"dateFormat": "yyyyMMdd"}, ("20240131", "20240201")),
        ({"timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z", "schema": "k STRING, t STRING, v BIGINT"}, ("31/Jan/2024:10:05:00 +0100", "x")),
        ({"timestampFormat": "d.M.yyyy H:mm", "schema": "k STRING, t TIMESTAMP, v BIGINT"}, ("31.1.2024 9:05", "1.2.2024 10:00")),
    ],
)
@pytest.mark.parametrize("format_", ["csv", "json"])
@pytest.mark.local
def test_a_folder_and_try_read_dates_by_the_options(tmp_path, capsys, format_, options, texts):
    pipe = Pipe(tmp_path, format_, windows=[{"name": "daily", "type": "tumbling", "size": "1 day"}])
    pipe.write(options=options | ({"header": "true"} if format_ == "csv" else {}))
    rows = [{"k": "a", "t": text, "v": 1} for text in texts]
    lines = ["k,t,v", *(",".join(map(str, row.values())) for row in rows)] if format_ == "csv" else map(json.dumps, rows)
    (pipe.inputs / f"a.{format_}").write_text("".join(f"{line}\n" for line in lines))
    pipe.told(capsys, "validate", "--source")
    assert pipe.run(capsys) == [2]
    counted = tmp_path / "rows.jsonl"
    counted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["try", str(pipe.path), "--input", str(counted), "--commit-rows", "9"]) == 0
    shown = capsys.readouterr()
    ends = [json.loads(line)["window_end"] for line in shown.out.splitlines()]
    assert ends == ["2024-02-01T00:00:00Z", *([] if "x" in texts else ["2024-02-02T00:00:00Z"])]
    refused = [json.loads(line) for line in shown.err.splitlines() if line.startswith("{")]
    assert [(row["reason"], row["row"]["t"]) for row in refused] == ([("bad_time", "x")] if "x" in texts else [])


def test_messages_are_read_by_the_options(monkeypatch):
    class Message:
        def value(self) -> bytes:
            return b'{"t": "1.2.2024 10:00", "d": "3.4.2024"}'

    monkeypatch.setattr(kafka, "messages_in", lambda _: [[Message()]])
    schema = declared("t TIMESTAMP, d DATE")
    form = kafka.MessageForm(("readings", 0), 0, 1, "kafka", {}, TextTimes("d.M.yyyy H:mm", "d.M.yyyy"))
    [rows] = kafka.batches_of_messages(form, schema.names, Form(dict(zip(schema.names, schema.types, strict=True)), {}))
    assert rows.to_pylist() == [{"t": datetime(2024, 2, 1, 10, tzinfo=UTC), "d": date(2024, 4, 3)}]
