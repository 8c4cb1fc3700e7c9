"""Partials that are Python objects as bytes and back: MessagePack behind a header that nothing else passes for.

::

    offset  0     2             4            8            12
            WP    version u16   length u32   crc32 u32    MessagePack

Numbers of the header are little-endian; length and checksum are those of what follows it. A partial is plain data: null, booleans,
numbers, decimals, texts, bytes, dates and times, and tuples, lists, sets and dictionaries of these. Equal partials give equal bytes.
Nothing in them is ever executed.
"""

from __future__ import annotations

import struct
import zlib
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
from msgspec import DecodeError, Raw, ValidationError, msgpack

from windowmill.windowing.errors import SpecError, StateCorruptError

MAGIC, VERSION = b"WP", 1
_HEADER = struct.Struct("<2sHII")
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1


class _Kind(IntEnum):
    """Types that MessagePack lacks, as its extension types."""

    FLOATS = 1
    LIST = 2
    SET = 3
    MAPPING = 4
    INTEGER = 5
    DECIMAL = 6
    DATE = 7
    DATETIME = 8
    TIME = 9
    TIMEDELTA = 10
    MUTABLE_SET = 11


class _List(list[Any]):
    """A list that was stored as one; MessagePack's own arrays are tuples."""


def encode(partial: tuple[Any, ...], aggregate: str) -> bytes:
    """``partial`` as bytes; ``aggregate`` names its aggregate in messages.

    Raises
    ------
    SpecError
        If the partial is not plain data.

    Examples
    --------
    >>> decode(encode((1, None, (0.5, 2.5), frozenset({"a"})), "mode"))
    (1, None, (0.5, 2.5), frozenset({'a'}))
    """
    try:
        body = msgpack.encode(_plain(partial))
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise SpecError(
            f"aggregate {aggregate}: its partial cannot be stored ({err}); let lift and combine return plain data: null, booleans, "
            "numbers, texts, bytes, dates, and tuples, lists, sets or dictionaries of these"
        ) from err
    return _HEADER.pack(MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def decode(data: bytes) -> tuple[Any, ...]:
    """The partial that :func:`encode` was given.

    Raises
    ------
    StateCorruptError
        If the bytes are no partial, of another version, or damaged.
    """
    if len(data) < _HEADER.size:
        raise StateCorruptError(f"a partial of {len(data)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, length, checksum = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != MAGIC or version != VERSION:
        raise StateCorruptError(f"a partial begins with {bytes(data[:4])!r}; this release reads {MAGIC!r} of version {VERSION}")
    if len(body) != length or zlib.crc32(body) != checksum:
        raise StateCorruptError(f"a partial of {len(body)} bytes differs from the {length} bytes that were stored")
    try:
        partial = _restored(body)
    except (DecodeError, ValidationError, ValueError, TypeError, struct.error, ArithmeticError) as err:
        raise StateCorruptError(f"a partial of {len(body)} bytes is not readable ({err})") from err
    if type(partial) is not tuple:
        raise StateCorruptError(f"a partial is {type(partial).__name__}; expected a tuple")
    return partial


def _plain(value: Any) -> Any:
    """``value`` in the types of MessagePack, tuples as its arrays."""
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str or kind is bytes:
        return value
    if kind is int:
        return value if _LEAST <= value <= _GREATEST else _extension(_Kind.INTEGER, str(value).encode())
    if kind is tuple:
        if len(value) > 1 and set(map(type, value)) == {float}:
            return _extension(_Kind.FLOATS, np.array(value, "<f8").tobytes())
        return tuple(map(_plain, value))
    return _other(value)


def _other(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _plain(value.item())
    kind = type(value)
    if kind is list:
        return _extension(_Kind.LIST, msgpack.encode(tuple(map(_plain, value))))
    if kind is set or kind is frozenset:
        # Equal sets give equal bytes: items are sorted by their bytes. Whole numbers from 0 on sort equally by value, which is faster.
        whole = bool(value) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= _GREATEST
        items = msgpack.encode(sorted(value) if whole else [Raw(item) for item in sorted(msgpack.encode(_plain(item)) for item in value)])
        return _extension(_Kind.SET if kind is frozenset else _Kind.MUTABLE_SET, items)
    if kind is dict:
        return _extension(_Kind.MAPPING, msgpack.encode(tuple((_plain(name), _plain(item)) for name, item in value.items())))
    if isinstance(value, Decimal):
        return _extension(_Kind.DECIMAL, str(value).encode())
    for known, stored_as in ((datetime, _Kind.DATETIME), (date, _Kind.DATE), (time, _Kind.TIME)):
        if isinstance(value, known):
            return _extension(stored_as, value.isoformat().encode())
    if isinstance(value, timedelta):
        return _extension(_Kind.TIMEDELTA, msgpack.encode((value.days, value.seconds, value.microseconds)))
    bases: tuple[type, ...] = (int, float, str, bytes)
    for base in bases:
        if isinstance(value, base):
            return _plain(base(value))  # of a subclass, the value alone is stored
    # A named tuple or a counter would come back without what its functions need.
    raise TypeError(f"it holds {kind.__name__}")


def _extension(kind: _Kind, data: bytes) -> msgpack.Ext:
    return msgpack.Ext(int(kind), data)


def _restored(data: bytes | memoryview) -> Any:
    return _tupled(_DECODER.decode(data))


def _tupled(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return tuple(map(_tupled, value))
    return list(value) if kind is _List else value


def _extended(code: int, data: memoryview) -> Any:
    match _Kind(code):
        case _Kind.FLOATS:
            return tuple(np.frombuffer(data, "<f8").tolist())
        case _Kind.LIST:
            return _List(_restored(data))
        case _Kind.SET:
            return frozenset(_restored(data))
        case _Kind.MUTABLE_SET:
            return set(_restored(data))
        case _Kind.MAPPING:
            return dict(_restored(data))
        case _Kind.INTEGER:
            return int(bytes(data))
        case _Kind.DECIMAL:
            return Decimal(bytes(data).decode())
        case _Kind.DATE:
            return date.fromisoformat(bytes(data).decode())
        case _Kind.DATETIME:
            return datetime.fromisoformat(bytes(data).decode())
        case _Kind.TIME:
            return time.fromisoformat(bytes(data).decode())
        case _Kind.TIMEDELTA:
            return timedelta(*_restored(data))


_DECODER = msgpack.Decoder(ext_hook=_extended)
