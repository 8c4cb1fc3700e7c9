"""Which code a batch ran, what is said of a module that has been edited since, and that a dropped batch binds nobody. No JVM."""

from __future__ import annotations

import shutil
import zoneinfo
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.checkpoints.records import plan
from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.batches import Outcome, Plan
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.user_code import check_code, module_digests, tzdata_version, zone_digests
from windowmill.windowing.errors import CodeChangedError, SpecChangedError
from windowmill.windowing.specfile import parse_pipeline

SPEC = a_spec(aggregates={"h": {"use": "halves_of_a_test:HALF", "args": ["i"]}})
DAILY = SPEC | {"windows": [{"name": "d", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"}]}


def test_an_edited_module_is_refused_and_the_old_one_goes_on(tmp_path, monkeypatch):
    module = tmp_path / "halves_of_a_test.py"
    module.write_text("HALF = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pipeline = parse_pipeline(SPEC)
    planned = plan(3, modules=module_digests(pipeline))
    assert list(planned.modules) == ["halves_of_a_test"]
    check_code(pipeline, planned)
    module.write_text("HALF = None  # edited\n")
    with pytest.raises(CodeChangedError, match=r"module halves_of_a_test is not the one that batch 3 ran .* --accept-code"):
        check_code(pipeline, planned)
    module.write_text("HALF = None\n")
    check_code(pipeline, planned)


def test_the_version_of_the_time_zone_data_is_known():
    assert str(tzdata_version()).startswith("20")


YEAR_2014, YEAR_2020 = 1_388_534_400_000_000, 1_577_836_800_000_000


@pytest.fixture
def other_rules(tmp_path):
    """Time zone data in which Vienna's clocks are those of another zone."""
    before = zoneinfo.TZPATH
    found = next(Path(folder) for folder in before if Path(folder, "Europe/Vienna").is_file())

    def put(zone: str) -> None:
        (tmp_path / "Europe").mkdir(exist_ok=True)
        shutil.copy(found / zone, tmp_path / "Europe" / "Vienna")
        zoneinfo.reset_tzpath([str(tmp_path)])
        zoneinfo.ZoneInfo.clear_cache()

    yield put
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


def test_other_time_zone_data_is_refused(other_rules):
    pipeline = parse_pipeline(DAILY)
    planned = plan(3, now_us=YEAR_2014, zones=zone_digests(pipeline, YEAR_2014))
    check_code(pipeline, planned)
    other_rules("Europe/London")
    with pytest.raises(CodeChangedError, match=r"time zone Europe/Vienna has other offsets .* that batch 3 ran with .* --accept-code"):
        check_code(pipeline, planned)


def test_rules_that_changed_after_the_batch_make_no_difference(other_rules):
    """Khartoum has set its clocks back in 2017, Juba in 2021; before, they were the same."""
    pipeline = parse_pipeline(DAILY)
    other_rules("Africa/Juba")
    planned = plan(3, now_us=YEAR_2014, zones=zone_digests(pipeline, YEAR_2014))
    through_2020 = zone_digests(pipeline, YEAR_2020)
    other_rules("Africa/Khartoum")
    check_code(pipeline, planned)
    assert zone_digests(pipeline, YEAR_2020) != through_2020


AT = datetime(2024, 1, 1, tzinfo=UTC)


class Folder:
    """A pipeline's spec over a source below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source("source")
        self.spec = a_spec(path, time=TICKS, windows=[TENS])

    def source(self, name: str) -> str:
        write_deltalake(str(self.path / name), pa.table({"t": [1, 2], "v": [1.0, 2.0]}))
        return str(self.path / name)

    def plan(self, **changes: Any) -> Plan:
        pipeline = parse_pipeline(self.spec | changes)
        plan = next_run(runnable_of(pipeline), Ledger.open(pipeline))
        assert plan is not None
        return plan

    def hold(self) -> None:
        """Record the next batch, as held."""
        ledger = Ledger.open(parse_pipeline(self.spec))
        ledger.record(self.plan(), Outcome(seen=None, emitted=None, verdict="held"), {}, AT)

    def abandon(self) -> None:
        ledger = Ledger.open(parse_pipeline(self.spec))
        ledger.rule(Outcome(seen=None, emitted=None, verdict="abandoned"), None, AT)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


USER_CODE = "windowmill.jobs.user_code."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("module_digests", lambda _: {"mine": "edited"}), ("module_digests", lambda _: {"mine": "as it was"})),
        (("zone_digests", lambda *_: {"Europe/Vienna": "as it was"}), ("zone_digests", lambda *_: {"Europe/Vienna": "by other data"})),
    ],
    ids=["modules", "time zones"],
)
def test_code_and_time_zones_of_a_dropped_batch_bind_nobody(folder, monkeypatch, before, after):
    monkeypatch.setattr(USER_CODE + before[0], before[1])
    folder.hold()
    folder.abandon()
    monkeypatch.setattr(USER_CODE + after[0], after[1])
    assert folder.plan().batch == 1


@pytest.mark.parametrize("changed", ["aggregates", "source"])
def test_a_first_batch_with_a_wrong_definition_or_source_can_be_corrected(folder, changed):
    correction = {"aggregates": {"n": {"sum": "v"}}} if changed == "aggregates" else {"source": {"path": folder.source("other")}}
    folder.hold()
    if changed == "aggregates":
        with pytest.raises(SpecChangedError):
            folder.plan(**correction)
    folder.abandon()
    assert folder.plan(**correction).batch == 1


def test_many_dropped_batches(folder):
    for batch in range(12):
        assert folder.plan().batch == batch
        folder.hold()
        folder.abandon()
    ledger = Ledger.open(parse_pipeline(folder.spec))
    assert ledger.newest_kept is None
    assert (ledger.written(), ledger.totals.batches) == ({}, 0)
