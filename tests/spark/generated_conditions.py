"""Conditions by a grammar, seeded, over rows of every type of column."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal

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
    *(9007199254740992.0, 9.223372036854775e18, 127.9, -128.9, 1e39, 5e-324, 1e22),
)
_INSTANTS = (
    *(None, 0, -1, 1_710_054_000_000_000, 1_710_054_000_000_001, 1_709_251_199_999_999, 951_782_400_000_000, -62_135_596_800_000_000),
    *(253_402_300_799_999_999, 1_710_039_600_000_000, 1 << 60, -(1 << 60), 86_400_000_000),
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
    }
)
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
_REGULAR = ("'^a'", "'b+'", "'[a-c]+$'", "'^(a|x)'", "'.'", "'a{2}'", "'5$'", "''")


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
            lambda: self._choice(below, self._float),
        )

    def _decimal(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*_BROKEN, "c")
        return self._one(lambda: self._decimal(0), lambda: f"({self._decimal(0)} {self._one('+', '*')} {self._one('1', 'f', 'i', '0.5')})")

    def _text(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("s", "s", "u") * 6, *_QUOTED)
        below = depth - 1
        return self._one(
            lambda: self._text(0),
            lambda: f"{self._one('lower', 'upper', 'trim', 'ltrim', 'rtrim')}({self._text(below)})",
            lambda: f"substr({self._text(below)}, {self._one('0', '1', '2', '9', '-1')}, {self._one('0', '1', '2', '9')})",
            lambda: f"substring({self._text(below)}, {self._one('1', '2')})",
            lambda: f"cast({self._any(below)} as string)",
            lambda: self._choice(below, self._text),
        )

    def _instant(self, depth: int) -> str:
        if depth <= 0:
            return self._one(*("t", "t", "m", "d") * 2, *_TIMES)
        return self._one(
            lambda: self._instant(0),
            lambda: f"{self._cast()}({self._any(depth - 1)} as timestamp)",
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
