"""Conditions by a grammar, seeded, over rows of every type of column."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

_TEXTS = (
    *("5", " 5 ", "+5", "-7", "x", "", None, "1.5", "1e2", "NaN", "+nan", "-NaN", " nan ", "inf", "-inf", "+INF", "+Infinity"),
    *("-infinity", "infinit"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "2147483648", "128", "0", "-0", "00", ".5", "5.", ".", "-"),
    *("+", "1e400"),
    *("1e-400", "1e", "e1", "0x10", "0x1p3", "1_0", "1d", "1F", "1.5d", "5L", "1 5", "\t5\n", "5\u00a0", "٣", "\x7f5", "1e2f", "inff"),
    *("nand", "--5"),
    *("true", "2024-03-10", "9007199254740993", "9007199254740993.0", "0.1", "1e18", "a_c", "A%", "é", "É", "ß", "abc", "aBC", "a\nb"),
    *("5\x00",),
)
_N = len(_TEXTS)
_INTS = (0, 1, -1, 2, -2, 3, None, 7, -7, 2**31, -(2**31), 2**63 - 1, -(2**63), 10, 100, 5, 2**53, 2**53 + 1, -(2**53) - 1, 127, 128, 32768)
_FLOATS = (
    *(0.0, -0.0, 1.5, -1.5, 2.5, -2.5, None, math.nan, math.inf, -math.inf, 1e300, 9.3e18, -9.3e18, 0.1, 3.0, 1e-9, 2147483647.5, 5.0),
    *(9007199254740992.0, 9.223372036854775e18, 127.9, -128.9, 1e39, 5e-324, 1e22, 2.675),
)
_INSTANTS = (
    *(None, 0, -1, 1_710_054_000_000_000, 1_710_054_000_000_001, 1_709_251_199_999_999, 951_782_400_000_000, -62_135_596_800_000_000),
    *(253_402_300_799_999_999, 1_710_039_600_000_000, 1 << 60, -(1 << 60), 86_400_000_000),
)
_DATED = (
    *("2024-03-10", "2024-3-1", "20240310", "2024-03-10 07:08:09", "2024-03-10T07:08:09.5Z", "2024-02-30", "2024", " 2024-01-01 "),
    *("2024-03-10 07:08:09+02:00", "2024-03-10 7:8", "x", None, "2024-03-10 07:08:09 UTC", "2024-12", "+12024-01-01"),
    *("2024-03-10 07:08:09 Europe/Paris", "2024-03-10 07:08Z", "0000-01-01", "2024-03-10 24:00:00", "2024-03-10 07:08:09.1234567-18:00"),
    *("2024-03-10 07:08:09.5", "2024-03-10t07:08:09", "10/03/2024", "Mar 9, 2024"),
)
_PROSE = (
    *("alpha-12-beta", "x1y22", "", "a,b,,c", "foo\n", "foo\r\n", "  pad ", "AbC", "ab\tcd", None, "straße", "a.b.c"),
    *("user@example.com", "2024/01/02", "ÀÉ", "ΑΣ", "a_b%c", "\u2028", "it's", "ǆ a"),
)


def _cycled(values: tuple, kind: pa.DataType, step: int) -> pa.Array:
    """``values`` again and again, each time from another place, so that pairs of columns differ."""
    return pa.array([values[(n * step + n // len(values)) % len(values)] for n in range(_N)], kind)


def _within(bits: int) -> tuple:
    return tuple(value for value in _INTS if value is None or -(2**bits) <= value < 2**bits)


#: Column ``n_`` numbers the rows.
ROWS = pa.table(
    {
        "n_": pa.array(range(_N), pa.int64()),
        "s": pa.array(_TEXTS, pa.string()),
        "u": _cycled(("abc", "ABC", "a_c", "", None, "xyz", "b%", " a ", "5", "aa", "zz top", "~"), pa.string(), 5),
        "i": _cycled(_INTS, pa.int64(), 1),
        "j": _cycled(_within(31), pa.int32(), 3),
        "k": _cycled(_within(15), pa.int16(), 5),
        "h": _cycled(_within(7), pa.int8(), 7),
        "f": _cycled(_FLOATS, pa.float64(), 1),
        "g": _cycled(tuple(value for value in _FLOATS if value is None or not math.isfinite(value) or abs(value) < 3e38), pa.float32(), 3),
        "b": _cycled((True, False, None), pa.bool_(), 1),
        "o": _cycled((None, True, True, False), pa.bool_(), 3),
        "t": _cycled(_INSTANTS, pa.timestamp("us", "UTC"), 1),
        "m": _cycled(_INSTANTS, pa.timestamp("us"), 5),
        "d": _cycled((None, datetime.date(2024, 3, 10), datetime.date(1, 1, 1), datetime.date(1969, 12, 31)), pa.date32(), 1),
        "c": _cycled(
            (None, Decimal("1.500"), Decimal("-0.001"), Decimal("5.000"), Decimal("99999999999999999.999")), pa.decimal128(20, 3), 1
        ),
        "y": _cycled((None, b"", b"5", b"abc"), pa.binary(), 1),
        "q": _cycled((*map(Decimal, ("12.34", "-0.05", "99999999.99", "0.00", "2.50")), None), pa.decimal128(10, 2), 1),
        "z": _cycled(
            (Decimal("1" * 30 + ".12345678"), None, Decimal("-1.5"), Decimal(0), Decimal("-" + "9" * 30 + "." + "9" * 8)),
            pa.decimal128(38, 8),
            1,
        ),
        "v": _cycled(_DATED, pa.string(), 1),
        "x": _cycled(_PROSE, pa.string(), 1),
        "l": _cycled(([1, 2, 3], None, [], [5, None], [7], [2]), pa.list_(pa.int64()), 1),
        "w": _cycled((["a", "5"], None, [], ["x", None]), pa.list_(pa.string()), 1),
        "r": _cycled(
            ({"p": 1, "q": "x", "z": 1.5}, None, {"p": None, "q": "y", "z": math.nan}),
            pa.struct([("p", pa.int32()), ("q", pa.string()), ("z", pa.float64())]),
            1,
        ),
        "e": _cycled(({"a": 1, "b": None}, None, {}, {"c": 5}), pa.map_(pa.string(), pa.int64()), 1),
    }
)
#: An expression with each function and operator, one a line.
FUNCTIONS = Path(__file__).with_name("functions.txt").read_text().splitlines()
_COMPARISONS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
_WHOLE = ("0", "1", "-1", "2", "5", "127", "128", "2147483648", "9007199254740993", "9223372036854775807", "-9223372036854775807", "- 5")
_BROKEN = ("1.5", "0.1", "-2.5", "5.0", "9007199254740993.0", "0.50", "123456789012345678901234567890.5", "5.", ".5", "1e2", "-1e-3")
_QUOTED = ("'5'", "'x'", "''", "'abc'", "'1.5'", "'NaN'", "' 5 '", "'a_c'", "'é'", "'inf'", "'9223372036854775808'", "'2024-03-10'")
_TIMES = (
    *(
        "'2024-03-10'",
        "'2024-03-10 07:00:00'",
        "'2024-03-10T02:30:00-05:00'",
        "timestamp '2024-03-10 07:00:00'",
        "'1969-12-31 23:59:59.999999'",
    ),
    *("cast('2024-02-29' as timestamp)", "'2024-03-10 07:00:00.0000019Z'", "timestamp '0001-01-01'", "'2024-3-10'", "'2024'", "'x'"),
)
_PARTS = ("year", "month", "day", "dayofmonth", "dayofweek", "hour", "minute", "dayofyear", "quarter", "second", "weekday")
_PATTERNS = ("'a%'", "'_'", "'%c'", "'A'", "''", "'%'", "'a\\\\_c'", "'_b_'")
_REGULAR = (
    *("'^a'", "'b+'", "'[a-c]+$'", "'^(a|x)'", "'.'", "'a{2}'", "'5$'", "''", "'\\\\d+'", "'^\\\\s*$'", "'(?i)ab'", "'[^a-z0-9]'"),
    *("'\\\\.'", "'^.+$'", "'(\\\\w)-(\\\\d)'", "'a*?b'", "'(?:x|y)1'", "'\\\\bpad\\\\b'"),
)
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


class Grammar:
    """Draws conditions; ``depth`` bounds how deep their parts lie."""

    def __init__(self, seed: int, depth: int = 3) -> None:
        self._random = random.Random(seed)
        self._depth = depth

    def conditions(self, count: int) -> Iterator[str]:
        """``count`` different conditions."""
        seen: set[str] = set()
        while len(seen) < count:
            text = self._truth(self._random.randint(1, self._depth))
            if text not in seen:
                seen.add(text)
                yield text

    def _one(self, *choices: str | Callable[[], str]) -> str:
        chosen = self._random.choice(choices)
        return chosen if isinstance(chosen, str) else chosen()

    def _truth(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("b", "o") * 4, "true", "false", "null", "(i > 0)", "(s = '5')", "(f is null)")
        below = depth - 1
        return self._one(
            *(lambda: self._comparison(below),) * 5,
            lambda: f"{self._any(below)} {self._one('between', 'not between')} {self._any(below)} and {self._any(below)}",
            lambda: f"{self._any(below)} {self._one('in', 'not in')} ({self._any(0)}, {self._any(0)}, {self._any(0)})",
            lambda: f"{self._any(below)} {self._one('is null', 'is not null')}",
            lambda: f"({self._truth(below)}) {self._one('and', 'or')} ({self._truth(below)})",
            lambda: f"{self._truth(0)} {self._one('and', 'or')} {self._truth(0)} {self._one('and', 'or')} {self._truth(0)}",
            lambda: f"not ({self._truth(below)})",
            lambda: f"not {self._truth(0)}",
            lambda: f"({self._truth(below)}) {self._one('= b', '<=> o', '<> b', 'is null', 'is true', 'is not false', '< o', '= (i > j)')}",
            lambda: f"{self._text(below)} {self._one('like', 'not like')} {self._one(*_PATTERNS)}",
            lambda: f"{self._text(below)} rlike {self._one(*_REGULAR)}",
            lambda: f"{self._one('startswith', 'endswith', 'contains')}({self._text(below)}, {self._text(0)})",
            lambda: f"isnan({self._float(below)})",
            lambda: f"{self._text(below)} {self._one('ilike', 'not ilike')} {self._one(*_PATTERNS)}",
            lambda: f"array_contains(l, {self._int(below)})",
            lambda: f"array_contains({self._one('w', 'split(x, chr)').replace('chr', chr(39) + ',' + chr(39))}, {self._text(below)})",
            lambda: f"{self._any(below)} is {self._one('', 'not ')}distinct from {self._any(below)}",
            lambda: self._choice(below, self._truth),
        )

    def _comparison(self, depth: int) -> str:
        kind = self._random.choice((self._int, self._float, self._text, self._instant, self._any))
        other = self._random.choice((kind, kind, self._any))
        return f"{kind(depth)} {self._one(*_COMPARISONS)} {other(depth)}"

    def _any(self, depth: int) -> str:
        kinds = (self._int, self._int, self._float, self._text, self._instant, self._decimal, self._other)
        return self._random.choice(kinds)(depth)

    def _int(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("i", "j", "k", "h") * 4, *_WHOLE)
        below = depth - 1
        return self._one(
            lambda: self._int(0),
            *(lambda: f"({self._int(below)} {self._one('+', '-', '*', '%', 'div')} {self._int(below)})",) * 2,
            lambda: f"{self._int(0)} {self._one('+', '-', '*', '%')} {self._int(0)} {self._one('+', '-', '*', '%')} {self._int(0)}",
            *(lambda: f"{self._cast()}({self._any(below)} as {self._one('int', 'bigint', 'smallint', 'tinyint')})",) * 2,
            lambda: f"{self._one('int', 'bigint')}({self._any(0)})",
            lambda: f"{self._any(0)}::int",
            lambda: f"length({self._text(below)})",
            lambda: f"{self._one(*_PARTS)}({self._instant(below)})",
            lambda: f"abs({self._int(below)})",
            lambda: f"{self._one('pmod', 'mod', 'try_add', 'try_multiply', 'try_subtract')}({self._int(below)}, {self._int(below)})",
            lambda: f"{self._one('greatest', 'least')}({self._int(below)}, {self._any(0)})",
            lambda: f"({self._int(below)} {self._one('&', '|', '^')} {self._int(below)})",
            lambda: f"{self._one('floor', 'ceil')}({self._one(self._float(below), self._int(below))})",
            lambda: f"datediff({self._instant(below)}, {self._instant(0)})",
            lambda: f"timestampdiff({self._one(*_UNITS)}, {self._instant(below)}, {self._instant(0)})",
            lambda: f"{self._one('unix_timestamp', 'unix_micros')}({self._one('t', 'd', 'm')})",
            lambda: f"{self._one('size(l)', 'size(w)', 'l[0]', 'l[1]', 'get(l, 1)', 'element_at(l, -1)')}",
            lambda: self._one("r.p", "e['a']", "element_at(e, 'c')", "size(e)", "e[s]"),
            lambda: f"{self._one('instr', 'locate')}({self._text(below)}, {self._text(0)})",
            lambda: f"extract({self._one('year', 'hour', 'week', 'doy', 'dow')} from {self._instant(below)})",
            lambda: f"-{self._one('i', 'j', 'h')}",
            lambda: self._choice(below, self._int),
        )

    def _float(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("f", "g") * 5, "1.5D", "1e3", "-0.0D", "cast('NaN' as double)", "cast('inf' as double)", "1e308")
        below = depth - 1
        return self._one(
            lambda: self._float(0),
            lambda: f"({self._float(below)} {self._one('+', '-', '*', '/', '%')} {self._one(self._float(below), self._int(below))})",
            lambda: f"({self._int(below)} / {self._int(below)})",
            *(lambda: f"{self._cast()}({self._any(below)} as double)",) * 3,
            lambda: f"abs({self._float(below)})",
            lambda: f"-({self._float(below)})",
            lambda: f"sqrt({self._one(self._float(below), self._int(below))})",
            lambda: f"round({self._float(below)}, {self._one('0', '1', '2')})",
            lambda: f"{self._one('greatest', 'least')}({self._float(below)}, {self._float(0)})",
            lambda: f"power({self._float(below)}, 2)",
            lambda: f"sign({self._float(below)})",
            lambda: f"try_divide({self._int(below)}, {self._float(0)})",
            lambda: self._one("r.z", "cast(q as double)"),
            lambda: self._choice(below, self._float),
        )

    def _decimal(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*_BROKEN, "c", "q", "z", "q")
        below = depth - 1
        return self._one(
            lambda: self._decimal(0),
            lambda: f"({self._decimal(0)} {self._one('+', '*')} {self._one('1', 'f', 'i', '0.5')})",
            lambda: f"({self._decimal(below)} {self._one('+', '-', '*', '/', '%')} {self._one('c', 'q', 'z', 'j', '3', '0.7')})",
            lambda: f"round({self._one('c', 'q')}, {self._one('0', '1', '2')})",
            lambda: f"{self._cast()}({self._any(below)} as decimal({self._one('10, 2', '15, 3', '5, 0')}))",
            lambda: f"{self._one('abs', '-', 'floor', 'ceil')}({self._decimal(below)})",
            lambda: self._choice(below, self._decimal),
        )

    def _text(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("s", "s", "u", "x", "x", "v") * 4, *_QUOTED)
        below = depth - 1
        return self._one(
            lambda: self._text(0),
            lambda: f"{self._one('lower', 'upper', 'trim', 'ltrim', 'rtrim')}({self._text(below)})",
            lambda: f"substr({self._text(below)}, {self._one('0', '1', '2', '9', '-1')}, {self._one('0', '1', '2', '9')})",
            lambda: f"substring({self._text(below)}, {self._one('1', '2')})",
            lambda: f"cast({self._any(below)} as string)",
            lambda: f"concat({self._text(below)}, {self._one(self._text(0), self._int(0), self._instant(0))})",
            lambda: f"({self._text(below)} || {self._text(0)})",
            lambda: f"concat_ws('-', {self._text(below)}, {self._text(0)})",
            lambda: f"replace({self._text(below)}, {self._text(0)}, {self._text(0)})",
            lambda: f"{self._one('left', 'right')}({self._text(below)}, {self._one('2', 'h', '-1')})",
            lambda: f"split_part({self._text(below)}, {self._one(*_QUOTED)}, {self._one('1', '2', '-1', 'h')})",
            lambda: f"substring_index({self._text(below)}, '.', {self._one('1', '-1', '2')})",
            lambda: f"regexp_replace({self._text(below)}, {self._one(*_REGULAR)}, '<$0>')",
            lambda: f"regexp_extract({self._text(below)}, {self._one(*_REGULAR)}, 0)",
            lambda: f"split({self._text(below)}, {self._one(*_REGULAR)})[{self._one('0', '1')}]",
            lambda: f"{self._one('lpad', 'rpad')}({self._text(below)}, 4, {self._one(*_QUOTED)})",
            lambda: f"date_format({self._instant(below)}, {self._one(chr(39) + 'yyyy-MM-dd HH' + chr(39), chr(39) + 'yyyyMM' + chr(39))})",
            lambda: self._one("r.q", "w[0]", "get(w, 1)", "reverse(x)", "trim(both 'a' from x)", "translate(x, 'ab', 'B')"),
            lambda: self._choice(below, self._text),
        )

    def _instant(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("t", "t", "m", "d") * 2, *_TIMES)
        return self._one(
            lambda: self._instant(0),
            lambda: f"{self._cast()}({self._any(depth - 1)} as {self._one('timestamp', 'date', 'timestamp_ntz')})",
            lambda: f"date_trunc({self._one(*(chr(39) + unit + chr(39) for unit in _UNITS))}, {self._instant(depth - 1)})",
            lambda: f"trunc({self._instant(depth - 1)}, {self._one(chr(39) + 'month' + chr(39), chr(39) + 'week' + chr(39))})",
            lambda: f"({self._instant(depth - 1)} {self._one('+', '-')} interval {self._one('1 day', '2 hours', '1 month', '1 week')})",
            lambda: f"{self._one('date_add', 'date_sub', 'add_months')}({self._instant(depth - 1)}, {self._one('1', 'h', 'k', '-3')})",
            lambda: f"{self._one('to_date', 'to_timestamp', 'date', 'last_day', 'try_to_timestamp')}({self._one('v', 't', 'd', 's')})",
            lambda: f"timestampadd({self._one(*_UNITS)}, {self._one('1', 'h', '-2')}, {self._instant(depth - 1)})",
            lambda: self._one("timestamp_seconds(j)", "timestamp_millis(i)"),
            lambda: self._choice(depth - 1, self._instant),
        )

    def _other(self, _depth: int) -> str:
        return self._one("b", "y", "d", "c", "null", "true")

    def _cast(self) -> str:
        return self._one("cast", "cast", "try_cast")

    def _choice(self, depth: int, kind: Callable[[int], str]) -> str:
        one, two, test = kind(depth), kind(depth), self._truth(depth)
        return self._one(
            f"coalesce({one}, {two})",
            f"if({test}, {one}, {two})",
            f"nullif({one}, {two})",
            f"(case when {test} then {one} when {self._truth(0)} then {two} end)",
            f"(case when {test} then {one} else {two} end)",
            f"ifnull({one}, {two})",
        )
