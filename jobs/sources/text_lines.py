"""Reads text files as numbered lines: what compresses them, what ends their lines, and values of CSV that hold line ends.

Planning counts the lines that reading gives, so the rows of a file are known before it is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError, JSONDecoder
from typing import Any, NamedTuple

import pyarrow as pa

from windowmill.checkpoints.stores import filesystem_of
from windowmill.windowing.errors import SourceFileError, first_line

#: Bytes that are parsed at a time, and by which a file is known for text.
BLOCK_BYTES, _BEGIN_BYTES = 4 << 20, 4_096
#: The longest record of CSV with line ends in its values.
_LONGEST_RECORD = 64 << 20
#: What surrounds nothing: Spark reads no row from a line of these characters.
BLANK = bytes(range(33))
#: How compressed files begin.
_CODECS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # the latter begins a frame that readers skip
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
}
_REFUSED = {
    b"PK\x03\x04": "is a ZIP archive or a workbook; unpack it",
    b"\xfd7zXZ\x00": "is compressed by xz; unpack it, or compress it by gzip, bzip2, zstd or lz4",
    b"]\x00\x00": "is compressed by lzma; unpack it, or compress it by gzip, bzip2, zstd or lz4",
    b"\xff\x06\x00\x00sNaPpY": "is compressed by snappy; unpack it, or compress it by gzip, bzip2, zstd or lz4",
    b"7z\xbc\xaf\x27\x1c": "is a 7z archive; unpack it",
    **dict.fromkeys((b"x\x9c", b"x\xda"), "is compressed by zlib; unpack it, or compress it by gzip, bzip2, zstd or lz4"),
    b"PAR1": "is a Parquet file; move it to a folder of its own",
    b"\xff\xfe": "is UTF-16; write it in UTF-8",
    b"\xfe\xff": "is UTF-16; write it in UTF-8",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DAMAGED = re.compile(r"compressed stream|inflate|decompress", re.IGNORECASE)
#: Leaves numbers as they are written, however long.
DECODER = JSONDecoder(parse_int=str, parse_float=str)
_SPACES = re.compile(r"[ \t\n\r]*")
#: To how many levels values of JSON may be nested, as by Spark's parser.
MAX_DEPTH = 1_000
#: Levels that Python's parser takes wherever it is called.
_SHALLOW = 200
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


class Lines(NamedTuple):
    """Successive lines of a file, or records of CSV with their line ends, that are not blank; each with its number from 1."""

    texts: list[bytes]
    numbers: list[int]


def lines_of(path: str) -> Iterator[Lines]:
    """The lines of a text file, whichever of LF, CR LF and CR ends them.

    Raises ``SourceFileError`` if it is no text, is UTF-16, or what compresses it is damaged or cut off.
    """
    first = 1
    for block in _whole_lines(_with_line_feeds(_blocks(path))):
        every = block.removesuffix(b"\n").split(b"\n")
        numbers = [number for number, line in enumerate(every, first) if line.strip(BLANK)]
        yield Lines(every if len(numbers) == len(every) else [every[number - first] for number in numbers], numbers)
        first += len(every)


def objects_of(path: str) -> Iterator[Lines]:
    """As :func:`lines_of`, for JSON: the elements of a file that is one array are its lines."""
    lines = lines_of(path)
    for some in lines:
        if not some.texts:
            continue
        begin = some.texts[0][:1_000].strip(BLANK)
        if begin[:1] == b"[" and begin[1:].strip(BLANK)[:1] in (b"{", b"]", b""):
            elements = _elements(path)
            if elements is not None:
                yield elements
                return
        yield some
        break
    yield from lines


def records_of(path: str, delimiter: str, quote: str, escape: str) -> Iterator[Lines]:
    """The records of a CSV file whose quoted values may hold line ends.

    Raises
    ------
    SourceFileError
        As :func:`lines_of`; and if a quoted value does not end, or something follows it.
    """
    record = _record(delimiter.encode(), quote.encode(), escape.encode())
    blocks, rest, number, ended = _like_the_first(_blocks(path)), b"", 1, False
    while not ended:
        block = next(blocks, None)
        ended = block is None
        rest += b"\n" if block is None and rest and not rest.endswith(b"\n") else block or b""
        texts: list[bytes] = []
        numbers: list[int] = []
        at = 0
        while found := record.match(rest, at):
            if found.end() > at + 1:
                texts.append(rest[at : found.end() - 1])
                numbers.append(number)
            number, at = number + rest.count(b"\n", at, found.end()), found.end()
        rest = rest[at:]
        if rest and (ended or len(rest) > _LONGEST_RECORD):
            raise SourceFileError(
                f"source file {path}: line {number}: a quoted value does not end, or something follows it before the delimiter; correct "
                "the file, or set source.options.multiLine to false if no value holds a line end"
            )
        yield Lines(texts, numbers)


def _record(delimiter: bytes, quote: bytes, escape: bytes) -> re.Pattern[bytes]:
    d, plain = re.escape(delimiter), b"[^" + re.escape(delimiter) + b"\n]*+"
    if not quote:
        return re.compile(plain + b"(?:" + d + plain + b")*+\n")
    q, e = re.escape(quote), re.escape(escape or quote)
    inside = b"[^" + q + e + b"]|" + (q + q if escape in (b"", quote) else e + b"(?s:.)")
    value = b"(?:" + q + b"(?:" + inside + b")*+" + q + b"(?=[" + d + b"\n])|(?!" + q + b")" + plain + b")"
    return re.compile(value + b"(?:" + d + value + b")*+\n")


def _elements(path: str) -> Lines | None:
    """The elements of a file that is one JSON array, each as a line of its own; null if more than an array follows."""
    whole, number, counted = b"".join(_with_line_feeds(_blocks(path))), 1, 0
    texts: list[bytes] = []
    numbers: list[int] = []
    try:
        text = whole.decode()
        at = after_spaces(text, text.index("[") + 1)
        while text[at : at + 1] != "]" or texts:
            begin = at
            try:
                _, at = DECODER.raw_decode(text, begin)
            except RecursionError:  # whoever parses the element says so
                at = _behind(text, begin)
            number, counted = number + text.count("\n", counted, begin), begin
            texts.append(text[begin:at].replace("\n", " ").encode())
            numbers.append(number)
            at = after_spaces(text, at)
            if text[at : at + 1] != ",":
                break
            at = after_spaces(text, at + 1)
        if text[at : at + 1] != "]":
            raise JSONDecodeError("Expecting ',' or ']'", text, at)
    except JSONDecodeError as err:
        raise SourceFileError(
            f"source file {path}: line {err.lineno}: the JSON array cannot be read ({err.msg}); correct the file, or write an object a line"
        ) from err
    except UnicodeDecodeError as err:
        raise SourceFileError(f"source file {path}: the JSON array cannot be read ({first_line(err)}); correct the file") from err
    return None if text[at + 1 :].strip() else Lines(texts, numbers)


def may_be_deep(line: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether values of a JSON text may be nested to more than ``most`` levels."""
    return line.count(b"[") + line.count(b"{") > most


