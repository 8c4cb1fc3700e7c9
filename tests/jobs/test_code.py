"""Which code a batch ran, and what is said of a module that has been edited since."""

from __future__ import annotations

import pytest

from tests.checkpoints.records import plan
from windowmill.jobs.code import check_modules, module_digests, tzdata_version
from windowmill.windowing.errors import CodeChangedError
from windowmill.windowing.specfile import parse_pipeline

SPEC = {
    "pipeline": "p",
    "time": {"column": "t"},
    "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"h": {"use": "halves_of_a_test:HALF", "args": ["i"]}},
}


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
