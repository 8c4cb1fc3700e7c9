"""Specs are parsed by libyaml, and mean what PyYAML's own parser makes of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from windowmill.windowing import specfile
from windowmill.windowing.specfile import _lines, parse_yaml

EXAMPLE = (Path(__file__).parents[2] / "examples" / "flights" / "pipeline.yaml").read_text()
TEXTS = [
    *(EXAMPLE, 'a: [x:y, "q": 1]\n', "a: {b:1, c: 2}\n", 'k: "\\u00e9\\x41"\n', "a: 'it''s'\n", "a: |\n  x\n  y\n"),
    *("a: >-\n  x\n\n  y\n", "a: 2013-01-01T00:00:00Z\nb: 0x1F\nc: 1_000\nd: 1:30\ne: .inf\nf: ~\n", 'a: "x\n  y"\n'),
    *("%YAML 1.1\n---\na: 1\n...\n", "a: 1\n---\nb: 2\n", "- a\n- b\n", "&x a: 1\nb: *x\n"),
]
CHARACTERS = list(" \t\n:-[]{}#'\"|>&*!%?,aé1.0~\u2028\u0085\ufeff\\")


def outcome(parse: Any, text: str) -> Any:
    try:
        value, node = parse(text)
    except (yaml.YAMLError, ValueError, OverflowError) as err:  # the last two for escapes such as "\UFFFFFFFF"
        return type(err), str(err)
    return repr(value), _lines(node)


def test_both_parsers_agree():
    rng = random.Random(7)
    accepted = 0
    for _ in range(3_000):
        text = rng.choice(TEXTS)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(CHARACTERS) + text[at + rng.randrange(2) :]
        plainly = outcome(lambda text: specfile._document(specfile._PlainLoader, text), text)
        assert outcome(parse_yaml, text) == plainly, text
        accepted += isinstance(plainly[0], str)
    assert 500 < accepted < 2_500


def test_a_spec_is_read_by_the_quick_parser(monkeypatch):
    monkeypatch.setattr(specfile, "_PlainLoader", None)
    assert parse_yaml(EXAMPLE)[0]["pipeline"] == "flight_delays"
