"""What commands print fits a terminal of 80 columns, and no word is broken."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import a_spec
from windowmill.jobs.cli import main
from windowmill.jobs.commands import COMMANDS, terminal, verify
from windowmill.jobs.verify.check import ComparedRow, Comparison, Difference, Verification
from windowmill.jobs.verify.plain import PublishedRow

COLUMNS = 80


def commands(text: str) -> list[tuple[str, ...]]:
    """The commands of ``text``, one behind another."""
    return [tuple(command.split()) for command in text.split("; ")]


#: Before a run, and after it.
AROUND_A_RUN = [
    *commands("validate; explain; plan; history; cost; suggest; state; verify; run; abandon; status; quality; history; history --timings"),
    *commands("cost --price-per-hour 2; state; state --key meter=m-1; suggest; report; verify; savepoint list; savepoint create before"),
    *commands("savepoint list; apply; backfill --from 2025-03-01 --to 2025-03-02; restate; purge --keys none.parquet; maintain"),
]
#: Commands about a batch that the first of them holds.
WHILE_HELD = commands("run; run; status; plan; quality --last 1; discard --batch 0; release")
#: Looked at elsewhere, or made for machines: JSON, statements of SQL.
OTHERS = {"tutorial", "doctor", "setup", "init", "serve", "try", "schema", "views"}
RULES = [
    {"type": "expect_column_values_to_be_between", "column": "greatest", "max_value": 100, "severity": "critical"},
    {"type": "expect_column_values_to_be_between", "column": "mean_of_all_values", "min_value": 2, "severity": "warning"},
]
WINDOWS = [
    {"name": "hourly", "type": "tumbling", "size": "1 hour"},
    {"name": "rolling_day", "type": "hopping", "size": "1 day", "hop": "1 hour"},
    {"name": "bursts", "type": "session", "gap": "2 hours"},
    {"name": "last_5", "type": "sliding", "evict": {"count": 5}, "trigger": {"time": "3 hours"}},
]


class Screen:
    """A spec and a terminal on which its commands are given."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        aggregates = {"n": {"count": "*"}, "mean_of_all_values": {"mean": "value"}, "greatest": {"max": "value"}}
        time = {"column": "at", "disorder": "12 hours"}
        fields = {"keys": ["meter"], "time": time, "windows": WINDOWS, "aggregates": aggregates, "expectations": RULES}
        spec = a_spec(folder, pipeline="readings_of_meters", **fields, compute="local", schedule="@daily")
        (folder / "p.yaml").write_text(yaml.safe_dump(spec))

    def land(self, day: int, **odd: float) -> None:
        at = [datetime(2025, 3, day, tzinfo=UTC) + timedelta(minutes=29 * n, microseconds=n) for n in range(48)]
        values = [float(n % 7) for n in range(47)] + [odd.get("last", 1.0)]
        rows = {"meter": [f"m-{n % 3}" for n in range(48)], "at": at, "value": values}
        write_deltalake(str(self.folder / "source"), pa.table(rows), mode="append")

    def give(self, command: str, *more: str) -> str:
        """What the terminal shows, without its control codes: the answer, and below it progress and errors."""
        main([command, "p.yaml", *more])
        out, err = self._capsys.readouterr()
        return re.sub(r"\x1b\[[0-9;]*m", "", f"{out}\n{err}")