def check_depth(text: str) -> None:
    """Raise ``RecursionError`` if values of a JSON text are nested to more than :data:`MAX_DEPTH` levels."""
    if text.count("[") + text.count("{") > MAX_DEPTH and any(depth > MAX_DEPTH for depth, _ in _depths(text, 0)):
        raise RecursionError


def _behind(text: str, at: int) -> int:
    """The place behind the list or object that begins ``at``, however deep its values are nested."""
    return next((end for depth, end in _depths(text, at) if not depth), len(text))


def _depths(text: str, at: int) -> Iterator[tuple[int, int]]:
    """How deep values are nested behind each token of a JSON text from ``at`` on, and where the token ends."""
    depth = 0
    for token in _TOKENS.finditer(text, at):
        depth += (token[0] in "[{") - (token[0] in "]}")
        yield depth, token.end()


@contextmanager
def deep_recursion(line: bytes) -> Iterator[None]:
    """Have Python's parser take values of ``line`` that are nested to :data:`MAX_DEPTH` levels, however deep its caller is."""
    before = sys.getrecursionlimit()
    if may_be_deep(line, _SHALLOW):
        sys.setrecursionlimit(before + 3 * MAX_DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def after_spaces(text: str, at: int) -> int:
    """The place in JSON after the white space at ``at``."""
    found = _SPACES.match(text, at)
    return at if found is None else found.end()


def _whole_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if not end:
            parts.append(block)
            continue
        yield b"".join([*parts, block[:end]])
        parts = [block[end:]]
    if last := b"".join(parts):
        yield last


def _with_line_feeds(blocks: Iterator[bytes]) -> Iterator[bytes]:
    held = b""
    for block in blocks:
        whole = held + block
        held = b"\r" if whole.endswith(b"\r") else b""  # a line feed may follow
        whole = whole.removesuffix(b"\r")
        yield whole if b"\r" not in whole else whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if held:
        yield b"\n"


def _like_the_first(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """``blocks`` with line feeds for all line ends like the first one, also in values, as Spark reads them."""
    end, held = b"", b""
    for block in blocks:
        whole = held + block
        held = b"\r" if whole.endswith(b"\r") else b""
        whole = whole.removesuffix(b"\r") if held else whole
        if not end:
            found = re.search(rb"\r\n|\n|\r", whole)
            end = found[0] if found else b""
        yield whole.replace(end, b"\n") if end not in (b"", b"\n") else whole
    if held:
        yield b"\n" if end in (b"", b"\r") else held


def _blocks(path: str) -> Iterator[bytes]:
    """What the file holds, without what compresses it and its byte order mark.

    Raises ``SourceFileError`` if it is no text in UTF-8, or what compresses it is cut off or damaged.
    """
    store, own = filesystem_of(path)
    with store.open_input_stream(own, compression=None) as stream:
        begin = stream.read(_BEGIN_BYTES)
        codec = next((codec for codec, magic in _CODECS.items() if magic.match(begin)), None)
        if codec is None:
            yield from _text(path, begin, stream)
            return
    try:
        with pa.CompressedInputStream(store.open_input_stream(own, compression=None), codec) as unpacked:
            yield from _text(path, unpacked.read(_BEGIN_BYTES), unpacked)
    except OSError as err:
        if not _DAMAGED.search(str(err)):
            raise
        raise SourceFileError(
            f"source file {path}: what {codec} has compressed is cut off or damaged ({first_line(err)}); deliver it again, or remove it"
        ) from err


def _text(path: str, begin: bytes, stream: Any) -> Iterator[bytes]:
    why = next((why for magic, why in _REFUSED.items() if begin.startswith(magic)), None)
    # A few NUL are characters of a text: Spark reads them as any other.
    if why is None and 3 * begin.count(b"\0") > len(begin):
        why = "is UTF-16, or no text; write it in UTF-8, or leave it out by source.options.pathGlobFilter"
    if why is not None:
        raise SourceFileError(f"source file {path}: {why}")
    begin = begin.removeprefix(_BYTE_ORDER_MARK)
    yield from (begin[at : at + BLOCK_BYTES] for at in range(0, len(begin), BLOCK_BYTES))
    while block := stream.read(BLOCK_BYTES):
        yield block


def count_lines(lines: Iterator[Lines]) -> int:
    """Number of all lines."""
    return sum(len(some.texts) for some in lines)
