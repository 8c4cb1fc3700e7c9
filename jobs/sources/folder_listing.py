"""The files of a folder that are data, and their columns: as ``source.options.schema`` gives them, or as the files do.

Links are not followed: what one leads to within the folder is read where it lies, and one that leads out of it is refused. Columns are
found when a pipeline first lists the folder, and recorded; later files are read by them. Later files of Parquet, which say what they
hold, may add columns and widen types.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import store_of
from windowmill.jobs.sources.base import PlainFile
from windowmill.jobs.sources.folder_options import LOGICAL, declared
from windowmill.jobs.sources.parquet_columns import unified
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_values import OPTIONS, TextTimes, guessed
from windowmill.jobs.sources.unread_rows import ExpectedColumns
from windowmill.windowing.errors import SourceError, SourceFileError, SourceMissingError, SourceSchemaError, first_line

if TYPE_CHECKING:
    from windowmill.jobs.sources.parquet_columns import Footer
    from windowmill.jobs.sources.text_files import TextForm
    from windowmill.windowing.spec import Pipeline, Source


#: Files from which columns are found: the first and the last ones, and rows of each.
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 100_000
#: Size of a text file whose lines are counted.
_COUNTED_BYTES = 64 << 20
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def text_form(settings: Source, columns: Sequence[str], expected: ExpectedColumns | None = None) -> TextForm | None:
    """How the files of the source are read; null for Parquet.

    Parameters
    ----------
    columns
        Those of the source that are not partitions.
    expected
        What the spec uses of the rows.
    """
    if settings.format == "parquet":
        return None
    from windowmill.jobs.sources.text_files import TextForm

    given = settings.options
    used: dict[str, Any] = {"times": TextTimes.of(settings), "expected": expected or ExpectedColumns()}
    used["may_lack"] = LOGICAL[given.get("mergeSchema", "false").lower()]
    if settings.format == "json":
        return TextForm("json", **used)
    header = LOGICAL[given.get("header", "false").lower()]
    return TextForm(
        "csv",
        header=header,
        separator=given.get("sep", ",").replace("\\t", "\t"),
        quote=given.get("quote", '"'),
        escape=given.get("escape", ""),
        null=given.get("nullValue", ""),
        multi_line=LOGICAL[given.get("multiLine", "false").lower()],
        columns=() if header else tuple(columns),
        **used,
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


def rows_in_text(path: str, settings: Source, size: int) -> int | None:
    """Number of rows of a text file; null if it is too large to be counted, or cannot be opened.

    Raises
    ------
    SourceFileError
        If it cannot be read as text.
    """
    form = text_form(settings, ())
    assert form is not None
    try:
        return None if size > _COUNTED_BYTES else form.count(path)
    except (OSError, pa.ArrowException):  # whoever reads it says what is wrong
        return None


def schema_of(settings: Source, root: str, paths: Sequence[str]) -> tuple[str, frozenset[str]]:
    """The columns of the text files at ``paths`` below ``root``, or those given, and those of their folders, as JSON; those with no value.

    Raises
    ------
    SourceError
        If one cannot be read.
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
    return as_json(pa.schema([field.with_type(pa.string()) if field.name in untyped else field for field in schema])), untyped


def of_parquet(footers: Sequence[Footer], paths: Iterable[str], recorded: str | None) -> tuple[str, dict[str, str], frozenset[str]]:
    """The columns of files with these ``footers`` at ``paths``, as JSON; those that are not read, with why; those with no value.

    ``recorded`` are the columns of earlier files; null for none.
    """
    if recorded is not None and not footers:
        return recorded, {}, frozenset()
    known: Mapping[str, pa.DataType] = {}
    if recorded is not None:
        from windowmill.jobs.sources.columns import Columns  # loads what a run without new files does not need

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
    from windowmill.jobs.column_uses import columns_used, in_conditions
    from windowmill.jobs.sources.columns import Columns
    from windowmill.windowing.columnar.results import result_types

    types = dict(Columns.of(schema_json).arrow)
    uses, _ = columns_used(pipeline)
    of_policies = {use.column for window in pipeline.windows for use in window.columns().values()}
    kept = in_conditions(pipeline) | of_policies | set(pipeline.keys) | {name for path in paths for name in partition_of(path)}
    counted: set[str] = {name for name, where in uses.items() if where.startswith("aggregates.")} - kept
    for spec in pipeline.aggregates.values():
        if spec.function != "count":
            kept |= set(spec.columns)
            counted -= set() if spec.declaration.takes == "number" else set(spec.columns)
    if any(window.reads_whole_rows for window in pipeline.windows) or not types.keys() >= uses.keys():
        return schema_json, frozenset()
    for name in counted:
        doubled = types | {name: pa.float64()}
        if pa.types.is_int64(types[name]) and result_types(pipeline, doubled) == result_types(pipeline, types):
            types = doubled
    is_iso = pipeline.source is not None and not pipeline.source.options.keys() & set(OPTIONS)
    days = {name for name in (pipeline.time.column, pipeline.time.end) if name is not None and is_iso and name not in kept}
    days = {name for name in days if pa.types.is_date(types[name])}
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
    from windowmill.jobs.sources.text_files import OpenText, without_header

    form = text_form(settings, ())
    assert form is not None
    names, _ = without_header(path, form.lines(path), form.syntax)
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
    from windowmill.jobs.sources.text_files import json_object

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


