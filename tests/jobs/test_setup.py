"""``windowmill setup`` gets what ``doctor`` misses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from windowmill.jobs.cli import main
from windowmill.jobs.commands import doctor
from windowmill.jobs.commands.doctor import Check
from windowmill.windowing.errors import MachineError

NAMES = ["java", "jars", "archive", "kernels"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been made on a machine that lacks everything but Java."""
    done: list[str] = []

    def has(name: str) -> Callable[[], Check]:
        return lambda: Check(name, name in done, name)

    monkeypatch.setattr(doctor, "check_jars", has("jars"))
    monkeypatch.setattr(doctor, "check_class_archive", has("archive"))
    monkeypatch.setattr(doctor, "check_kernels", has("kernels"))
    monkeypatch.setattr(doctor, "fetch_jars", lambda *_: done.append("jars"))
    monkeypatch.setattr(doctor, "_record_archive", lambda: done.append("archive"))
    monkeypatch.setattr(doctor, "_compile_kernels", lambda: done.append("kernels"))
    return done


def test_what_is_missing_is_made_once(made, capsys):
    assert main(["setup", "--json"]) == 0
    assert made == ["jars", "archive", "kernels"]
    told = json.loads(capsys.readouterr().out)["steps"]
    assert [(step["name"], step["result"]) for step in told] == list(zip(NAMES, ["was there", "made", "made", "made"], strict=True))
    assert main(["setup"]) == 0
    assert made == ["jars", "archive", "kernels"]
    assert "ready: 0 of 4 made" in capsys.readouterr().out


def test_an_archive_of_other_jars_is_recorded_anew(made):
    made += ["archive", "kernels"]
    assert main(["setup"]) == 0
    assert made == ["archive", "kernels", "jars", "archive"]


def test_jars_for_s3_only_if_asked_for(made, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "jars_folder", lambda: Path(tmp_path))
    made += ["jars", "archive", "kernels"]
    assert main(["setup", "--s3"]) == 0
    assert made[3:] == ["jars", "archive"]


def test_without_java_nothing_is_made(made, monkeypatch, capsys):
    def no_java() -> None:
        raise MachineError("Spark needs Java 17 or newer, found none; install it")

    monkeypatch.setattr(doctor, "find_java", no_java)
    assert main(["setup"]) != 0
    assert made == []
    assert "Spark needs Java 17 or newer, found none; install it" in capsys.readouterr().err


def test_without_an_archive_the_rest_is_made(made, monkeypatch, capsys):
    def no_archive() -> None:
        raise MachineError("Java wrote no class archive; sessions work without it, 4 seconds slower")

    monkeypatch.setattr(doctor, "_record_archive", no_archive)
    assert main(["setup", "--json"]) == 0
    assert made == ["jars", "kernels"]
    told = capsys.readouterr()
    assert [step["result"] for step in json.loads(told.out)["steps"]] == ["was there", "made", "failed", "made"]
    assert "Java wrote no class archive; sessions work without it, 4 seconds slower" in told.err
