"""The example's data: every flight once, its times right, however often it lands."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from examples.flights import land
from examples.flights.land import all_flights, flights_of, land_day, land_days, raw_flights

pytestmark = pytest.mark.dag


def test_all_flights_are_there_once():
    flights = all_flights()
    assert flights.num_rows == 336_776
    assert flights["departed_at"].null_count == flights["delay"].null_count == 8_255
    assert pc.count_distinct(flights["flight_id"]).as_py() == 336_776


def test_schedules_are_right_through_both_changes_of_clocks():
    # The data carry the scheduled hour in UTC too, which the landing does not use.
    raw = raw_flights()
    expected = pc.add(raw["time_hour"].cast(pa.timestamp("us", "UTC")), pc.multiply(raw["minute"], 60_000_000).cast(pa.duration("us")))
    assert sorted(expected.to_pylist()) == all_flights()["scheduled_at"].to_pylist()


def test_a_departure_is_its_schedule_plus_its_delay():
    flights = all_flights().slice(0, 1)
    (row,) = flights.to_pylist()
    assert row["flight_id"] == "UA-1545-EWR-IAH-2013-01-01-0515"
    assert row["scheduled_at"] == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert (row["departed_at"], row["delay"]) == (datetime(2013, 1, 1, 10, 17, tzinfo=UTC), 2)


def test_landing_again_changes_nothing(tmp_path):
    path = tmp_path / "flights"
    assert land_days(date(2013, 1, 1), date(2013, 1, 3), path) == 842 + 943 + 914
    assert land_day(date(2013, 1, 2), path) == 0
    assert land_days(date(2013, 1, 3), date(2013, 1, 4), path) == 915
    table = DeltaTable(str(path))
    assert table.version() == 3
    ids = pq.read_table(table.file_uris(), columns=["flight_id"])["flight_id"]
    assert len(ids) == pc.count_distinct(ids).as_py() == 842 + 943 + 914 + 915


def test_rows_of_a_day_land_in_order(tmp_path):
    land_day(date(2013, 7, 1), tmp_path / "flights")
    (file,) = DeltaTable(str(tmp_path / "flights")).file_uris()
    assert pq.read_table(file, columns=["flight_id"])["flight_id"].equals(flights_of(date(2013, 7, 1))["flight_id"])


def test_a_day_outside_the_data_lands_nothing(tmp_path):
    assert land_day(date(2014, 1, 1), tmp_path / "flights") == 0
    assert not (tmp_path / "flights").exists()


def test_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WAREHOUSE", raising=False)
    assert land.main(["--from", "2013-01-01", "--to", "2013-01-02", "--path", str(tmp_path / "flights")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2013-01-01    842 flights"
    with pytest.raises(SystemExit) as stop:
        land.main(["--from", "2013-01-01"])
    assert stop.value.code == 2
    assert "export WAREHOUSE" in capsys.readouterr().err