def as_json(schema: pa.Schema) -> str:
    """``schema`` as the JSON of a Spark ``StructType``; raises ``SourceSchemaError`` for a type that Spark does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return str(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())
    except PySparkException as err:
        raise SourceSchemaError(f"the source has a column of a type that Spark does not have ({first_line(err)}); leave it out") from err


#: Names of files that are being written, or are no data.
_UNFINISHED = (".tmp", ".crc", "._COPYING_")


class Stat(NamedTuple):
    """Size of a file, and when it was last changed."""

    size: int
    mtime_ns: int


def listed_files(root: str, names: re.Pattern[str] | None = None) -> dict[str, Stat]:
    """The files of the folder that are data, and whose names fit ``names``, by path.

    Raises
    ------
    SourceMissingError
        If there is no such folder.
    SourceFileError
        If a link among them leads out of the folder, or the name of one cannot be written in one line.
    SourceError
        If it cannot be listed.
    """
    local = local_path(root)
    try:
        if local is not None and local.exists() and not local.is_dir():
            raise SourceError(f"source {root}: is a file; source.path names the folder in which files arrive")
        found = _stored(root) if local is None else _local(root, local)
        files = {path: own for path, own in found if own.size and (names is None or names.fullmatch(path.rpartition("/")[2]))}
    except FileNotFoundError as err:
        raise SourceMissingError(f"source {root}: there is no such folder; make it, or correct source.path") from err
    except (OSError, UnicodeDecodeError) as err:
        raise SourceError(f"source {root}: cannot be listed ({first_line(err)}); check the path and its permissions") from err
    odd = next((path for path in files if not path.isprintable()), None)
    if odd is not None:
        raise SourceFileError(
            f"source {root}: the name {odd!r} is not UTF-8, or has characters that end a line or control a terminal; rename it"
        )
    return files


def data_files(root: str) -> list[str]:
    """The files of a folder that are data, in order of their time of change; raises as :func:`listed_files`."""
    listed = listed_files(root)
    return sorted(listed, key=lambda path: (listed[path].mtime_ns, path))


def check_folders(root: str, listed: Mapping[str, Stat]) -> None:
    """Refuse files of which some lie in folders ``name=value`` and others do not, or in folders of other names."""
    first: str | None = None
    for path in listed:
        first = first or path
        if partition_of(path).keys() != partition_of(first).keys():
            raise SourceSchemaError(f"source {root}: {path!r} lies in folders of other columns (name=value) than {first!r}; move it away")


def _stored(root: str) -> Iterator[tuple[str, Stat]]:
    """The data files in object storage."""
    for info in store_of(root).get_file_info(pa_fs.FileSelector("", recursive=True)):
        path = info.path.strip("/")
        if info.type == pa_fs.FileType.File and _is_data(path):
            yield path, Stat(info.size, info.mtime_ns)


def _local(root: str, folder: Path, below: str = "") -> Iterator[tuple[str, Stat]]:
    """The data files of a ``folder`` of this machine, or of its folder ``below``."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_symlink():
                if _is_data(path) and not Path(entry.path).resolve().is_relative_to(folder.resolve()):
                    raise SourceFileError(
                        f"source {root}: {path!r} is a link that leads out of the folder; put the file itself there, or remove the link"
                    )
            elif entry.is_dir():
                if _is_data(f"{path}/x"):
                    yield from _local(root, folder, path)
            elif _is_data(path):
                own = entry.stat()
                if stat.S_ISREG(own.st_mode):
                    yield path, Stat(own.st_size, own.st_mtime_ns)


def _is_data(path: str) -> bool:
    *folders, name = path.split("/")
    hidden = any(folder.startswith((".", "_")) and "=" not in folder for folder in folders)
    return not hidden and not name.startswith((".", "_")) and not name.endswith(_UNFINISHED)
