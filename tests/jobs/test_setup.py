"""``windowmill setup`` gets what ``doctor`` misses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("there", "options", "steps"),
    # An archive of other jars is recorded anew. Jars for S3 are got only if they are asked for.
    [(["archive", "kernels"], [], ["jars", "archive"]), (["jars", "archive", "kernels"], ["--s3"], ["jars", "archive"])],
)
def test_an_archive_of_other_jars_is_recorded_anew(made, monkeypatch, tmp_path, there, options, steps):
    monkeypatch.setattr(doctor, "jars_folder", lambda: tmp_path)
    made += there
    assert main(["setup", *options]) == 0
    assert made == [*there, *steps]


def failing(words: str) -> Callable[[], None]:
    def fail() -> None:
        raise MachineError(words)

    return fail


def test_without_java_nothing_is_made(made, monkeypatch, capsys):
    words = "Spark needs Java 17 or newer, found none; install it"
    monkeypatch.setattr(doctor, "find_java", failing(words))
    assert main(["setup"]) != 0
    assert made == []
    assert words in capsys.readouterr().err


def test_without_an_archive_the_rest_is_made(made, monkeypatch, capsys):
    words = "Java wrote no class archive; sessions work without it, 4 seconds slower"
    monkeypatch.setattr(doctor, "_record_archive", failing(words))
    assert main(["setup", "--json"]) == 0
    assert made == ["jars", "kernels"]
    told = capsys.readouterr()
    assert [step["result"] for step in json.loads(told.out)["steps"]] == ["was there", "made", "failed", "made"]
    assert words in told.err
