"""What a task returns to the driver, as JSON: values of a few known classes, and the errors that have a meaning to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile
from windowmill.windowing import errors
from windowmill.windowing.counts import Counts, WindowRows

#: The column of a task's result, as :func:`encoded`.
RETURNED = pa.schema([("returned", pa.binary())])

T = TypeVar("T", bound=type)

_KNOWN: dict[str, type] = {kind.__name__: kind for kind in (Changes, DataFile, Counts, WindowRows)}
_KNOWN |= {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.WindowmillError)}
_SEQUENCES = {kind.__name__: kind for kind in (tuple, list, set, frozenset)}


def returnable(kind: T) -> T:
    """Tasks may return values of this dataclass or error; a class decorator."""
    _KNOWN[kind.__name__] = kind
    return kind


def encoded(value: object) -> bytes:
    """``value`` as JSON; raises ``TypeError`` if it is of another class."""
    return json.dumps(_plain(value)).encode()


def decoded(text: bytes) -> Any:
    return _value(json.loads(text))


def encode_result(value: object) -> Iterator[pa.RecordBatch]:
    """The row that a task yields to return ``value`` to the driver."""
    yield pa.record_batch([pa.array([encoded(value)], pa.binary())], schema=RETURNED)


def collect_results(frame: Any) -> list[Any]:
    """Run the tasks of ``frame``, a DataFrame whose rows are those of :func:`encode_result`, and decode their results."""
    return [decoded(bytes(row[0])) for row in frame.collect()]


def _plain(value: Any) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {"": "map", "cells": {name: _plain(cell) for name, cell in value.items()}}
    if kind in _SEQUENCES:
        return {"": kind, "items": [_plain(item) for item in value]}
    if _KNOWN.get(kind) is not type(value):
        raise TypeError(f"a task cannot return a {kind}")
    if isinstance(value, Exception):
        return {"": kind, "text": str(value)}
    assert is_dataclass(value)
    return {"": kind, "cells": {each.name: _plain(getattr(value, each.name)) for each in fields(value)}}


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    kind = plain[""]
    if kind == "map":
        return {name: _value(cell) for name, cell in plain["cells"].items()}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_value(item) for item in plain["items"])
    if "text" in plain:
        return _KNOWN[kind](plain["text"])
    return _KNOWN[kind](**{name: _value(cell) for name, cell in plain["cells"].items()})
