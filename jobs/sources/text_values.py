"""Reads text files as numbered lines, parses texts into values of a column's type, and finds the type that takes all texts of a column.

Lines are known by what compresses a file, what ends its lines, and values of CSV that hold line ends. Planning counts the lines that
reading gives, so the rows of a file are known before it is read. Instants and dates are in ISO forms, or by the patterns of the options
``timestampFormat`` and ``dateFormat``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from json import JSONDecodeError, JSONDecoder
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.stores import filesystem_of
from windowmill.jobs.instants import PATTERN, PatternError, instants_or_null, pattern_of
from windowmill.windowing.errors import SourceFileError, first_line

if TYPE_CHECKING:
    from windowmill.windowing.spec import Source


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
_JSON_SPACES = re.compile(r"[ \t\n\r]*")
#: To how many levels values of JSON may be nested, as by Spark's parser.
MAX_DEPTH = 1_000
#: Levels that Python's parser takes wherever it is called.
_SHALLOW = 200
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
#: Options of the formats whose values are texts, by Spark's names.
OPTIONS = ("dateFormat", "timestampFormat")
_ISO_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


def pattern_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Problems with the patterns among ``options``, as pairs (path of the field, problem and remedy)."""
    for name in OPTIONS:
        try:
            if name in options:
                pattern_of(options[name])
        except PatternError as err:
            yield f"source.options.{name}", str(err)


@dataclass(frozen=True, slots=True)
class TextTimes:
    """The patterns of a source's options; null for ISO forms. Picklable."""

    timestamp: str | None = None
    date: str | None = None

    @classmethod
    def of(cls, settings: Source | None) -> TextTimes:
        """Those of ``settings``; ISO forms without a source."""
        options = settings.options if settings is not None else {}
        return cls(options.get("timestampFormat"), options.get("dateFormat"))

    def instants(self, texts: pa.Array) -> pa.Array:
        """Microseconds since 1970 of the texts of a timestamp column; null for a text that is no instant."""
        return instants_or_null(texts) if self.timestamp is None else pattern_of(self.timestamp).instants(_valid(texts))

    def dates(self, texts: pa.Array) -> pa.Array | None:
        """Dates of the texts of a date column, null for a text that is none; null where dates are in ISO forms."""
        return None if self.date is None else pattern_of(self.date).dates(_valid(texts))

    def on_axis(self, texts: pa.Array) -> pa.Array:
        """As :meth:`instants`, of the texts of a text column, which may also be dates by the pattern of dates."""
        if self.date is None:
            return self.instants(texts)
        days = pattern_of(self.date).instants(_valid(texts))
        return days if self.timestamp is None else pc.coalesce(self.instants(texts), days)

    def type_of(self, texts: Iterable[str]) -> pa.DataType | None:
        """The type of a column that holds ``texts``, all of which are dates, or instants; null if they are not, or there are none."""
        every = list(texts)
        if not every:
            return None
        for kind, given, iso in ((pa.date32(), self.date, _ISO_DAY), (pa.timestamp("us", "UTC"), self.timestamp, PATTERN)):
            if given is None:
                takes = re.compile(iso).fullmatch
                fits = all(takes(text.strip(" \t\r\n")) for text in every)
            else:
                fits = not pattern_of(given).instants(pa.array(every, pa.string())).null_count
            if fits:
                return kind
        return None


#: Without patterns.
ISO = TextTimes()


def _valid(texts: pa.Array) -> pa.Array:
    """``texts`` as Arrow's own; null where one is not even UTF-8, as Spark makes texts of bytes."""
    plain = texts.cast(pa.string())
    try:
        plain.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_decoded(text) for text in plain.cast(pa.binary()).to_pylist()], pa.string())
    return plain


def _decoded(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


_WHOLE = r"[+-]?[0-9]{1,19}"
_NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|Inf|Infinity)"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_LOGICAL = "(?i:true|false)"
_SPACES = " \t\r\n"


def parsed(texts: pa.Array, kind: pa.DataType, times: TextTimes = ISO) -> pa.Array:
    """``texts`` as values of ``kind``, dates and instants by ``times``; null for a text that is none. What is no text is cast."""
    if texts.type == kind:
        return texts
    if not pa.types.is_string(texts.type):
        return _narrowed(texts, kind)
    if pa.types.is_timestamp(kind):
        return (times if kind.tz else ISO).instants(texts).cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_date(kind) and (dates := times.dates(texts)) is not None:
        return dates
    texts = pc.utf8_trim(texts, _SPACES)
    pattern, each = _FORMS[_form(kind)]
    fitting = pc.if_else(pc.match_substring_regex(texts, f"^(?:{pattern})$"), texts, pa.scalar(None, pa.string()))
    if _form(kind) == "number" or _form(kind) == "whole":
        fitting = pc.utf8_ltrim(fitting, "+")
    try:
        if _form(kind) != "whole" or fitting.null_count == texts.null_count:
            return _narrowed(fitting.cast(_WIDE.get(_form(kind), kind)), kind)
        fitting = texts  # 30.0 and 3e1 are whole numbers
    except pa.ArrowInvalid:  # a value is out of the type's range
        pass
    return pa.array([None if text is None else each(text, kind) for text in fitting.to_pylist()], kind)


