"""Hashes and encodings of texts and bytes, and Spark's own hash of any values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.jobs.conditions.casts import EXACT
from windowmill.jobs.conditions.evaluated import Value, applied, array_of, by_value, either, numbers_of, outside
from windowmill.jobs.conditions.functions import Call, Takes, calls, function, text
from windowmill.jobs.conditions.value_types import BINARY, INT, LONG, NULL, TEXT, is_whole

_SHA2 = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
_SEED = 42
_Words = npt.NDArray[np.uint32]


def octets(value: Value) -> Value:
    """An argument that is bytes, or a text as its bytes."""
    if value.kind not in (TEXT, BINARY, NULL):
        raise outside("bytes", value.kind)
    return applied(lambda array: array.cast(BINARY), [value])


def _digest(*names: str, of: Callable[[bytes], Any], kind: pa.DataType = TEXT, takes: Takes = octets) -> None:
    function(*names, takes=[takes])(lambda array: by_value(array, of, kind))


_digest("md5", of=lambda each: hashlib.md5(each, usedforsecurity=False).hexdigest())
_digest("sha1", "sha", of=lambda each: hashlib.sha1(each, usedforsecurity=False).hexdigest())
_digest("crc32", of=zlib.crc32, kind=LONG)
_digest("base64", of=lambda each: base64.b64encode(each).decode())


@calls("sha2")
def _sha2(call: Call) -> Value:
    value, bits = call.values(2, 2)
    if not isinstance(bits.literal, int):
        raise outside("sha2() of a changing number of bits")
    name = _SHA2.get(bits.literal)
    return applied(lambda array: by_value(array, lambda each: hashlib.new(name, each).hexdigest() if name else None, TEXT), [octets(value)])


@calls("hex")
def _hex(call: Call) -> Value:
    [value] = call.values(1, 1)
    if is_whole(value.kind):
        return applied(lambda array: by_value(array, lambda each: f"{each & (1 << 64) - 1:X}", TEXT), [value])
    return applied(lambda array: by_value(array, lambda each: each.hex().upper(), TEXT), [octets(value)])


@calls("unhex")
def _unhex(call: Call) -> Value:
    [value] = call.values(1, 1)

    def read(digits: str) -> bytes | None:
        try:
            return binascii.unhexlify(digits if len(digits) % 2 == 0 else "0" + digits)
        except ValueError:
            return None

    return applied(lambda array: by_value(array, read, BINARY), [text(value)])


@calls("hash")
def _hash(call: Call) -> Value:
    """Murmur3 in 32 bits: the hash of each value is the seed of the next one; a null does not change it."""
    values = call.values(1)
    for value in values:
        if pa.types.is_nested(value.kind) or pa.types.is_duration(value.kind):
            raise call.refused(value)
    found, failed = np.full(call.own.n, _SEED, np.uint32), either(*(value.failed for value in values))
    for value in values:
        if value.kind != NULL:
            found = np.where(value.valid, _murmur(value.array, found), found)
    return Value(array_of(found.view(np.int32), INT, failed), failed)


def _murmur(array: pa.Array, seed: _Words) -> _Words:
    kind = array.type
    if kind in (TEXT, BINARY):
        return _murmur_of_bytes(array.cast(BINARY).to_pylist(), seed)
    if pa.types.is_decimal(kind):
        unscaled = [0 if each is None else int(each.scaleb(kind.scale, EXACT)) for each in array.to_pylist()]
        if kind.precision > 18:
            return _murmur_of_bytes([each.to_bytes((each + (each < 0)).bit_length() // 8 + 1, signed=True) for each in unscaled], seed)
        numbers: npt.NDArray[Any] = np.asarray(unscaled, np.int64)
    else:
        numbers = numbers_of(array)
        numbers = numbers + 0.0 if pa.types.is_floating(kind) else numbers  # -0.0 is 0.0
        numbers = numbers.view(f"i{numbers.dtype.itemsize}") if pa.types.is_floating(kind) else numbers
    wide = kind == LONG or numbers.dtype.itemsize == np.int64().itemsize
    words = [numbers & 0xFFFFFFFF, numbers >> 32] if wide else [numbers]
    for word in words:
        seed = _mixed(seed, word)
    return _finished(seed, np.uint32(4 * len(words)))


def _murmur_of_bytes(texts: list[bytes | None], seed: _Words) -> _Words:
    found = seed.copy()
    lengths = np.array([len(each or b"") for each in texts], np.int64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        octets_ = np.frombuffer(b"".join(texts[row] or b"" for row in rows), np.uint8).reshape(len(rows), length)
        own, whole = seed[rows], length - length % 4
        for word in np.ascontiguousarray(octets_[:, :whole]).view("<u4").T if whole else ():
            own = _mixed(own, word)
        for rest in octets_[:, whole:].view(np.int8).T:  # Spark mixes in each of the last bytes as a word
            own = _mixed(own, rest.astype(np.int32))
        found[rows] = _finished(own, np.uint32(length))
    return found


def _mixed(seed: _Words, word: npt.NDArray[Any]) -> _Words:
    own = word.astype(np.uint32) * np.uint32(0xCC9E2D51)
    own = (own << np.uint32(15) | own >> np.uint32(17)) * np.uint32(0x1B873593)
    seed = seed ^ own
    found: _Words = (seed << np.uint32(13) | seed >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    return found


def _finished(seed: _Words, length: np.uint32) -> _Words:
    seed = seed ^ length
    seed = (seed ^ seed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    seed = (seed ^ seed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return seed ^ seed >> np.uint32(16)
