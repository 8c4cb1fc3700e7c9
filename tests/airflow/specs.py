"""A small pipeline's spec, with texts in it replaced."""

from __future__ import annotations

from pathlib import Path

SPEC = """\
pipeline: {name}
source: {{path: "{folder}/events"}}
keys: [origin]
time: {{column: departed_at, lateness: 1 hour}}
windows:
  - {{name: hourly, type: tumbling, size: 1 hour}}
aggregates:
  flights: {{count: "*"}}
sink: {{path: "{folder}/{name}"}}
schedule: "*/30 * * * *"
"""


def written(tables: Path, name: str = "delays", folder: Path | None = None, **replaced: str) -> Path:
    """Write the spec of a pipeline whose tables are below ``tables``, there or into ``folder``; returns its path."""
    text = SPEC.format(name=name, folder=tables)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = (folder or tables) / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
