"""Writes docs/reference from the code: fields of the spec, aggregates, commands, tables, settings and more. ``--check`` only compares."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import typer
import yaml
from rich.console import Console

from scripts.deployment_pages import features_page, metrics_page, settings_page
from scripts.markdown import MADE, table
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import table_at, write_table
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands import COMMANDS, command_of
from windowmill.windowing.aggregates import aggregate_for, argument_types, value_type
from windowmill.windowing.catalogue import DECLARED, AggregateSpec, Declaration, parse_aggregate
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.recipes import OPERATIONS
from windowmill.windowing.registry import resolve
from windowmill.windowing.spec_guide import described_schema
from windowmill.windowing.specfile import parse_pipeline

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"


def pages() -> dict[str, str]:
    """Text of each page by its name."""
    return {
        "spec.md": spec_page(),
        "aggregates.md": aggregates_page(),
        "commands.md": commands_page(),
        "tables.md": tables_page(),
        "table-features.md": features_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
    }


# -- The spec

_SECTIONS = {
    "Pipeline": "A pipeline",
    "Source": "`source`",
    "SourceStep": "`steps`",
    "Lookup": "`steps.lookup`",
    "Dedup": "`dedup`",
    "Time": "`time`",
    "Tumbling": "`windows`: `type: tumbling`",
    "Hopping": "`windows`: `type: hopping`",
    "Cumulative": "`windows`: `type: cumulative`",
    "Session": "`windows`: `type: session`",
    "Sliding": "`windows`: `type: sliding`",
    "Snapshot": "`windows`: `type: snapshot`",
    "Count": "`windows`: `type: count`",
    "Custom": "`windows`: `type: custom`",
    "Policy": "`evict`, `trigger`: a policy",
    "Delta": "`delta` of a policy",
    "Sink": "`sink`",
    "Table": "`checkpoints`",
    "Expectation": "`expectations`",
    "QuarantineLimits": "`quarantine`",
    "SavepointPolicy": "`savepoints`",
    "AssetSchedule": "`schedule`: an asset",
    "AirflowSettings": "`airflow`: settings of the DAGs",
}

#: Classes whose sections are not what a field's type is called.
_NOUNS = {
    "Policy": "policy",
    "SourceStep": "step",
    "Lookup": "lookup",
    "Table": "table",
    "Delta": "column and difference",
    "Expectation": "rules",
    "AssetSchedule": "asset",
    "AirflowSettings": "settings",
}


def spec_page() -> str:
    """Every field with its type, default and an example."""
    schema = described_schema()
    parts = {"Pipeline": schema, **schema["$defs"]}
    missing = sorted(set(parts) - set(_SECTIONS))
    if missing:
        raise ValueError(f"scripts/reference.py: _SECTIONS names no section for {', '.join(missing)}")
    lines = [
        "# Fields of a spec",
        MADE,
        "Durations read `90 seconds`, `1 hour 30 minutes` or `PT5M`; on an integer axis (`time.unit`) they are whole numbers.",
        "`${NAME}` is a variable of the environment. Unknown fields are refused.",
        "`windowmill schema` prints the same as JSON schema, for editors.",
        "[Semantics](../semantics.md) says what follows from each field.",
    ]
    for name, title in _SECTIONS.items():
        lines += ["", f"## {title}", "", _sentence(parts[name].get("description", "")), "", *_fields(parts[name])]
    return "\n".join(lines) + "\n"


def _sentence(description: str) -> str:
    return " ".join(description.split("\n\n", maxsplit=1)[0].split()).replace("``", "`")


def _fields(part: Mapping[str, Any]) -> Iterable[str]:
    rows = []
    for field, settings in part["properties"].items():
        required = field in part.get("required", ())
        default = "required" if required else _default(settings.get("default"))
        example = settings["examples"][0] if "examples" in settings else settings.get("const")
        rows.append((f"`{field}`", settings.get("description", ""), _type(settings), default, f"`{field}: {_inline(example)}`"))
    return table(("field", "meaning", "type", "default", "example"), rows)


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1_000, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _default(value: Any) -> str:
    if isinstance(value, dict) and "ticks" in value:  # a duration of zero
        return "`0`"
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    if isinstance(value, float):
        value = f"{value:.0%}".replace("%", " %")
    return "–" if value is None or value in ({}, []) else f"`{_inline(value)}`"


def _type(settings: Mapping[str, Any]) -> str:
    if "$ref" in settings:
        name = settings["$ref"].rpartition("/")[2]
        return _NOUNS.get(name, _SECTIONS[name])
    if "enum" in settings:
        return ", ".join(f"`{value}`" for value in settings["enum"])
    if "const" in settings:
        return f"`{settings['const']}`"
    if "anyOf" in settings:
        return _one_of([kind for kind in settings["anyOf"] if kind.get("type") != "null"])
    if "oneOf" in settings:
        return " or ".join(_type(kind) for kind in settings["oneOf"])
    kind = settings.get("type")
    if kind == "array":
        inner = settings["items"]
        return "list of windows" if "discriminator" in inner else f"list of {_type(inner)}"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`", "object": "mapping"}
    return names.get(str(kind), "mapping")


def _one_of(kinds: Sequence[Mapping[str, Any]]) -> str:
    named = {kind.get("type") for kind in kinds}
    if any(kind.get("format") == "date-time" for kind in kinds):
        return "instant, or whole number" if "integer" in named else "instant"
    if named == {"string", "integer"}:
        return "duration"
    if named == {"string", "integer", "number"}:
        return "number, or duration"
    if named == {"string", "number"}:
        return "share"
    return ", or ".join(dict.fromkeys(map(_type, kinds)))


# -- Aggregates


def aggregates_page() -> str:
    """Every aggregate with what holds of it."""
    rows = []
    for name, declared in DECLARED.items():
        spec = parse_aggregate({name: _argument(declared)})
        taken = [kind for kind in _KINDS if _takes(spec, kind)]
        built = {type_: found for type_ in _TYPES if type_ in map(value_type, taken) and (found := _facts_of(spec, type_))}
        star = f"`{_inline({name: '*'})}`, " if declared.star else ""
        rows.append((f"{star}`{_inline({name: _argument(declared)})}`", _types(taken), *_facts(built), _kept(declared)))
    columns = ("written", "columns of type", "result", "exact for", "deducts for", "idempotent", "partial")
    return (
        "\n".join(
            [
                "# Aggregates",
                MADE,
                "Each takes `where: condition`. Nulls are skipped. *Exact*: the result has the same bits however the rows were grouped.",
                "*Deducts*: the oldest rows can be taken out of a partial again. *Partial*: what the state holds of a stretch of rows.",
                "An aggregate of yours: [Writing a pipeline](../writing-a-pipeline.md#your-own-aggregate). How results are rounded:",
                "[numerics](../numerics.md).",
                "",
                *table(columns, rows),
            ]
        )
        + "\n"
    )


def _argument(declared: Declaration) -> Any:
    examples: Mapping[str, Any] = {"k": 3, "q": 0.95, "edges": [0, 10, 100]}
    if declared.options:
        return {"column": "x", **{name: examples[name] for name, option in declared.options.items() if option.default is None}}
    return list(declared.columns) if len(declared.columns) > 1 else "x"


def _takes(spec: AggregateSpec, kind: pa.DataType) -> bool:
    try:
        argument_types(spec, dict.fromkeys(spec.columns, kind), "")
    except SpecError:
        return False
    return True


class _Facts(NamedTuple):
    """What holds of an aggregate over columns of one type."""

    result: str
    exact: bool
    deducts: bool
    idempotent: bool


def _facts_of(spec: AggregateSpec, type_: str) -> _Facts | None:
    declared, arguments = spec.declaration, max(1, len(spec.columns))
    if declared.takes == "number" and type_ == "bool":  # truth counts as whole numbers
        return None
    if declared.recipe is None:
        built = aggregate_for(spec, [type_] * arguments)
        result = "that of the column" if built.result == "same" else built.result
        return _Facts(result, built.exact and not built.accuracy, built.deduct is not None, built.idempotent)
    kind = next(kind for kind in _KINDS if value_type(kind) == type_)
    atoms, result_type = resolve(declared.recipe).atoms(spec, [kind] * arguments)
    operations = {OPERATIONS[atom.kind][0] for atom in atoms}
    return _Facts(
        "that of the column" if declared.picks else _named(result_type),
        operations <= {*_SUMS, *_EXTREMES, op.COUNT_LEAST, op.COUNT_GREATEST},
        operations <= _SUMS,
        operations <= _EXTREMES,
    )


#: Operations of kernels on whole numbers, and on values of which one is kept.
_SUMS, _EXTREMES = {op.ADD, op.WIDE, op.WIDER}, {op.LEAST, op.GREATEST}


def _named(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_named(field.type)}' for field in kind)}>"
    return f"list<{_named(kind.value_type)}>" if pa.types.is_list(kind) else value_type(kind)


def _types(taken: Sequence[pa.DataType]) -> str:
    if len(taken) >= len(_KINDS) - 1:
        return "any" if len(taken) == len(_KINDS) else "any but nested"
    return ", ".join(_KINDS[kind] for kind in taken)


def _facts(built: Mapping[str, _Facts]) -> tuple[str, str, str, str]:
    def of(types: Iterable[str]) -> str:
        named = [_TYPES[type_] for type_ in types]
        return "all" if len(named) == len(built) else ", ".join(named) or "–"

    results = ", ".join(dict.fromkeys(found.result for found in built.values()))
    exact = of(type_ for type_, found in built.items() if found.exact)
    deducts = of(type_ for type_, found in built.items() if found.deducts)
    idempotent = "yes" if all(found.idempotent for found in built.values()) else "no"
    return f"`{results}`" if "column" not in results else results.replace("list<same>", "list"), exact, deducts, idempotent


def _kept(declared: Declaration) -> str:
    return {"numbers": "columns of numbers", "objects": "bytes", "none": "area and length of each slice"}[declared.partial]


_TYPES = {"int64": "integer", "float64": "float", "decimal": "decimal", "bool": "boolean", "string": "text"}
#: A type of columns of each sort that aggregates tell apart; nested ones come last.
_KINDS = {
    pa.int64(): "integer",
    pa.float64(): "float",
    pa.decimal128(38, 9): "decimal",
    pa.bool_(): "boolean",
    pa.string(): "text",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.binary(): "binary",
    pa.list_(pa.int64()): "nested",
}


# -- Commands


def commands_page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        MADE,
        "`windowmill COMMAND --help` says the same. Every command takes `--debug`, which shows the traceback of an error.",
        "Exit codes: 0 done, 1 failed (a retry may mend it), 2 wrong usage, spec or source (no retry can), 3 held by a rule of quality.",
    ]
    for name in COMMANDS.built_in:
        alone = typer.Typer(add_completion=False)
        alone.command(name=name)(command_of(name))
        command = typer.main.get_command(alone)
        arguments = [option for option in command.params if option.param_type_name == "argument"]
        options = [option for option in command.params if option.param_type_name == "option" and option.name != "help"]
        usage = " ".join(["windowmill", name, *(str(argument.metavar) for argument in arguments)])
        lines += ["", f"## `{usage}`", "", " ".join((command.help or "").split()), ""]
        lines += table(("option", "", "default"), [_option(option) for option in options])
    return "\n".join(lines) + "\n"


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    shown = option.default() if callable(option.default) else option.default
    default = (
        "required" if option.required else "–" if shown in (None, False, [], ()) else f"`{str(shown).lower() if shown is True else shown}`"
    )
    return names, option.help or "", default


# -- Tables

_SPEC = {
    "pipeline": "page_visits",
    "keys": ["visitor"],
    "time": {"column": "at", "tie_break": ["page"]},
    "windows": [
        {"name": "hourly", "type": "tumbling", "size": "1 hour"},
        {"name": "visit", "type": "session", "gap": "30 minutes"},
        {"name": "last_ten", "type": "sliding", "evict": {"count": 10}},
    ],
    "aggregates": {"pages": {"count": "*"}, "mean_spent": {"mean": "spent"}, "last_page": {"last": "page"}},
    "quarantine": {"hold": "never"},
    "dedup": {"by": ["visitor", "at"]},
    "compute": "local",
}
_VISITS = [
    {"visitor": "ann", "at": "2024-03-04T08:00:00Z", "page": "home", "spent": 0.0},
    {"visitor": "ann", "at": "2024-03-04T09:40:00Z", "page": "shoes", "spent": 4.5},
    {"visitor": "ben", "at": None, "page": "home", "spent": 0.0},
]
#: Table -> what a row of it is.
_ROWS = {
    "sink": "A result row: a window of a key, or a revision of it.",
    "quarantine": "A row of the source that was never applied.",
    "quality": "The result of one rule for one batch.",
    "ledger": "A record: a batch, or a ruling on a held one.",
    "seen": "A row that was applied, by which later ones are duplicates.",
    "state": "What a batch added to the state. Columns depend on the windows and aggregates of the spec; these are the pipeline's below.",
}
#: Table -> column -> what it holds.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "sink": {
        "visitor": "a key",
        "window": "name of the window",
        "window_start": "begin of the window; of windows with policies the time of the oldest tuple",
        "window_end": "end of the window; of windows with policies the time at which it fired",
        "trigger": "number of the result of a key, of windows with policies; else null",
        "revision": "0, and one more each time that the window is shown again",
        "retracted": "true in a row that takes its window out of the latest view, else false",
        "pages": "an aggregate",
        "mean_spent": "an aggregate",
        "last_page": "an aggregate",
        "batch": "the batch that published the row",
    },
    "quarantine": {
        "pipeline": "name of the pipeline",
        "generation": "id of the state that the batch belongs to",
        "batch": "the batch that read the row",
        "reason": "why: see [semantics](../semantics.md#what-is-quarantined)",
        "detail": "why, in words",
        "source_version": "version of the source that brought it",
        "source_file": "the file that held it then, or the part of a topic; null for rows that a restatement read",
        "source_row": "its number in that file, from 0",
        "event_time": "its time, if it has one",
        "watermark": "of a row that is too late, the watermark that it found",
        "row": "the whole row as JSON",
    },
    "quality": {
        "pipeline": "name of the pipeline",
        "generation": "id of the state that the batch belongs to",
        "batch": "the batch",
        "attempt": "which attempt at the batch",
        "at": "when the rule was evaluated",
        "status": "verdict of the batch: `passed`, `warned`, `held`, …",
        "rule": "number of the rule in the batch's suite",
        "origin": "`built in`, or a rule of the spec",
        "type": "name of the rule, as Great Expectations has it",
        "column": "the column that it is about, if it is about one",
        "arguments": "its arguments as JSON",
        "severity": "`critical`, `warning` or `info`",
        "outcome": "`passed`, `failed` or `broken` (it could not be evaluated)",
        "observed": "what was observed, as JSON",
        "elements": "number of values that were looked at",
        "unexpected": "number of those that break the rule",
        "message": "what is wrong",
        "examples": "keys of rows that break it, as JSON; at most 1,000",
        "values": "JSON: the values of the rule's columns in the first twenty of these rows",
    },
    "seen": {
        "_id_high": "the high half of the hash of its values of `dedup.by`",
        "_id_low": "the low half",
        "_time": "its event time, or the end of the event, in ticks of the axis",
    },
    "ledger": {
        "format": "format of the record",
        "kind": "`batch`, or `ruling` on a held batch",
        "batch": "number of the batch",
        "attempt": "which attempt made the record",
        "at": "when",
        "body": "plan, outcome, files and totals as JSON: [state format](../state-format.md#ledger)",
        "number": "place of the record in the ledger",
        "sum": "checksum of the other columns",
    },
}


def tables_page() -> str:
    """The columns of the tables of a small pipeline, which is run for it."""
    lines = [
        "# Columns of the tables",
        MADE,
        "The sink, and the tables beside it in `<sink>.windowmill/`. The table of `sink.current` has the sink's columns. Types are those",
        "of Delta. Of the pipeline",
        "",
        "```yaml",
        *yaml.safe_dump(_SPEC, sort_keys=False, default_flow_style=None, width=1_000).strip().splitlines(),
        "```",
        "",
        "Its state has slices of `hourly`, sessions of `visit` and positions of `last_ten`: see [state format](../state-format.md).",
    ]
    for name, schema in _schemas().items():
        lines += ["", f"## `{name}`", "", _ROWS[name], ""]
        if name == "state":
            lines += table(("column", "type"), [(f"`{column}`", type_) for column, type_ in schema])
        else:
            described = _COLUMNS[name]
            lines += table(("column", "type", "holds"), [(f"`{column}`", type_, described[column]) for column, type_ in schema])
    return "\n".join(lines) + "\n"


def _schemas() -> dict[str, list[tuple[str, str]]]:
    import pyarrow as pa

    with tempfile.TemporaryDirectory(prefix="windowmill-reference-") as folder:
        places = {name: {"path": f"{folder}/{name}"} for name in ("source", "sink")}
        pipeline = parse_pipeline(_SPEC | places)
        rows = pa.Table.from_pylist(_VISITS)
        instants = rows["at"].cast(pa.timestamp("us", "UTC"))
        write_table(f"{folder}/source", rows.set_column(rows.schema.get_field_index("at"), "at", instants))
        before = os.environ.pop("WINDOWMILL_COMPUTE", None)
        try:
            loop.run(pipeline, Progress(Console(file=io.StringIO())))
        finally:
            if before is not None:
                os.environ["WINDOWMILL_COMPUTE"] = before
        own = Places.of(pipeline)
        tables = {
            "sink": f"{folder}/sink",
            **{name: str(getattr(own, name)) for name in ("quarantine", "quality", "ledger", "seen", "state")},
        }
        return {name: _columns(path) for name, path in tables.items()}


def _columns(path: str) -> list[tuple[str, str]]:
    fields = json.loads(table_at(path).schema().to_json())["fields"]
    return [(field["name"], field["type"] if isinstance(field["type"], str) else field["type"]["type"]) for field in fields]


def main() -> int:
    """Write the pages, or say which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page differs")
    only_check = parser.parse_args().check
    differing = {name: text for name, text in pages().items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text}
    if only_check:
        if differing:
            print(f"docs/reference: {', '.join(differing)} differ from the code; run `python -m scripts.reference`", file=sys.stderr)
        return 1 if differing else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in differing.items():
        (FOLDER / name).write_text(text)
    print(f"docs/reference: {len(differing)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
