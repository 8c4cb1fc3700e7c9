"""Tables as bytes and back: Arrow's stream format behind a header that lets nothing else pass for state.

::

    offset  0         8           12              20             24
            WINDMILL  version u32 length u64      crc32 u32      tables, each: name length u32, name, length u64, Arrow IPC stream

Numbers are little-endian; length and checksum are those of all that follows the header. Columns are typed, so a reader of another
language needs no code of ours, and nothing in them is ever executed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import pyarrow as pa

from windowmill.windowing.errors import StateError

MAGIC, VERSION = b"WINDMILL", 1
_HEADER, _NAME, _LENGTH = struct.Struct("<8sIQI"), struct.Struct("<I"), struct.Struct("<Q")


def encode(tables: Mapping[str, pa.Table]) -> bytes:
    """``tables`` as bytes; equal tables give equal bytes."""
    parts = []
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        body, label = sink.getvalue().to_pybytes(), name.encode()
        parts += [_NAME.pack(len(label)), label, _LENGTH.pack(len(body)), body]
    payload = b"".join(parts)
    return _HEADER.pack(MAGIC, VERSION, len(payload), zlib.crc32(payload)) + payload


def decode(data: bytes) -> dict[str, pa.Table]:
    """The tables that :func:`encode` was given.

    Raises
    ------
    StateError
        If the bytes are no state, of another version, cut short, longer than they say, or damaged.
    """
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise StateError(f"state: {len(data)} bytes that do not begin with {MAGIC.decode()}; they are no state of windowmill")
    _, version, length, checksum = _HEADER.unpack_from(data)
    if version != VERSION:
        raise StateError(
            f"state: format version {version}; this release reads version {VERSION}. Use the release that wrote it, or rebuild it"
        )
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise StateError(
            f"state: {len(payload)} bytes where the header says {length}; it was cut or overwritten. Rebuild it from the source"
        )
    if zlib.crc32(payload) != checksum:
        raise StateError(f"state: checksum {zlib.crc32(payload):#010x} where the header says {checksum:#010x}; it is damaged. Rebuild it")
    tables, place = {}, 0
    try:
        while place < length:
            name, place = _piece(payload, place, _NAME)
            body, place = _piece(payload, place, _LENGTH)
            tables[name.decode()] = pa.ipc.open_stream(body).read_all()
    except (struct.error, pa.ArrowInvalid, UnicodeDecodeError, ValueError) as err:
        raise StateError(f"state: not a sequence of named tables ({err}); rebuild it from the source") from err
    return tables


def _piece(payload: bytes, place: int, size: struct.Struct) -> tuple[bytes, int]:
    (length,) = size.unpack_from(payload, place)
    begin = place + size.size
    if begin + length > len(payload):
        raise ValueError(f"a piece of {length} bytes at {begin} ends beyond the {len(payload)}")
    return payload[begin : begin + length], begin + length