def _form(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "whole"
    if pa.types.is_floating(kind):
        return "number"
    return "logical" if pa.types.is_boolean(kind) else "day" if pa.types.is_date(kind) else "decimal"


def _narrowed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """``values`` in a type that may hold fewer; null for one that it does not hold."""
    if pa.types.is_integer(kind) and values.type != kind:
        bits = kind.bit_width - 1
        fits = pc.and_(pc.greater_equal(values, -(1 << bits)), pc.less_equal(values, (1 << bits) - 1))
        values = pc.if_else(fits, values, pa.scalar(None, values.type))
    return values.cast(kind, safe=not pa.types.is_floating(kind))


def _whole(text: str, kind: pa.DataType) -> int | None:
    number = _plain_number(text)
    if number is None or number.adjusted() > _MOST_DIGITS or number != int(number):
        return None
    value, bits = int(number), kind.bit_width - 1
    return value if -(1 << bits) <= value < 1 << bits else None


def _plain_number(text: str) -> Decimal | None:
    """The number that a text is, exactly; null for none, NaN, infinities and exponents of 18 digits."""
    if _IS_NUMBER(text) is None:
        return None
    try:
        number = Decimal(text.replace("Inf", "Infinity") if text.endswith("Inf") else text)
    except InvalidOperation:  # its exponent is beyond those of decimals
        return None
    return number if number.is_finite() else None


def _day(text: str, _: pa.DataType) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        value = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _DECIMALS)
    except InvalidOperation:
        return None
    return value if value.is_finite() and len(value.as_tuple().digits) <= kind.precision else None


_FORMS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "whole": (_WHOLE, _whole),
    "number": (_NUMBER, lambda text, _: float(text)),
    "logical": (_LOGICAL, lambda text, _: text.lower() == "true"),
    "day": (_DAY, _day),
    "decimal": (_NUMBER, _decimal),
}
_WIDE = {"whole": pa.int64(), "number": pa.float64()}
_IS_LOGICAL = re.compile(_LOGICAL).fullmatch
_IS_NUMBER = re.compile(_NUMBER).fullmatch
_IS_WHOLE = re.compile("[+-]?[0-9]+").fullmatch
#: Digits of the longest decimal.
_MOST_DIGITS = 38
#: Python's default context has 28 digits.
_DECIMALS = Context(prec=2 * _MOST_DIGITS)
#: Up to here each whole number is a floating-point number.
EXACT = 1 << 53


class WrittenFloat(float):
    """A floating-point number of JSON that is printed with the digits with which it was written, of which a float may lose some."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """The number that ``text`` says."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text


#: Matches JSON that may hold a number of which orjson loses digits: a whole number beyond 64 bits, or a fraction with more than 15 digits.
MAY_BE_LONG = re.compile(r"[0-9]{19}|(?<![0-9.])(?=[0-9.]{17})[0-9]+\.").search


def guessed(texts: set[str], times: TextTimes = ISO) -> pa.DataType:
    """The type that takes all of a column's ``texts``; text for none."""
    written = times.type_of(texts)
    if written is not None:
        return written
    texts = {text.strip(_SPACES) for text in texts}
    if texts and all(map(_IS_NUMBER, texts)):
        return number_type(texts)
    return pa.bool_() if texts and all(map(_IS_LOGICAL, texts)) else pa.string()


def number_type(texts: set[str]) -> pa.DataType:
    """The type of numbers in which whole ones stay as they are; text for none."""
    whole = [int(text) for text in texts if _IS_WHOLE(text) and len(text) <= _MOST_DIGITS]
    span = max(map(abs, whole), default=0)
    if all(map(_IS_WHOLE, texts)):
        if len(whole) < len(texts):
            return pa.string()
        return pa.int64() if all(-(1 << 63) <= number < 1 << 63 for number in whole) else pa.decimal128(_MOST_DIGITS)
    if span <= EXACT and len(whole) == sum(1 for text in texts if _IS_WHOLE(text)):
        return pa.float64()
    numbers = [_plain_number(text) for text in texts]
    exponents = [_MOST_DIGITS if number is None else -int(number.as_tuple().exponent) for number in numbers]
    scale = max(0, *exponents)
    return pa.decimal128(_MOST_DIGITS, scale) if len(str(span)) + scale <= _MOST_DIGITS else pa.string()


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
    found = _JSON_SPACES.match(text, at)
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
    """``blocks`` with a line feed for each line end that is like the first one of all, also in values: so does Spark."""
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
