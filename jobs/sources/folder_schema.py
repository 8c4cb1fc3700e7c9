"""The columns of a folder of files: as ``source.options.schema`` gives them, or as its files do.

Columns are found once, when a pipeline first lists the folder, and recorded; later files are read by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from windowmill.checkpoints.stores import filesystem_of
from windowmill.jobs.sources.folder_options import LOGICAL, declared
from windowmill.windowing.errors import SourceError, SourceSchemaError, first_line

if TYPE_CHECKING:
    from windowmill.jobs.sources.text_files import TextForm
    from windowmill.jobs.sources.text_times import TextTimes
    from windowmill.windowing.spec import Source

#: Files from which columns are found: the first and the last ones, and rows of each.
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 100_000
#: Size of a text file whose lines are counted, and bytes that are read at a time.
_COUNTED_BYTES, _BLOCK_BYTES = 64 << 20, 4 << 20
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGERS = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64()}


def text_form(settings: Source, columns: Sequence[str]) -> TextForm | None:
    """How the files of the source are read; null for Parquet. ``columns`` are those of the source that are not partitions."""
    if settings.format == "parquet":
        return None
    from windowmill.jobs.sources.text_files import TextForm
    from windowmill.jobs.sources.text_times import TextTimes

    times = TextTimes.of(settings)
    if settings.format == "json":
        return TextForm("json", times=times)
    given = settings.options
    header = LOGICAL[given.get("header", "false").lower()]
    return TextForm(
        "csv",
        header=header,
        separator=given.get("sep", ","),
        quote=given.get("quote", '"'),
        escape=given.get("escape", ""),
        null=given.get("nullValue", ""),
        multi_line=LOGICAL[given.get("multiLine", "false").lower()],
        columns=() if header else tuple(columns),
        times=times,
    )


def partition_of(path: str) -> dict[str, str | None]:
    """The values in the folders ``name=value`` above a file.

    Examples
    --------
    >>> partition_of("year=2024/site=a%20b/0.csv")
    {'year': '2024', 'site': 'a b'}
    """
    pairs = (folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in pairs}


def rows_in(path: str, format_: str, size: int, *, header: bool) -> int | None:
    """Number of rows of a file, at least; null for a text file that is too large to be counted, or a file that cannot be read."""
    store, own = filesystem_of(path)
    try:
        if format_ == "parquet":
            return int(pq.read_metadata(own, filesystem=store).num_rows)
        if size > _COUNTED_BYTES:
            return None
        with store.open_input_stream(own) as stream:
            lines, last = 0, b"\n"
            while block := stream.read(_BLOCK_BYTES):
                lines, last = lines + block.count(b"\n"), block[-1:]
    except (OSError, pa.ArrowException):  # whoever reads it says what is wrong
        return None
    return max(0, lines + (last != b"\n") - header)


def schema_of(settings: Source, root: str, paths: Sequence[str]) -> pa.Schema:
    """The columns of the files at ``paths`` below ``root``, and those of their folders.

    Raises
    ------
    SourceSchemaError
        If files disagree, or have a type that is not read.
    SourceError
        If one cannot be read.
    """
    from windowmill.jobs.sources.text_values import guessed

    given = settings.options.get("schema")
    values: dict[str, set[str]] = {}
    for path in paths:
        for name, value in partition_of(path).items():
            values.setdefault(name, set()).update([] if value is None else [value])
    folders = {name: guessed(texts) for name, texts in values.items()}
    # A value of these types in a folder's name is one that files are read with, too.
    folders = {name: kind if pa.types.is_integer(kind) or pa.types.is_date(kind) else pa.string() for name, kind in folders.items()}
    if given is not None:
        own = declared(given)
    else:
        sampled = [*paths[: _SAMPLED_FILES // 2], *paths[_SAMPLED_FILES // 2 :][-_SAMPLED_FILES // 2 :]]
        whole = [f"{root}/{path}" for path in sampled]
        own = _of_parquet(whole) if settings.format == "parquet" else _of_texts(settings, whole)
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in folders.items() if name not in own.names)])


def _of_parquet(paths: Sequence[str]) -> pa.Schema:
    schemas = [_footer(path) for path in paths]
    try:
        every = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as err:
        raise SourceSchemaError(
            f"source {paths[0].rpartition('/')[0]}: its files differ in the type of a column ({first_line(err)}); write them in one type"
        ) from err
    return pa.schema([pa.field(field.name, _readable(field, paths[0])) for field in every])


def _footer(path: str) -> pa.Schema:
    store, own = filesystem_of(path)
    try:
        with pq.ParquetFile(own, filesystem=store, coerce_int96_timestamp_unit="us") as file:
            # Not Arrow's own schema in the footer: it names forms that Parquet does not have.
            return file.schema.to_arrow_schema().remove_metadata()
    except (OSError, pa.ArrowException) as err:
        raise SourceError(f"source file {path}: is no Parquet file ({first_line(err)}); remove it") from err


def counts_nanoseconds(path: str) -> bool:
    """Whether a Parquet file holds instants in nanoseconds."""
    return any(pa.types.is_timestamp(kind) and kind.unit == "ns" for kind in _footer(path).types)


def _readable(field: pa.Field, path: str) -> pa.DataType:
    kind = field.type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if str(kind) in _INTEGERS:
        return _INTEGERS[str(kind)]
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_decimal256(kind) or str(kind) in ("uint64", "halffloat"):
        raise SourceSchemaError(f"source file {path}: column {field.name!r} is {kind}, which is not read; write it in another type")
    return kind


def _of_texts(settings: Source, paths: Sequence[str]) -> pa.Schema:
    from windowmill.jobs.sources.text_times import TextTimes
    from windowmill.jobs.sources.text_values import guessed

    texts: dict[str, set[str]] = {}
    for path in paths:
        for name, values in (_texts_of_csv if settings.format == "csv" else _texts_of_json)(settings, path).items():
            texts.setdefault(name, set()).update(values)
    if not texts:
        raise SourceError(f"source {settings.path}: its files are empty; write the first rows, or give source.options.schema")
    times = TextTimes.of(settings)
    return pa.schema([pa.field(name, guessed(values, times)) for name, values in texts.items()])


def _texts_of_csv(settings: Source, path: str) -> Mapping[str, set[str]]:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form
    from windowmill.jobs.sources.text_files import OpenText, csv_header

    form = text_form(settings, ())
    assert form is not None
    names = csv_header(path, form)
    if not form.header:
        names = [f"_c{number}" for number in range(len(names))]
        form = text_form(settings, names)
    opened = OpenText(PlainFile(path, {name: name for name in names}, {}, text=form), Form(dict.fromkeys(names, pa.string())))
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
    from windowmill.jobs.sources.text_files import json_rows
    from windowmill.jobs.sources.text_times import TextTimes

    return _texts_of_objects(islice(json_rows(path), _SAMPLED_ROWS), TextTimes.of(settings))


def schema_of_objects(rows: Iterable[Mapping[str, Any]], times: TextTimes) -> pa.Schema:
    """The columns of JSON objects, which may be none."""
    from windowmill.jobs.sources.text_values import guessed

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
                known.add(repr(value))
            elif isinstance(value, str):
                quoted.setdefault(name, set()).add(value)
            elif value is not None:
                known.add("{}")
    for name, texts in quoted.items():
        # Numbers in quotes stay texts; only dates and instants are written as texts in JSON.
        found[name] |= {"text"} if times.type_of(texts) is None else texts
    return found


def as_json(schema: pa.Schema) -> str:
    """``schema`` as the JSON of a Spark ``StructType``; raises ``SourceSchemaError`` for a type that Spark does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return str(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())
    except PySparkException as err:
        raise SourceSchemaError(f"the source has a column of a type that Spark does not have ({first_line(err)}); leave it out") from err
