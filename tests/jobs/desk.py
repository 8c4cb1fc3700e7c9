"""A spec in a file, the tables that it names, and commands over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import a_spec
from windowmill.jobs.cli import main


class Desk:
    """A spec of these ``fields``; source and sink are in ``folder``."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], **fields: Any) -> None:
        self.folder, self.capsys, self.path, self.fields = folder, capsys, folder / "p.yaml", fields
        self.write()

    def write(self, *, comment: str = "", **changes: Any) -> None:
        """Write the spec with these fields in the place of its own."""
        self.path.write_text(comment + yaml.safe_dump(a_spec(self.folder, **self.fields | changes), sort_keys=False))

    def land(self, **columns: Any) -> None:
        write_deltalake(str(self.folder / "source"), pa.table(columns), mode="append")

    def call(self, command: str, *options: str, path: object = None) -> tuple[int, str, str]:
        """Exit code, output and errors of a command over the spec, or over the file ``path``."""
        self.capsys.readouterr()
        return main([command, str(path or self.path), *options]), *self.capsys.readouterr()

    def told(self, command: str, *options: str, code: int = 0) -> Any:
        """What a command that ends with ``code`` says as JSON."""
        found, out, err = self.call(command, *options, "--json")
        assert found == code, err
        return json.loads(out)
