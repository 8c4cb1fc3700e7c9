"""The columns of a folder's Parquet files: what each file stores, the types that take the values of all, and the values in these types.

Types are those that Spark reads the files in. Files that differ are read in the widest one, as Spark merges schemas where it promotes
types: whole numbers, decimals and floats in a type that holds both, dates as instants, what is null in a whole file in the type of the
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windowmill.checkpoints.stores import filesystem_of
from windowmill.jobs.conditions.evaluated import MAX_DIGITS, common
from windowmill.jobs.sources.text_values import parsed
from windowmill.windowing.errors import SourceError, SourceSchemaError, first_line

#: Number of footers that are read concurrently, because most of the time is waiting; and number kept in memory.
_AT_ONCE, _KEPT = 16, 20_000
_UNSIGNED = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64(), "uint64": pa.decimal128(20, 0)}
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
#: What Arrow raises for damaged pages, in addition to ``ArrowInvalid``.
_DAMAGED = re.compile(r"thrift|corrupt|compress|inflate", re.IGNORECASE)
#: Digits of the longest whole numbers.
_WHOLE_DIGITS = 20
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)


class Stored(NamedTuple):
    """A column of a file.

    ``kind``: the type that its values are read in; null if it is none that is read.
    ``stored``: its type in the file, for messages.
    ``is_null``: whether all its values are null, according to statistics.
    ``is_exact``: whether Spark reads its values in this type, too.
    """

    kind: pa.DataType | None
    stored: str
    is_null: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file; ``columns`` are those whose names are unique apart from case."""

    path: str
    rows: int
    columns: Mapping[str, Stored]
    doubled: frozenset[str]

    def has_exactly(self, kinds: Mapping[str, pa.DataType]) -> bool:
        """Whether Spark gives the columns ``kinds`` of the source the values that :func:`cast` gives; a column may be missing."""
        named = {name.lower(): (name, own) for name, own in self.columns.items()}
        found = [(name, kind, *named[name.lower()]) for name, kind in kinds.items() if name.lower() in named]
        return not self.doubled and all(name == own and stored.is_exact and stored.kind == kind for name, kind, own, stored in found)


def footers_of(root: str, files: Iterable[tuple[str, int, int]]) -> list[Footer | SourceError]:
    """The footers of ``files`` below ``root``, each by (path, size, time of change in ns); an error for a file that cannot be read."""

    def read(file: tuple[str, int, int]) -> Footer | SourceError:
        try:
            return footer_of(f"{root}/{file[0]}", file[1], file[2])
        except SourceError as err:
            return err

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(read, files))


@lru_cache(_KEPT)
def footer_of(path: str, _size: int, _mtime_ns: int) -> Footer:
    """The footer of a file of a size and time of change, by which it is kept.

    Raises ``SourceSchemaError`` if it is no Parquet file; ``SourceError`` if it cannot be opened.
    """
    store, own = filesystem_of(path)
    try:
        with pq.ParquetFile(own, filesystem=store, coerce_int96_timestamp_unit="us") as file:
            return _footer(path, file)
    except (OSError, pa.ArrowException) as err:
        raise unreadable(path, err) from err


def unreadable(path: str, err: Exception) -> SourceError:
    """The error for a file at which Arrow raised ``err``: no retry mends a damaged one."""
    if isinstance(err, pa.ArrowInvalid) or _DAMAGED.search(str(err)):
        return SourceSchemaError(f"source file {path}: is no Parquet file, or damaged ({first_line(err)}); write it again, or remove it")
    return SourceError(f"source file {path}: cannot be read ({first_line(err)}); check the path and its permissions")


def _footer(path: str, file: pq.ParquetFile) -> Footer:
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    nested_int96 = {name.partition(".")[0] for name in int96 if "." in name}
    nulls = _null_columns(file.metadata)
    names = [field.name.lower() for field in file.schema_arrow]
    columns = {}
    for field in file.schema_arrow:
        kind = pa.timestamp("us", "UTC") if field.name in int96 else readable(field.type)
        is_exact = field.name in int96 or (
            kind is not None
            and field.name not in nested_int96
            and not pa.types.is_float16(field.type)
            and not (pa.types.is_timestamp(field.type) and field.type.unit == "ns")
        )
        columns[field.name] = Stored(kind, str(field.type), field.name in nulls, is_exact)
    doubled = frozenset(name for name in names if names.count(name) > 1)
    return Footer(path, file.metadata.num_rows, {name: own for name, own in columns.items() if name.lower() not in doubled}, doubled)


