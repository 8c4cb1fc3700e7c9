"""Pages of docs/reference about a deployment: features of its tables, its settings, the metrics that it sends."""

from __future__ import annotations

from scripts.markdown import MADE, table
from windowmill.checkpoints.delta_tables import READABLE, WRITABLE_BY_DELTA_RS, WRITABLE_BY_SPARK
from windowmill.dags.metrics import METRICS
from windowmill.windowing.settings import OF_OTHERS, SETTINGS

#: Features of Delta's protocol that readers must know, and that are not known here.
_REFUSED = {"catalogManaged", "variantShredding", "variantType"}


def features_page() -> str:
    """Every table feature of Delta that is known here, and where a table may have it."""
    known = sorted(READABLE | WRITABLE_BY_SPARK | _REFUSED, key=str.lower)
    lines = [
        "# Table features",
        MADE,
        "Which features of Delta's protocol a source and a sink may have. Others are refused in one line, before any work.",
        "A feature that only writers need does not matter in a source: its files are read as ever.",
        "Into a sink with a feature that delta-rs cannot write, Spark appends the same files, on local file systems only.",
        "The pipeline's own tables, beside the sink, may have those that delta-rs writes.",
        "",
        *table(("feature", "source", "sink"), [(f"`{name}`", _read(name), _written(name)) for name in known]),
    ]
    return "\n".join(lines) + "\n"


def _read(feature: str) -> str:
    return "read" if feature in READABLE else "refused" if feature in _REFUSED else "does not matter"


def _written(feature: str) -> str:
    return "by delta-rs" if feature in WRITABLE_BY_DELTA_RS else "by Spark" if feature in WRITABLE_BY_SPARK else "refused"


def settings_page() -> str:
    """Every variable of the environment that is read."""
    readers = {"runs": "Commands, and the tasks of DAGs", "DAGs": "The DAGs of `WINDOWMILL_PIPELINES`", "set-up": "Set-up"}
    lines = [
        "# Settings",
        MADE,
        "Variables of the environment that windowmill reads. What one pipeline needs is a [field of its spec](spec.md).",
        "`windowmill doctor` lists those that are set, and warns of misspelt names.",
    ]
    for reader, title in readers.items():
        own = [setting for setting in SETTINGS if setting.read_by == reader]
        rows = [(f"`{setting.name}`", setting.meaning, setting.default, f"`{setting.example}`") for setting in own]
        lines += ["", f"## {title}", "", *table(("variable", "meaning", "without it", "example"), rows)]
    others = [(f"`{name}`", meaning) for name, meaning in OF_OTHERS.items()]
    lines += ["", "## Variables of others", "", *table(("variable", "meaning"), others)]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Every metric that tasks of Airflow send."""
    rows = [(f"`windowmill.{name}`", kind, f"`pipeline`{tags and ', '}{tags}", is_) for name, (kind, tags, is_) in METRICS.items()]
    lines = [
        "# Metrics",
        MADE,
        "Tasks of Airflow send them as its section `[metrics]` says: [Running under Airflow](../airflow.md#metrics).",
        "",
        *table(("metric", "kind", "tags", "is"), rows),
    ]
    return "\n".join(lines) + "\n"
