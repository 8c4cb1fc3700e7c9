"""Which command a DAG run stands for, whatever its type."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from windowmill.dags.commands import command_of
from windowmill.windowing.errors import SpecError

pytestmark = pytest.mark.dag

INTERVAL = {"data_interval_start": datetime(2013, 2, 1, tzinfo=UTC), "data_interval_end": datetime(2013, 2, 2, tzinfo=UTC)}
NO_PARAMS = {"from": None, "to": None, "max_batches": None}
JANUARY = {"from": "2013-01-01T00:00:00Z", "to": "2013-02-01T00:00:00Z"}


def run(run_type: str, conf: dict | None = None, interval: dict | None = None, **params) -> dict:
    return {
        "dag_run": SimpleNamespace(run_type=run_type, conf=conf),
        "params": NO_PARAMS | params,
        **(INTERVAL if interval is None else interval),
    }


@pytest.mark.covers("V6")
@pytest.mark.parametrize("run_type", ["scheduled", "manual", "asset_triggered", "operator_triggered", "asset_materialization"])
@pytest.mark.parametrize("interval", [INTERVAL, {}])
def test_runs_advance_by_the_ledger_whatever_their_interval(run_type, interval):
    assert command_of(run(run_type, interval=interval)) == ["run"]


def test_a_backfill_recomputes_its_data_interval():
    assert command_of(run("backfill")) == ["backfill", "--from", "2013-02-01T00:00:00+00:00", "--to", "2013-02-02T00:00:00+00:00"]


def test_a_manual_run_can_recompute_a_range():
    asked = run("manual", **{"from": "2013-01-01T00:00:00Z", "to": "2013-01-02T03:00:00+02:00"})
    assert command_of(asked) == ["backfill", "--from", "2013-01-01T00:00:00+00:00", "--to", "2013-01-02T01:00:00+00:00"]


@pytest.mark.parametrize("context", [run("manual", as_arrived=True, **JANUARY), run("backfill", as_arrived=True)])
def test_a_range_is_recomputed_from_the_rows_that_arrived_only_when_asked(context):
    command = command_of(context)
    assert command[-1] == "--as-arrived"
    assert command_of(context | {"params": context["params"] | {"as_arrived": False}}) == command[:-1]


def test_a_run_can_stop_early():
    assert command_of(run("manual", max_batches=2)) == ["run", "--max-batches", "2"]


def test_an_interval_is_vouched_for_only_when_the_spec_says_so():
    assert command_of(run("scheduled"), asserts_interval=True) == ["run", "--data-interval-end", "2013-02-02T00:00:00"]
    assert command_of(run("asset_triggered", interval={}), asserts_interval=True) == ["run"]


@pytest.mark.covers("X6")
@pytest.mark.parametrize(
    ("context", "message"),
    [
        (run("manual", conf={"form": "x"}), "unknown 'form'; known are from, to, max_batches"),
        (run("manual", **{"from": "2013-01-01T00:00:00Z"}), "give both"),
        (run("manual", **{"from": "; rm -rf /", "to": "{{ ds }}"}), "expected an instant"),
        (run("manual", **{"from": "2013-01-02T00:00:00Z", "to": "2013-01-01T00:00:00Z"}), "expected from to be earlier"),
        (run("manual", max_batches=1, **{"from": "2013-01-01T00:00:00Z", "to": "2013-01-02T00:00:00Z"}), "max_batches limits"),
        (run("manual", as_arrived=True), "give from and to"),
        (run("manual", as_arrived="yes", **JANUARY), "expected true or false"),
        (run("backfill", max_batches=1), "a backfill recomputes"),
        (run("backfill", interval={}), "no data interval"),
    ],
)
def test_conf_that_no_run_understands_is_refused(context, message):
    with pytest.raises(SpecError, match=message):
        command_of(context)
