"""``windowmill tutorial`` shows windows, late rows and a held batch, each as it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from windowmill.jobs.cli import main
from windowmill.jobs.commands import terminal
from windowmill.windowing.errors import SpecError


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")  # a deployment's choice does not start a JVM here
    assert main(["tutorial", "--folder", str(tmp_path / "new" / "folder"), "--json"]) == 0
    assert os.environ["WINDOWMILL_COMPUTE"] == "spark"
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_each_step_shows_what_it_says(told, tmp_path):
    windows, late, held, released, recomputed = told["steps"]
    assert windows["numbers"] == counts(0, rows_read=5, rows_applied=5, rows_published=4, verdict="passed")
    assert {row["window_end"] for row in windows["rows"]["rows published"]} == {"10:00"}

    # Two late orders count in windows that are open; the third is in quarantine.
    assert late["numbers"] == counts(1, rows_read=4, rows_applied=3, rows_late=2, rows_quarantined=1, rows_published=4, verdict="warned")
    assert late["rows"]["rows quarantined"] == [{"order_id": "s4", "reason": "too_late", "watermark": "10:25"}]
    orders = {(row["window"], row["shop"]): row["orders"] for row in late["rows"]["rows published"]}
    assert orders == {("hourly", "north"): 1, ("hourly", "south"): 2, ("two_hours", "north"): 4, ("two_hours", "south"): 3}

    assert held["numbers"] == {"exit_code": 3, "rows_in_the_table": 8}
    assert "batch 2 is held, nothing was published" in held["says"][0]
    assert released["numbers"] == counts(2, rows_read=2, rows_applied=2, rows_published=4, verdict="released")
    assert recomputed["numbers"] == {"rows_in_the_table": 12, "rows_recomputed": 12, "rows_equal": 12}
    assert told["folder"] == str(tmp_path / "new" / "folder")


def counts(batch: int, **others: int | str) -> dict[str, int | str]:
    return {"batch": batch, "rows_late": 0, "rows_quarantined": 0, **others}


def test_the_commands_that_it_names_work_on_what_it_has_made(told, capsys):
    assert main(["status", told["spec"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows_quarantined"] == 1
    assert main(["run", told["spec"]]) == 0
    assert capsys.readouterr().out == "shop_orders: nothing new\n"


def test_it_is_read_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(terminal.console, "width", 80)
    assert main(["tutorial", "--folder", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    long = [line for line in text.splitlines() if len(line) > 80]
    assert [line for line in long if str(tmp_path) not in line] == [], "only paths, which are not cut, are longer"
    for line in (tmp_path / "new" / "pipeline.yaml").read_text(encoding="utf-8").splitlines():
        assert f"   {line}\n" in text
    places = [text.index(words) for words in ("pipeline: shop_orders", "1. Windows", "2. Late rows", "3. A held batch", "What next")]
    assert places == sorted(places)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["tutorial", "--folder", str(tmp_path)]) == SpecError.exit_code
    assert "is not empty; name a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
