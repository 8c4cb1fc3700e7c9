"""An hour of trades of two stocks, made by a seeded generator: one trades often, one seldom, and the first one falls for ten minutes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from examples.deliveries import Delivery

_OPENING = datetime(2024, 3, 4, 14, 30, tzinfo=UTC)
#: Symbol -> price at the opening, mean seconds between trades.
_STOCKS = {"ACME": (50.0, 3.0), "ZINC": (12.0, 25.0)}
#: Minutes in which ACME is sold, and what a trade then takes off its price.
_FALL, _DROP = range(30, 40), 0.01
_LANDING = timedelta(minutes=20)


def deliveries() -> list[Delivery]:
    """Three deliveries of 20 minutes."""
    dice, trades = random.Random(1430), []
    for symbol, (opening, seconds) in _STOCKS.items():
        price, at, so_far, number = opening, _OPENING, 0, 0
        while True:
            at += timedelta(milliseconds=round(1_000 * dice.expovariate(1 / seconds)))
            minute = (at - _OPENING).total_seconds() / 60
            if minute >= 60:
                break
            falls = symbol == "ACME" and int(minute) in _FALL
            shares = 100 * dice.randint(1, 9 if falls else 3)
            price = round(price + dice.choice((-0.01, 0.0, 0.01)) - (_DROP if falls else 0.0), 2)
            so_far, number = so_far + shares, number + 1
            trades.append((symbol, f"{symbol}-{number:05}", at, round(minute, 3), price, shares, so_far))
    parts: list[list[tuple[object, ...]]] = [[], [], []]
    for trade in sorted(trades, key=lambda trade: (trade[2], trade[1])):
        parts[(trade[2] - _OPENING) // _LANDING].append(trade)
    return [
        Delivery(f"{_OPENING + place * _LANDING:%H:%M} to {_OPENING + (place + 1) * _LANDING:%H:%M}", _table(rows))
        for place, rows in enumerate(parts)
    ]


def _table(rows: list[tuple[object, ...]]) -> pa.Table:
    schema = pa.schema(
        [
            ("symbol", pa.string()),
            ("trade", pa.string()),
            ("traded_at", pa.timestamp("us", "UTC")),
            ("minute", pa.float64()),
            ("price", pa.float64()),
            ("shares", pa.int64()),
            ("shares_so_far", pa.int64()),
        ]
    )
    return pa.table(dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True)), schema=schema)
