"""The columns of a folder's files: as ``source.options.schema`` gives them, or as the files do.

Columns are found when a pipeline first lists the folder, and recorded; later files are read by them. Later files of Parquet, which say
what they hold, may add columns and widen types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from windowmill.jobs.conditions.truths import columns_in_conditions, required_columns
from windowmill.jobs.sources.base import PlainFile
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.options import TIME_OPTIONS, declared, partition_of
from windowmill.jobs.sources.parquet_columns import Footer, unified
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_files import OpenText, json_object, text_form, without_header
from windowmill.jobs.sources.text_values import TextTimes, guessed
from windowmill.windowing.columnar.results import result_types
from windowmill.windowing.errors import SourceError
from windowmill.windowing.fields import Source
from windowmill.windowing.spec import Pipeline

#: Files from which columns are found: the first and the last ones, and rows of each.
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 100_000


def schema_of(settings: Source, root: str, paths: Sequence[str]) -> tuple[str, frozenset[str]]:
    """The columns of the text files at ``paths`` below ``root``, or those given, and those of their folders, as JSON; those with no value.

    Raises ``SourceError`` if one cannot be read.
    """
    given = settings.options.get("schema")
    if given is not None:
        own = declared(given)
    else:
        sampled = [*paths[: _SAMPLED_FILES // 2], *paths[_SAMPLED_FILES // 2 :][-_SAMPLED_FILES // 2 :]]
        own = _of_texts(settings, [f"{root}/{path}" for path in sampled])
    return _as_texts(with_folders(own, paths))


def with_folders(own: pa.Schema, paths: Iterable[str]) -> pa.Schema:
    """The columns ``own`` of files, and those of the folders in which the files at ``paths`` lie."""
    values: dict[str, set[str]] = {}
    for path in paths:
        for name, value in partition_of(path).items():
            values.setdefault(name, set()).update([] if value is None else [value])
    folders = {name: guessed(texts) for name, texts in values.items()}
    # A value of these types in a folder's name is one that files are read with, too.
    folders = {name: kind if pa.types.is_integer(kind) or pa.types.is_date(kind) else pa.string() for name, kind in folders.items()}
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in folders.items() if name not in own.names)])


def _as_texts(schema: pa.Schema) -> tuple[str, frozenset[str]]:
    """``schema`` as JSON, with texts for columns of null type, and the names of these."""
    untyped = frozenset(field.name for field in schema if pa.types.is_null(field.type))
    typed = pa.schema([field.with_type(pa.string()) if field.name in untyped else field for field in schema])
    return Columns.of_arrow(typed).json, untyped


def of_parquet(footers: Sequence[Footer], paths: Iterable[str], recorded: str | None) -> tuple[str, dict[str, str], frozenset[str]]:
    """The columns of files with these ``footers`` at ``paths``, as JSON; those that are not read, with why; those with no value.

    ``recorded`` are the columns of earlier files; null for none.
    """
    if recorded is not None and not footers:
        return recorded, {}, frozenset()
    known: Mapping[str, pa.DataType] = {}
    if recorded is not None:
        known = Columns.of(recorded).arrow
    folders = {name for path in paths for name in partition_of(path)}
    kinds, unread = unified(footers, {name: kind for name, kind in known.items() if name not in folders})
    own = pa.schema([pa.field(name, kinds.get(name, known.get(name))) for name in dict.fromkeys([*known, *kinds])])
    schema_json, untyped = _as_texts(with_folders(own, paths))
    return schema_json, {name: why for name, why in unread.items() if name not in own.names}, untyped


def with_wider_types(schema_json: str, pipeline: Pipeline, paths: Iterable[str]) -> tuple[str, frozenset[str]]:
    """The columns of text files, with wider types where the results of ``pipeline`` have the same types by either.

    Whole numbers are DOUBLE, so that files that come later may hold fractions, although the first ones do not. Event times that are days
    are TIMESTAMP, so that later ones may be instants; these columns are named, too. Those of folders above the ``paths`` stay as they are.
    """
    types = dict(Columns.of(schema_json).arrow)
    fields, _ = required_columns(pipeline)
    of_policies = {use.column for window in pipeline.windows for use in window.columns().values()}
    kept = columns_in_conditions(pipeline) | of_policies | set(pipeline.keys) | {name for path in paths for name in partition_of(path)}
    counted: set[str] = {name for name, where in fields.items() if where.startswith("aggregates.")} - kept
    for spec in pipeline.aggregates.values():
        if spec.function != "count":
            kept |= set(spec.columns)
            counted -= set() if spec.declaration.takes == "number" else set(spec.columns)
    if any(window.reads_whole_rows for window in pipeline.windows) or not types.keys() >= fields.keys():
        return schema_json, frozenset()

    def results(own: Mapping[str, pa.DataType]) -> Mapping[str, pa.DataType]:
        return result_types(pipeline, Columns.of_arrow(pa.schema(list(own.items()))).seen_by(pipeline).arrow if pipeline.steps else own)

    for name in counted:
        doubled = types | {name: pa.float64()}
        if pa.types.is_int64(types[name]) and results(doubled) == results(types):
            types = doubled
    is_iso = pipeline.source is not None and not pipeline.source.options.keys() & set(TIME_OPTIONS)
    days = {name for name in (pipeline.time.column, pipeline.time.end) if name is not None and is_iso and name not in kept}
    days = {name for name in days if name in types and pa.types.is_date(types[name])}
    wider = {name: "timestamp" if name in days else "double" for name, kind in types.items() if name in days or pa.types.is_float64(kind)}
    schema = json.loads(schema_json)
    for column in schema["fields"]:
        column["type"] = wider.get(column["name"], column["type"])
    return json.dumps(schema, separators=(",", ":"), sort_keys=True), frozenset(days)


def _of_texts(settings: Source, paths: Sequence[str]) -> pa.Schema:
    texts: dict[str, set[str]] = {}
    for path in paths:
        for name, values in (_texts_of_csv if settings.format == "csv" else _texts_of_json)(settings, path).items():
            texts.setdefault(name, set()).update(values)
    if not texts:
        raise SourceError(
            f"source {settings.path}: none of its files has a row that can be read; write the first rows, or give source.options.schema"
        )
    times = TextTimes.of(settings)
    return pa.schema([pa.field(name, guessed(values, times) if values else pa.null()) for name, values in texts.items()])


def _texts_of_csv(settings: Source, path: str) -> Mapping[str, set[str]]:
    form = text_form(settings, ())
    assert form is not None
    names, _ = without_header(path, form.lines(path), form.syntax)
    if not form.header:
        names = [f"_c{number}" for number in range(len(names))]
        form = text_form(settings, names)
    opened = OpenText(PlainFile(path, {name: name for name in names}, {}, row_form=form), Form(dict.fromkeys(names, pa.string())))
    found: dict[str, set[str]] = {name: set() for name in names}
    rows = 0
    for batch in opened.batches(names):
        for name, column in zip(names, batch.columns, strict=True):
            found[name].update(column.drop_null().unique().to_pylist())
        rows += batch.num_rows
        if rows >= _SAMPLED_ROWS:
            break
    return found


def _texts_of_json(settings: Source, path: str) -> Mapping[str, set[str]]:
    form = text_form(settings, ())
    assert form is not None
    lines = chain.from_iterable(some.texts for some in form.lines(path))
    return _texts_of_objects((json_object(line) or {} for line in islice(lines, _SAMPLED_ROWS)), TextTimes.of(settings))


def schema_of_objects(rows: Iterable[Mapping[str, Any]], times: TextTimes) -> pa.Schema:
    """The columns of JSON objects, which may be none."""
    return pa.schema([pa.field(name, guessed(values, times)) for name, values in _texts_of_objects(rows, times).items()])


def _texts_of_objects(rows: Iterable[Mapping[str, Any]], times: TextTimes) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    quoted: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            known = found.setdefault(name, set())
            if isinstance(value, bool):
                known.add(str(value).lower())
            elif isinstance(value, int | float):
                known.add(repr(value).replace("inf", "Infinity").replace("nan", "NaN"))
            elif isinstance(value, str):
                quoted.setdefault(name, set()).add(value)
            elif value is not None:
                known.add("{}")
    for name, texts in quoted.items():
        # Numbers in quotes stay texts; only dates and instants are written as texts in JSON.
        found[name] |= {"text"} if times.type_of(texts) is None else texts
    return found
