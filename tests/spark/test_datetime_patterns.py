"""Datetime patterns mean here what they mean to Spark's own readers: every pattern with every text, in one job."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.jobs.test_datetime_patterns import CASES
from windowmill.jobs.instants import pattern_of

pytestmark = pytest.mark.spark

#: Patterns beside those of the table of cases: each letter and number of letters.
PATTERNS = [
    *CASES,
    *("yyyy-MM-dd HH:mm:ss VV", "yyyy-MM-dd HH:mm:ss 'UTC'", "yyyyMMdd", "d MMMM yyyy", "dd-LLL-yyyy K:mm a", "yyyy-MM-dd kk:mm", "y-M-d"),
    *("yyyy-MM-dd'T'HH:mm:ss.SSSSSSX", "yyyy-MM-dd HH:mm:ss Z", "yyyy", "MM/yyyy", "hh:mm", "a", "HH:mm:ss", "yyyy-MM-dd XXXXX"),
    *("yyyy-MM-dd XXXX", "yyyy-MM-dd XX", "yyyy-MM-dd x", "yyyy-MM-dd ZZZZZ", "yMMdd", "Mdd", "yyyy-D", "yy", "dd.MM.yy", "hh", "KK:mm"),
    *("yyyy-MM-dd h", "[M/d/yyyy h:mm:ss a][yyyy-MM-dd HH:mm:ss]", "[MMM][MM] yyyy", "yyyy-MM-dd[ HH:mm[:ss]]", "MM-dd"),
    *("yyyy-MM-dd HH:mm:ss a", "yyyy-MM-dd xxx", "LLLL yyyy"),
]
TEXTS = [
    *dict.fromkeys(text for texts in CASES.values() for text in texts),
    *("01/02/2024", "2024-07-01 00:00:00 PDT", "2024-07-01 00:00:00 CET", "2024-07-01 00:00:00 CEST", "2024-07-01 00:00:00 Z"),
    *("2024-07-01 00:00:00 +02:00", "2024-07-01 00:00:00 utc", "2024-07-01 00:00:00 GMT", "2024-07-01 00:00:00 europe/vienna"),
    *("2024-07-01 00:00:00 HST", "2024-07-01 00:00:00 MST", "2024-01-01 00:00:00 CDT", "2024-07-01 00:00:00 Asia/Kolkata"),
    *("2024-07-01 00:00:00 Etc/GMT+5", "2024-07-01 00:00:00 Pacific Standard Time", "20240501", "2024032", "1 July 2024", "1 JULY 2024"),
    *("01-Sep-2024 0:30 PM", "01-Sept-2024 0:30 PM", "2024-07-01T00:00:00z", "2024-07-01T00:00:00.1+02", "2024-07-01T00:00:00.1234567Z"),
    *("2024-07-01T00:00:00.123456+0200", "2024-07-01 00:00:00.123456789+0000", "2024-07-01 00:00:00.1+0000", "2024-07-01 00:00:00 +0200"),
    *("2024-07-01 24:00", "2024-07-01 00:00", "2024-7-1", "02024-7-1", "2024", "24", "07/2024", "12:30", "03:30", "PM", "am", "23:59:59"),
    *("24:00:00", "2024-07-01 +02:00:30", "2024-07-01 +020030", "2024-07-01 +0200", "2024-07-01 +02:00", "2024-07-01 +02"),
    *("2024-07-01 +18:00", "2024-07-01 -00:30", "2024-07-01 Z", " 2024-7-1", "2024-7-1 ", "240501", "1205", "705", "2024-32", "01.07.24"),
    *("11", "12", "00", "00:30", "0001-01-01", "9999-12-31", "2024-07-01 3", "0024-07-01 +02:00", "٢٠٢٤", "1/2/2024 3:04:05 PM"),
    *("Jul 2024", "July 2024", "07 2024", "02-29", "2024-07-01 12:00", "2024-07-01 13:00:00 AM", "2024-07-01 13:00:00 PM"),
]


def test_every_pattern_takes_what_sparks_readers_take(spark):
    lines = spark.createDataFrame(list(enumerate(TEXTS)), "i INT, text STRING").coalesce(1)
    row = F.to_json(F.struct(F.col("text").alias("t")))
    of_csv = {"sep": "|", "quote": "\u0001"}
    asked = []
    for number, pattern in enumerate(PATTERNS):
        instants, dates = {"timestampFormat": pattern}, {"dateFormat": pattern}
        asked += [
            F.unix_micros(F.from_csv("text", "t TIMESTAMP", instants | of_csv)["t"]).alias(f"csv{number}"),
            F.unix_micros(F.from_json(row, "t TIMESTAMP", instants)["t"]).alias(f"json{number}"),
            F.unix_date(F.from_csv("text", "t DATE", dates | of_csv)["t"]).alias(f"day{number}"),
        ]
    found, texts = lines.select("i", *asked).orderBy("i").toArrow(), pa.array(TEXTS)
    for number, pattern in enumerate(PATTERNS):
        own = pattern_of(pattern)
        instants, days = own.instants(texts).to_pylist(), own.dates(texts).cast(pa.int32()).to_pylist()
        for kind, values in (("csv", instants), ("json", instants), ("day", days)):
            wanted = found.column(f"{kind}{number}").to_pylist()
            assert dict(zip(TEXTS, values, strict=True)) == dict(zip(TEXTS, wanted, strict=True)), (pattern, kind)
    assert sum(found.column(name).null_count < len(TEXTS) for name in found.column_names[1:]) > 100
