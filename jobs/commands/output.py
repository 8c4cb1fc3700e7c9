"""Where commands print: text or JSON, and errors and progress beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Answer:
    """One answer in two forms: JSON values in ``data``, and in ``text`` what a terminal shows (a string or a rich table)."""

    data: Any
    text: Any


def show(answer: Answer, as_json: bool) -> None:
    """Print ``answer`` as it was asked for."""
    if as_json:
        print(json.dumps(answer.data))
    else:
        console.print(answer.text)