@pytest.fixture
def screen(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Screen:
    for console in (terminal.console, terminal.errors):
        monkeypatch.setattr(console, "_force_terminal", True)
        monkeypatch.setattr(console, "width", COLUMNS)
        monkeypatch.setattr(console, "no_color", True)
    monkeypatch.setattr(terminal.errors, "status", lambda _: nullcontext())  # its lines are erased
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(verify, "verify", lambda *_, **__: found_differing())
    monkeypatch.chdir(tmp_path)
    return Screen(tmp_path, capsys)


def found_differing() -> Verification:
    row = PublishedRow(("m-1",), "rolling_day", 1_740_787_200_000_000, 1_740_873_600_000_000, None, 0, 3, {})
    differences = [Difference("mean_of_all_values", 123.45678901234567, 123.45678901234568), Difference("greatest", 6.0, 7.0)]
    comparison = Comparison(rows=[ComparedRow(row, differences, None)])
    comparison.compared.update({"greatest": 3, "n": 3})
    comparison.equal.update({"greatest": 2, "n": 3})
    comparison.left_out[("last_5", "rows came late, and since then files of the source were rewritten, so the order is not known")] = 2
    comparison.methods["Spark SQL"] = 1
    return Verification(3, 309_537_054, 18, comparison, [(17, "UPDATE")])


def too_long(text: str) -> list[str]:
    """Lines that are longer than the terminal; a word, such as a path, may be."""
    return [line for line in text.splitlines() if len(line.rstrip()) > COLUMNS and len(line.split()) > 1]


def test_every_command_is_looked_at():
    assert {command for command, *_ in (*AROUND_A_RUN, *WHILE_HELD)} | OTHERS == set(COMMANDS.built_in)


def test_answers_progress_and_errors_fit(screen):
    screen.land(1)
    shown = {}
    for command in AROUND_A_RUN:
        shown[" ".join(command)] = screen.give(*command)
    screen.land(2, last=999_999.0)
    screen.land(3)
    shown |= {f"held, {n}: {' '.join(command)}": screen.give(*command) for n, command in enumerate(WHILE_HELD)}
    assert "is held, nothing was published" in shown["held, 0: run"]
    assert {command: lines for command, text in shown.items() if (lines := too_long(text))} == {}


def test_data_reaches_the_terminal_as_text(screen):
    wicked = "\x1b]0;title\x07\x1b[2J\x9b1m\u202eder\r[/] [bold]b[/]"
    screen.land(1, last=999_999.0)
    rows = {"meter": [wicked] * 9, "at": [datetime(2025, 3, 1, 1, n, tzinfo=UTC) for n in range(9)], "value": [999_999.0] * 9}
    write_deltalake(str(screen.folder / "source"), pa.table(rows), mode="append")
    screen.land(3)
    before = ("suggest",), ("state", "--key", f"meter={wicked}")
    after = [command for command in AROUND_A_RUN if command[0] not in ("run", "backfill", "verify")]
    shown = {" ".join(command): screen.give(*command) for command in (*WHILE_HELD, *before, *after, ("run", wicked), (wicked,))}
    assert {name: found for name, text in shown.items() if (found := re.findall(r"[^\n -~\u00a1-\u2024\u202f-\ufffd]", text))} == {}
    seen = "␛]0;title␛[2J�1m�der"  # rich itself takes out what rings and returns
    assert f"{seen}[/] [bold]" in shown[f"state --key meter={wicked}"], "no markup"


def test_help_fits(screen, capsys):
    for command in COMMANDS.built_in:
        main([command, "--help"])
        assert too_long(capsys.readouterr().out) == []


def test_words_in_tables_are_whole(screen):
    screen.land(1)
    screen.give("run")
    assert str(screen.folder / "sink") in screen.give("status").replace(" ", "").replace("\n", "")
    rule = "column_pair_values_a_to_be_greater_than_b"
    assert screen.give("quality").count(rule) == 2
    stored = json.loads(screen.give("state", "--key", "meter=m-1", "--json"))
    shown = screen.give("state", "--key", "meter=m-1")
    times = {layout[bound] for layout in stored["layouts"].values() for bound in ("oldest", "newest")}
    times |= {entry["row"]["_slice"] for entry in stored["entries"]["slices"]}
    assert {part for time in times for part in time.split("T") if part not in shown} == set()


def test_a_pipe_gets_whole_lines_unless_its_columns_are_told(screen, capsys, monkeypatch):
    screen.land(1)
    for console in (terminal.console, terminal.errors):
        monkeypatch.setattr(console, "_force_terminal", False)
    monkeypatch.delenv("COLUMNS")
    [line] = screen.give("run").partition("\n\n")[0].splitlines()
    assert line.startswith("readings_of_meters: committed batch 0: ")
    assert len(line) > COLUMNS


def test_rules_as_yaml_fit_and_mean_the_same(screen):
    screen.land(1)
    screen.give("run")
    suggested: dict[str, Any] = yaml.safe_load(screen.give("suggest"))
    assert suggested["expectations"] == [each["rule"] for each in json.loads(screen.give("suggest", "--json"))["suggestions"]]
