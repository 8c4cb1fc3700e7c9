"""Which code a batch ran, and what is said of a module that has been edited since."""

from __future__ import annotations

import shutil
import zoneinfo
from pathlib import Path

import pytest

from tests.checkpoints.records import plan
from tests.specs import a_spec
from windowmill.jobs.user_code import check_modules, check_zones, module_digests, tzdata_version, zone_digests
from windowmill.windowing.errors import CodeChangedError
from windowmill.windowing.specfile import parse_pipeline

SPEC = a_spec(aggregates={"h": {"use": "halves_of_a_test:HALF", "args": ["i"]}})


def test_an_edited_module_is_refused_and_the_old_one_goes_on(tmp_path, monkeypatch):
    module = tmp_path / "halves_of_a_test.py"
    module.write_text("HALF = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pipeline = parse_pipeline(SPEC)
    planned = plan(3, modules=module_digests(pipeline))
    assert list(planned.modules) == ["halves_of_a_test"]
    check_modules(pipeline, planned)
    module.write_text("HALF = None  # edited\n")
    with pytest.raises(CodeChangedError, match=r"module halves_of_a_test is not the one that batch 3 ran .* --accept-code"):
        check_modules(pipeline, planned)
    module.write_text("HALF = None\n")
    check_modules(pipeline, planned)


def test_the_version_of_the_time_zone_data_is_told_where_windows_follow_a_zone():
    assert tzdata_version(parse_pipeline(SPEC)) is None
    daily = {"name": "d", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"}
    assert str(tzdata_version(parse_pipeline(SPEC | {"windows": [daily]}))).startswith("20")


DAILY = SPEC | {"windows": [{"name": "d", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"}]}
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
    check_zones(pipeline, planned)
    other_rules("Europe/London")
    with pytest.raises(CodeChangedError, match=r"time zone Europe/Vienna has other offsets .* that batch 3 ran with .* --accept-code"):
        check_zones(pipeline, planned)


def test_rules_that_changed_after_the_batch_make_no_difference(other_rules):
    """Khartoum has set its clocks back in 2017, Juba in 2021; before, they were the same."""
    pipeline = parse_pipeline(DAILY)
    other_rules("Africa/Juba")
    planned = plan(3, now_us=YEAR_2014, zones=zone_digests(pipeline, YEAR_2014))
    through_2020 = zone_digests(pipeline, YEAR_2020)
    other_rules("Africa/Khartoum")
    check_zones(pipeline, planned)
    assert zone_digests(pipeline, YEAR_2020) != through_2020