def _null_columns(metadata: pq.FileMetaData) -> set[str]:
    """The columns whose values are all null, according to statistics, in a file with rows."""
    found: set[str] | None = None
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        own = set()
        for at in range(group.num_columns):
            column = group.column(at)
            known = column.statistics
            if known is not None and known.has_null_count and known.null_count == column.num_values:
                own.add(column.path_in_schema)
        found = own if found is None else found & own
    return found or set()


def readable(kind: pa.DataType) -> pa.DataType | None:
    """The type in which values stored as ``kind`` are read; null if they are not.

    >>> [str(readable(kind)) for kind in (pa.uint64(), pa.large_list(pa.string_view()), pa.time64("us"))]
    ['decimal128(20, 0)', 'list<element: string>', 'None']
    """
    if isinstance(kind, pa.BaseExtensionType):
        return readable(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return readable(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if any(test(kind) for test in _LISTS):
        inner = readable(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", _known(inner)))
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return _readable_fields(kind)
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= MAX_DIGITS else None
    for tests, wider in ((_TEXTS, pa.string()), (_BYTES, pa.binary()), ((pa.types.is_float16,), pa.float32())):
        if any(test(kind) for test in tests):
            return wider
    if str(kind) in _UNSIGNED:
        return _UNSIGNED[str(kind)]
    is_plain = pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind)
    return kind if is_plain or pa.types.is_floating(kind) or pa.types.is_date32(kind) else None


def _readable_fields(kind: pa.DataType) -> pa.DataType | None:
    fields = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else list(kind)
    inner = [readable(field.type) for field in fields]
    if not inner or any(each is None for each in inner):
        return None
    if pa.types.is_map(kind):
        return pa.map_(_known(inner[0]), _known(inner[1]))
    return pa.struct([pa.field(field.name, _known(each)) for field, each in zip(fields, inner, strict=True)])


def _known(kind: pa.DataType) -> pa.DataType:
    """``kind``, or text for a column of which no value is known."""
    return pa.string() if pa.types.is_null(kind) else kind


def unified(footers: Sequence[Footer], known: Mapping[str, pa.DataType]) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """The columns of all files, each in the type that takes all its values; and those that are not read, with why.

    ``known`` are columns of earlier files. Spellings that differ in case are of one column, by the name of the first. The type is null
    where no file says one.
    """
    spelt: dict[str, str] = {name.lower(): name for name in known}
    stored: dict[str, list[tuple[Footer, Stored]]] = {}
    unread: dict[str, str] = {}
    for footer in footers:
        for name, own in footer.columns.items():
            stored.setdefault(spelt.setdefault(name.lower(), name), []).append((footer, own))
        for name in footer.doubled:
            unread[spelt.setdefault(name, name)] = f"is in {footer.path} more than once, upper and lower case being the same"
    kinds = dict(known)
    for name, found in stored.items():
        if name in unread:
            continue
        odd = next(((footer, own) for footer, own in found if own.kind is None), None)
        if odd is not None:
            unread[name] = f"is {odd[1].stored} in {odd[0].path}, which is not read"
            continue
        where, kind = "earlier files", known.get(name, pa.null())
        for footer, own in [each for each in found if not each[1].is_null] or found[:1]:
            both = wider(kind, own.kind)
            if both is None:
                unread[name] = f"is {kind} in {where} and {own.stored} in {footer.path}"
                break
            where, kind = (footer.path if both == own.kind else where), both
        else:
            kinds[name] = kind
    return {name: kind for name, kind in kinds.items() if name not in unread or name in known}, unread


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that takes the values of both; null if there is none.

    >>> pairs = [("int32", "int64"), ("int64", "double"), ("date32", "timestamp[us]"), ("string", "int32")]
    >>> [str(wider(*(pa.type_for_alias(name) for name in pair))) for pair in pairs[:2]]
    ['int64', 'double']
    >>> str(wider(pa.int32(), pa.decimal128(5, 2))), wider(pa.string(), pa.int32())
    ('decimal128(12, 2)', None)
    """
    if {one, other} == {pa.string(), pa.binary()}:
        return pa.string()
    if pa.string() not in (one, other) or one == other or pa.null() in (one, other):
        found = common(one, other)
        if found is not None:
            return found
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = wider(one.value_type, other.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, item = wider(one.key_type, other.key_type), wider(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return _wider_struct(one, other) if pa.types.is_struct(one) and pa.types.is_struct(other) else None


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    kinds = {field.name: field.type for field in one}
    for field in other:
        both = wider(kinds.get(field.name, pa.null()), field.type)
        if both is None:
            return None
        kinds[field.name] = both
    return pa.struct(list(kinds.items()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """``values`` of a file in the type ``kind`` of the source; null for one that it does not take.

    Raises ``ArrowNotImplementedError`` if no value of the stored type is one of ``kind``.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    stored = values.type
    if stored == kind:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    _check_cast(stored, kind)
    if _is_text(stored) and not any(test(kind) for test in (*_TEXTS, *_BYTES)):
        return parsed(values.cast(pa.string()), kind)
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(kind) and stored.unit == "ns":
        values = pc.floor_temporal(values, unit="microsecond")
    if pa.types.is_list_view(stored) or pa.types.is_large_list_view(stored):
        values = values.cast(pa.list_(stored.value_type))  # Arrow casts a view to a list of other values wrongly
    if pa.types.is_integer(stored) and pa.types.is_decimal(kind):
        values = values.cast(pa.decimal256(_WHOLE_DIGITS + kind.scale, kind.scale))  # by its type alone, Arrow takes none into fewer digits
    elif _is_number(stored) and pa.types.is_boolean(kind):
        values = pc.if_else(pc.or_(pc.equal(values, 0), pc.equal(values, 1)), values, pa.scalar(None, stored))
    elif pa.types.is_timestamp(stored) and pa.types.is_date(kind):  # Arrow leaves out the time of day
        values = values.cast(pa.timestamp(stored.unit))
        values = pc.if_else(pc.equal(values, pc.floor_temporal(values, unit="day")), values, pa.scalar(None, values.type))
    try:
        # A whole number becomes the nearest float, as in Spark.
        return values.cast(kind, safe=not (pa.types.is_floating(kind) and _is_number(stored)))
    except pa.ArrowInvalid:
        return _each_cast(values, kind)


def may_not_fit(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a value of a column that is ``stored`` in this type may be none of ``kind``, according to the types."""
    own = readable(stored)
    if own is None or own == kind:
        return own is None or (pa.types.is_timestamp(stored) and stored.unit in ("s", "ms"))  # one may be beyond 64 bits of microseconds
    return not (_is_number(own) and not pa.types.is_decimal(kind) and wider(own, kind) == kind)


def _check_cast(stored: pa.DataType, kind: pa.DataType) -> None:
    """Raise ``ArrowNotImplementedError`` where Arrow's cast has another meaning, or writes texts in another form, than Spark's."""
    of_days = pa.types.is_timestamp(stored) or pa.types.is_date(stored)
    counted = pa.types.is_timestamp(kind) and not of_days and not _is_text(stored) and not pa.types.is_null(stored)
    formatted = _is_text(kind) and (of_days or pa.types.is_floating(stored) or pa.types.is_nested(stored))
    if counted or formatted:
        raise pa.ArrowNotImplementedError(f"{stored} is not read as {kind}")


def _is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _TEXTS)


def _each_cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """As :func:`cast`, for values some of which do not fit."""
    if len(values) <= 1:
        return pa.nulls(len(values), kind)
    half = len(values) // 2
    halves = []
    for part in (values[:half], values[half:]):
        try:
            halves.append(part.cast(kind))
        except pa.ArrowInvalid:
            halves.append(_each_cast(part, kind))
    return pa.concat_arrays(halves)
