"""Pages are true: commands print what they show, README's pipeline runs, links lead somewhere, docs/reference is what the code says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scripts.reference import FOLDER, pages
from scripts.site import separated
from tests.docs.console import LOCAL, ROOT, play, settled
from windowmill.jobs.cli import main
from windowmill.windowing.spec_guide import GUIDE, described_schema

README = ROOT / "README.md"
INSTALL = ROOT / "docs" / "how-to" / "install.md"
#: Beginnings of commands of INSTALL that no test of pages executes, with the reason.
UNPLAYED = {
    "pip install": "changes the environment; scripts/release.sh installs the wheel in an empty one",
    "pip freeze": "reads an environment that has just been changed",
    "windowmill setup": "takes minutes; scripts/release.sh runs it",
    "windowmill doctor": "is about the machine; tests/jobs/test_doctor.py",
    "windowmill tutorial": "is played by tests/jobs/test_tutorial.py",
    "python3.11 -m venv": "makes an environment, into which nothing could be installed without a network",
    "python -m windowmill.dags.pools": "writes into Airflow's database; tests/airflow",
    "airflow dags unpause": "writes into Airflow's database; tests/airflow",
}
PAGES = [*sorted(ROOT.glob("*.md")), *(path for name in ("docs", "examples") for path in sorted((ROOT / name).rglob("*.md")))]
LINK = re.compile(r"(?<!!)\[[^]]+\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


@pytest.mark.parametrize("page", LOCAL, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page):
    text = page.read_text()
    with TemporaryDirectory() as folder:  # a short path: tables wrap the long one of pytest
        played = play(text, Path(folder))
    assert settled(played) == settled(text), f"{page}: `python -m tests.docs.console` writes what is printed now"


def test_the_readmes_pipeline_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAREHOUSE", str(tmp_path))
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    text = README.read_text()
    [spec] = re.findall(r"^```yaml\n(pipeline:.*?)^```", text, re.MULTILINE | re.DOTALL)
    Path("pipeline.yaml").write_text(spec)
    at = [datetime(2013, 1, 3 + hour // 24, hour % 24, 5, tzinfo=UTC) for hour in range(48)]
    flights = {"origin": ["JFK", "LGA"] * 24, "carrier": ["B6"] * 48, "departed_at": at, "delay": list(range(48))}
    write_deltalake("flights", pa.table(flights | {"flight_id": [f"f{hour}" for hour in range(48)]}))
    row = {"origin": "JFK", "carrier": "B6", "departed_at": "2013-01-01T10:05:00Z", "delay": 12, "flight_id": "a"}
    Path("rows.jsonl").write_text(json.dumps(row))
    commands = [line.partition("#")[0].split() for line in text.splitlines() if line.startswith("windowmill ")]
    assert {words[1] for words in commands} >= {"validate", "explain", "backfill", "run", "status"}
    for words in commands:
        if words[1] != "serve":  # which goes on until it is stopped
            assert main(words[1:]) == 0, words
    status = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status["rows_read"], status["rows_quarantined"], status["versions_waiting"]) == (48, 0, 0)
    assert set(DeltaTable("flight_delays").to_pyarrow_table()["window"].to_pylist()) >= {"hourly", "rolling_day", "rolling_week"}


def test_the_commands_of_install_work_or_are_tested_elsewhere(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```", INSTALL.read_text(), re.MULTILINE | re.DOTALL)
    played = [line for block in blocks for line in block.splitlines() if not line.startswith(tuple(UNPLAYED))]
    assert [line.partition(" ")[0] for line in played] == ["ln", "export", "export"]
    (tmp_path / "dags").mkdir()
    script = "\n".join(["set -eu", f'AIRFLOW_HOME="{tmp_path}"', *played])
    own = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", script], check=True, cwd=tmp_path, env=own)
    assert (tmp_path / "dags" / "windowmill_dags" / "pipelines.py").is_file()
    text = INSTALL.read_text().replace("`", "\n")
    assert [begin for begin in UNPLAYED if f"\n{begin}" not in text] == []


def test_install_names_every_extra_and_the_readme_is_one_page():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys() - {"dev"}
    table = INSTALL.read_text().partition("## Extras")[2].partition("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras
    assert len(README.read_text().splitlines()) < 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.finditer(page.read_text()):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), f"{page}: {link[0]}"
        if link["anchor"] and target.suffix == ".md":
            assert link["anchor"] in anchors(target), f"{page}: {link[0]}"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-") for heading in headings}


def test_the_pages_are_those_of_the_code(monkeypatch):
    monkeypatch.delenv("WINDOWMILL_COMPUTE", raising=False)
    made = pages()
    assert {path.name for path in FOLDER.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"docs/reference/{name} is not what the code says; run `python -m scripts.reference`"


SCHEMA = described_schema()
PARTS = {"Pipeline": SCHEMA, **SCHEMA["$defs"]}


@pytest.mark.parametrize("name", PARTS)
def test_every_field_is_described_and_no_other(name):
    assert set(GUIDE[name]) == set(PARTS[name].get("properties", {}))
    for field, settings in PARTS[name]["properties"].items():
        assert settings["description"].endswith("."), (name, field)
        assert "examples" in settings or "const" in settings, (name, field)
        for example in settings.get("examples", ()):
            jsonschema.validate(example, settings | {"$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("It has:\n- a\n  and more\n- b", "It has:\n\n- a\n  and more\n- b"),
        ("First:\n1. a\n2. b", "First:\n\n1. a\n2. b"),
        ("So:\n| a |\n|---|\n| 1 |", "So:\n\n| a |\n|---|\n| 1 |"),
        ("Is there:\n\n- a", "Is there:\n\n- a"),
        ("```yaml\nwindows:\n- a\n```", "```yaml\nwindows:\n- a\n```"),
        ("So:\n```\n| a |\n```\n- b", "So:\n```\n| a |\n```\n\n- b"),
    ],
)
def test_lists_and_tables_begin_after_an_empty_line(written, shown):
    assert separated(written) == shown
