"""What the made pages of docs/reference share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python -m scripts.reference`; change the code, not this page. -->\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown; none without rows."""
    cells = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *(f"| {row} |" for row in cells)] if cells else []
