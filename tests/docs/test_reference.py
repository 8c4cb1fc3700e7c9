"""docs/reference is what the code says, and every field of a spec is described with an example that the spec takes."""

from __future__ import annotations

import jsonschema
import pytest

from scripts.reference import FOLDER, pages
from windowmill.windowing.spec_guide import GUIDE, described_schema


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
