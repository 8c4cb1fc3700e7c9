"""Every fenced block of README, docs and examples is played by a test, or checked for what its language can be checked for.

Commands exist and take the flags that pages give them; imports find what they name, and calls give arguments that there are; YAML is
part of a valid spec. What nothing checks is listed here, with the reason.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.docs.console import ROOT
from tests.docs.test_pages import PAGES
from tests.specs import a_spec
from windowmill.jobs.commands import COMMANDS
from windowmill.jobs.commands.terminal import app
from windowmill.jobs.spec_checks import problems_of
from windowmill.windowing.specfile import parse_pipeline, parse_yaml

GROUP: Any = typer.main.get_command(app)
BLOCK = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
#: Languages of blocks that other tests play or count: commands with their output, whole pipelines, drawings, what programs print.
PLAYED = {
    "console": "docs/test_pages.py, kafka/test_page.py, catalog/test_page.py",
    "": "drawings: windowing/test_drawings.py, windowing/test_costs_page.py; commands in them are checked below",
    "text": "what an example prints: examples/test_examples.py",
}
#: Programs that are not ours, whose lines are not checked.
OTHERS = {".", "pip", "export", "ln", "printf", "airflow", "$SPARK_HOME/bin/spark-class"}
#: Blocks of SQL, which no engine of ours runs as they stand.
SQL = {
    "docs/coming-from.md": "Flink's dialect, beside the same pipeline in YAML",
    "docs/state-format.md": "has a placeholder for the keys; tests/checkpoints reads states by this rule",
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


BLOCKS = [
    Block(page, found.string.count("\n", 0, found.start()) + 1, found["language"], found["text"])
    for page in PAGES
    for found in BLOCK.finditer(page.read_text())
]
CHECKED = {"yaml", "python", "sh", "bash", "toml", "properties", "sql"}


def of(*languages: str) -> Any:
    return pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in languages], ids=str)


def test_every_block_is_played_or_checked():
    assert {block.language for block in BLOCKS} == {*PLAYED, *CHECKED}
    assert {str(block.page.relative_to(ROOT)) for block in BLOCKS if block.language == "sql"} == SQL.keys()
    played = {block.page for block in BLOCKS if block.language == "console"}
    assert len(played) >= 4
    assert all(page.parent.name == "how-to" for page in played)


def write_others(block: Block, folder: Path, source: Mapping[str, Any]) -> None:
    """Write the files that the page names, and the one that a ``source`` names if that is another pipeline."""
    other = a_spec("/other", pipeline="other", windows=[{"name": source.get("window", "w"), "type": "tumbling", "size": "1 hour"}])
    (folder / source["pipeline"]).write_text(json.dumps(other))
    for found in re.finditer(r"^`(?P<name>[\w-]+\.yaml)`:\n```yaml\n(?P<text>.*?)^```", block.page.read_text(), re.MULTILINE | re.DOTALL):
        (folder / found["name"]).write_text(found["text"])


@of("yaml")
def test_yaml_is_part_of_a_valid_spec(block, tmp_path, monkeypatch):
    part, _ = parse_yaml(block.text)
    spec = a_spec("/data", keys=["k"]) | part
    if "pipeline" in part.get("source", {}):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("WAREHOUSE", "/data")
        write_others(block, tmp_path, part["source"])
        spec |= {"time": part.get("time", {}), "keys": part.get("keys", [])}
    pipeline = parse_pipeline(spec, environment={"WAREHOUSE": "/data", "TOPICS_PASSWORD": "x"})
    assert "pipeline" not in part or not list(problems_of(pipeline))


def commands_in(text: str) -> Iterator[list[str]]:
    """Words of the commands of a block of a shell."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for is_sign, words in groupby(shlex.split(line, comments=True), lambda word: word in ("&&", "&", "|", ";")):
            if not is_sign:
                yield list(words)


def check_windowmill(words: list[str]) -> None:
    """The command exists, and takes these words; it is not run."""
    if words[0].startswith("-"):
        return
    assert words[0] in COMMANDS, f"there is no command {words[0]}"
    GROUP.commands[words[0]].make_context(words[0], words[1:])


@of("sh", "bash")
def test_commands_and_their_flags_exist(block):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands_in(block.text):
        program = words[0]
        if program.endswith("windowmill"):
            check_windowmill(words[1:])
        elif program == "make":
            assert set(words[1:]) <= targets
        elif program.startswith("python"):
            assert words[1] == "-m"
            assert find_spec(words[2]) is not None
        else:
            assert program in OTHERS, f"{block}: {program}: check it, or list it"


@of("")
def test_commands_beside_their_output_exist(block):
    for line in re.findall(r"^\$ windowmill (.+)$", block.text, re.MULTILINE):
        check_windowmill(shlex.split(line))


@of("python")
def test_imports_find_what_they_name_and_calls_fit(block):
    tree = ast.parse(block.text)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block}: {node.module} has no {alias.name}"
                names[alias.asname or alias.name] = getattr(module, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            _check_call(names[node.func.id], node, block)


def _check_call(function: Any, node: ast.Call, block: Block) -> None:
    if not getattr(function, "__module__", "").startswith("windowmill"):
        return
    given = {word.arg: None for word in node.keywords if word.arg is not None}
    signature = inspect.signature(function)
    spread = len(given) < len(node.keywords)  # ``**others`` may give what is missing
    try:
        (signature.bind_partial if spread else signature.bind)(*node.args, **given)
    except TypeError as err:
        raise AssertionError(f"{block}: {ast.unparse(node)}: {err}") from err


@of("toml", "properties")
def test_toml_and_properties_are_read(block):
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        assert all(re.fullmatch(r"spark\.\S+ +\S+", line) for line in block.text.splitlines())
