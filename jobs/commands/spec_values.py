"""Specs as commands read them: what the environment has filled in is told as it is written, ``${NAME}``, in whatever is said later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Of the specs that this command has read: text as written -> the text with the values of variables.
_hidden: dict[str, str] = {}


def load_pipeline(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
    """As :func:`windowmill.windowing.specfile.load_pipeline`; :func:`as_written` then knows the spec's variables."""
    from windowmill.windowing.specfile import read_spec  # a command that reads no spec does without pydantic

    read = read_spec(path, environment)
    _hidden.update(read.hidden)
    return read.pipeline


def as_written(text: str) -> str:
    """``text`` with values of variables as their specs write them. Paths of tables are told with their values."""
    if not _hidden:
        return text
    from windowmill.windowing.redaction import as_written as written

    return written(text, _hidden)


def forget() -> None:
    """Forget the specs that have been read: another command begins."""
    _hidden.clear()
