"""Every malformed spec is refused in clear lines, each with the file, the line and the field; none with a trace, and none takes long."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from windowmill.jobs.cli import main
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

BASE = """\
pipeline: p
source: {path: /data/in}
keys: [k]
time: {column: t, tie_break: [id], disorder: 5 minutes, lateness: 1 hour}
windows:
  - {name: hourly, type: tumbling, size: 1 hour}
  - {name: rolling, type: hopping, size: 1 hour, hop: 5 minutes}
aggregates:
  n: {count: "*"}
  mean_delay: {mean: delay}
sink: {path: /data/out}
expectations:
  - {type: expect_column_values_to_be_between, column: mean_delay, min_value: -10, max_value: 99}
schedule: "@daily"
"""
LONGEST = 1_000


def corpus() -> list[Any]:
    groups = yaml.safe_load((Path(__file__).parent / "malformed_specs.yaml").read_text(encoding="utf-8"))
    found = []
    for group in groups:
        for number, case in enumerate(group["cases"]):
            text = case["text"] if "text" in case else BASE.replace(group["instead_of"], case["is"], 1)
            assert text != BASE
            name = f"{group['instead_of'].strip().partition(':')[0] or 'file'}-{number}"
            found.append(pytest.param(text, case["says"], case.get("lines", 1), id=name))
    return found


CORPUS = corpus()
#: What would be unwieldy in the file: (text, part of the message).
LARGE = {
    "list in list": ("[" * 2_000 + "]" * 2_000, "more than 32 deep"),
    "unclosed lists": ("[" * 1_000_000, "more than 32 deep"),
    "mapping in mapping": ("{a: " * 2_000 + "1" + "}" * 2_000, "more than 32 deep"),
    "JSON": ('{"a": ' * 2_000 + "1" + "}" * 2_000, "more than 32 deep"),
    "indented": ("".join("  " * depth + "a:\n" for depth in range(300)), "more than 32 deep"),
    "block lists": ("- " * 100_000 + "a", "more than 32 deep"),
    "complex keys": ("? " * 100_000 + "a", "is given as a field's name|more than 32 deep"),
    "more than a mebibyte": (BASE + "#" * (1 << 20), "a spec has at most 1048576"),
    "a name of 100,000 signs": (BASE + "x" * 100_000 + ": 1\n", "not readable as YAML"),
    "digits": (BASE + "x: " + "9" * 100_000 + "\n", "which is no int"),
    "a length of digits": (BASE.replace("lateness: 1 hour", f"lateness: '{'9' * 6_000} days'"), "time.lateness: got '9999"),
    "a list of lengths": (BASE.replace("lateness: 1 hour", f"lateness: '{'1 hour ' * 2_000}'"), "time.lateness: got '1 hour 1 hour"),
    "5,000 unknown fields": ("\n".join(f"f{i}: {i}" for i in range(5_000)), "and more of the kind"),
    "brackets": (BASE.replace('{count: "*"}', "{count: '*', where: '" + "(" * 3_000 + "v" + ")" * 3_000 + " > 1'}"), "too deep"),
    "a long condition": (BASE.replace('{count: "*"}', f"{{count: '*', where: '{'v > 1 or ' * 2_000} v > 1'}}"), "at most 10000"),
    "a path": (BASE.replace("/data/in", "/" + "x" * 3_000), "expected at most 2048"),
    "anchors": ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "aliases are not read"),
}


def told(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    code = main(["validate", str(path)])
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.removeprefix("windowmill: ").splitlines()
    assert all(line.startswith((str(path), "… and more")) for line in lines), lines
    assert all(len(line) < LONGEST for line in lines)
    return code, [line.removeprefix(str(path)) for line in lines]


def test_there_are_enough_of_them():
    texts = {case.values[0] for case in CORPUS}
    assert len(texts) == len(CORPUS) > 400


@pytest.mark.covers("X3", "X5", "X5")
@pytest.mark.parametrize(("text", "says", "lines"), CORPUS)
def test_a_malformed_spec_is_refused_in_a_line(tmp_path, capsys, monkeypatch, text, says, lines):
    monkeypatch.setenv("A", "x")
    code, found = told(tmp_path, text, capsys)
    assert code == 2
    assert found[0].startswith(says)
    assert len(found) == lines


@pytest.mark.covers("X5")
@pytest.mark.parametrize("name", LARGE)
def test_a_spec_of_great_size_is_refused_at_once(tmp_path, capsys, name):
    text, says = LARGE[name]
    began, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, found = told(tmp_path, text, capsys)
    assert code == 2
    assert any(part in "\n".join(found) for part in says.split("|"))
    assert len(found) <= 21
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000, "kilobytes"


def test_what_is_no_file_or_not_utf_8_is_refused(tmp_path):
    for name in ("none.yaml", ".", "a\0b"):
        with pytest.raises(SpecError, match="cannot be read"):
            load_pipeline(f"{tmp_path}/{name}")
    for raw in (b"\xff\xfea\x00", b"pipeline: \xe4\n", "pipeline: ä\n".encode("utf-16"), b"\x80"):
        (tmp_path / "p.yaml").write_bytes(raw)
        with pytest.raises(SpecError, match=r"not UTF-8 text .* save it as UTF-8"):
            load_pipeline(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    "text", [BASE.replace("\n", "\r\n"), "\ufeff" + BASE, "\n\n" + BASE + "\n...\n", BASE.replace("pipeline: p", '"pipeline": p')]
)
def test_other_spellings_of_the_same_file_are_read(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_bytes(text.encode())
    assert load_pipeline(path) == parse_pipeline(yaml.safe_load(BASE))
    assert main(["validate", str(path)]) == 0
    path.write_text(BASE.replace("mean_delay", "on"))
    assert list(load_pipeline(path).aggregates) == ["n", "on"], "names are text as they are written"


@pytest.mark.parametrize("depth", [40, 3_000])
def test_mappings_of_python_are_no_deeper_than_files(depth):
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    with pytest.raises(SpecError, match="more than 32 deep"):
        parse_pipeline(value)
    value = {}
    value["a"] = value
    with pytest.raises(SpecError, match="more than 32 deep"):
        parse_pipeline(value)
    with pytest.raises(SpecError, match="as a field's name; expected text"):
        parse_pipeline({1: 2})


@pytest.mark.parametrize("place", [0, 60, 250, 330, -1])
def test_the_command_says_it_on_standard_error(tmp_path, place):
    text, says, lines = CORPUS[place].values
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    ran = subprocess.run(
        [sys.executable, "-m", "windowmill.jobs.cli", "validate", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"windowmill: {path}{says}")
    assert len(ran.stderr.splitlines()) == lines
