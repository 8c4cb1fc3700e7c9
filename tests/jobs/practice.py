"""Conditions of the kinds that people write in dbt models, filters and quality rules, over a table of orders."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

#: One condition a line.
PRACTICE = Path(__file__).with_name("practice.txt").read_text().splitlines()
_N = 24
_UTC = datetime.UTC


def _cycled(kind: pa.DataType, *values: object) -> pa.Array:
    return pa.array([values[(n + n // len(values)) % len(values)] for n in range(_N)], kind)


def _at(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=_UTC)


_INSTANT = pa.timestamp("us", "UTC")
_ITEM = pa.struct([("sku", pa.string()), ("price", pa.float64()), ("qty", pa.int32())])
_ADDRESS = pa.struct([("city", pa.string()), ("zip", pa.string()), ("country", pa.string())])
ROWS = pa.table(
    {
        "order_id": _cycled(pa.int64(), 103, 13, None, 1_000_000_007, 20, -7),
        "customer_id": _cycled(pa.string(), "42", "", None, "  ", "c-7", "0017"),
        "status": _cycled(pa.string(), "completed", " Shipped ", None, "cancelled", "placed", "returned", "COMPLETED"),
        "amount": _cycled(pa.decimal128(10, 2), *map(Decimal, ("19.99", "0.00", "-5.00", "12345.67", "120.00")), None),
        "discount": _cycled(pa.float64(), 0.1, None, 0.0, 0.25, float("nan"), 0.1049),
        "quantity": _cycled(pa.int32(), 2, 0, None, 12, 999, -1, 3),
        "country": _cycled(pa.string(), "DE", "fr", None, "US", "it"),
        "email": _cycled(pa.string(), "a.b@gmail.com", "x@example.com", None, "", "no-mail", "Ä@web.de", "q@web.de"),
        "phone": _cycled(pa.string(), "+49 (30) 1234-5678", "0301234", None, "", "1234567890"),
        "url": _cycled(
            pa.string(), "https://www.example.com/a?utm_source=news&utm_campaign=x", "http://shop.de/i.html", None, "", "ftp://x"
        ),
        "user_agent": _cycled(pa.string(), "Mozilla/5.0 (iPhone)", "Googlebot/2.1", None, "Android App", "BOT"),
        "code": _cycled(pa.string(), "AB1234", "AB-1234", None, "", "ABxyz", "CD0001"),
        "is_active": _cycled(pa.bool_(), True, False, None),
        "is_deleted": _cycled(pa.bool_(), False, None, True, False),
        "price": _cycled(pa.float32(), 9.99, 0.0, None, 1e7, -1.5),
        "lat": _cycled(pa.float64(), 52.5, 0.0, None, -91.0),
        "lon": _cycled(pa.float64(), 13.4, 0.0, 180.0, None, -74.0),
        "score": _cycled(pa.int16(), 1, 5, None, 6),
        "duration_ms": _cycled(pa.int64(), 1500, 0, None, 90_000_000, 2501, 86_400_000),
        "created_at": _cycled(_INSTANT, _at(2024, 3, 10, 7, 15), _at(2023, 12, 31, 23, 59, 59), None, _at(2024, 3, 1), _at(2024, 2, 29, 6)),
        "updated_at": _cycled(_INSTANT, _at(2024, 3, 10, 7, 45), _at(2024, 1, 2), None, _at(2024, 3, 11, 7, 15)),
        "shipped_on": _cycled(pa.date32(), datetime.date(2024, 3, 11), None, datetime.date(2024, 1, 31), datetime.date(2023, 12, 31)),
        "loaded_at": _cycled(pa.string(), "2024-03-10", "2024-03-10 07:15:00", None, "10.03.2024", "", "2024-03-10T08:00:00Z"),
        "event_type": _cycled(pa.string(), "purchase", "refund", None, "view"),
        "payload": _cycled(pa.string(), '{"type":"click"}', "{}", None, "x"),
        "tags": _cycled(pa.list_(pa.string()), ["vip", "new"], [], None, ["test", None], ["vip"]),
        "items": _cycled(
            pa.list_(_ITEM), [{"sku": "A-1", "price": 12.5, "qty": 1}], [], None, [{"sku": "B-2", "price": 0.5, "qty": 9}, None]
        ),
        "attributes": _cycled(pa.map_(pa.string(), pa.string()), {"channel": "web"}, {}, None, {"channel": None, "x": "y"}),
        "address": _cycled(
            _ADDRESS, {"city": "Berlin", "zip": "10115", "country": "DE"}, None, {"city": None, "zip": "1011", "country": "fr"}
        ),
    }
)
