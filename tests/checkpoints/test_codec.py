"""State as bytes: what goes in comes out, and nothing else passes for state."""

from __future__ import annotations

import pickle
import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.checkpoints import codec
from windowmill.windowing.errors import StateError

TABLES = {
    "rows": pa.table(
        {
            "k": pa.array(["a", None, "é"]),
            "v": pa.array([1.5, None, float("-inf")]),
            "n": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
            "d": pa.array([None, 1, 2], pa.decimal128(20, 3)),
            "l": pa.array([[1], None, []], pa.list_(pa.int64())),
        }
    ),
    "nothing": pa.table({"n": pa.array([], pa.int64())}),
    "no columns": pa.table({}),
}


def test_tables_come_back_as_they_were():
    found = codec.decode(codec.encode(TABLES))
    assert list(found) == list(TABLES)
    for name, table in TABLES.items():
        assert found[name].schema == table.schema
        assert found[name].equals(table)
    assert codec.encode(found) == codec.encode(TABLES)
    assert codec.decode(codec.encode({})) == {}


def test_a_part_of_a_larger_table_is_stored_alone():
    large = pa.table({"v": pa.array(range(100_000))})
    assert len(codec.encode({"v": large.slice(7, 3)})) < 2_000


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(place: int, bit: int):
    data = bytearray(codec.encode(TABLES))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(StateError):
        codec.decode(bytes(data))


@given(length=st.integers(min_value=0))
def test_every_cut_is_noticed(length: int):
    data = codec.encode(TABLES)
    with pytest.raises(StateError):
        codec.decode(data[: length % len(data)])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no state of windowmill"),
        (pickle.dumps({"rows": 1}), "no state of windowmill"),
        (codec.encode(TABLES) + b"x", "bytes where the header says"),
        (codec.encode(TABLES).replace(struct.pack("<I", codec.VERSION), struct.pack("<I", 7), 1), "format version 7"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, says: str):
    with pytest.raises(StateError, match=says):
        codec.decode(data)


def test_a_right_checksum_over_no_tables_is_refused():
    payload = b"\x05\x00\x00\x00helloworld"
    header = struct.pack("<8sIQI", codec.MAGIC, codec.VERSION, len(payload), zlib.crc32(payload))
    with pytest.raises(StateError, match="not a sequence of named tables"):
        codec.decode(header + payload)
