"""A morning of clicks, made by a seeded generator: three in ten visitors lose the network for a while, and their clicks come later."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from examples.deliveries import Delivery

_BEGIN = datetime(2024, 3, 4, 8, tzinfo=UTC)
_HOURS, _VISITORS = 4, 60
_LOST_FOR = timedelta(minutes=45)
_PAGES = ("home", "search", "shoes", "coats", "bags", "basket", "help")

Click = tuple[str, str, datetime, str, float, bool]


def deliveries() -> list[Delivery]:
    """A delivery for each hour. A click of a visitor without network comes with a later one."""
    dice, arriving = random.Random(20240305), [[] for _ in range(_HOURS)]  # type: tuple[random.Random, list[list[Click]]]
    for number in range(_VISITORS):
        visitor, at = f"v{number:03}", _BEGIN + timedelta(seconds=dice.randrange(3 * 3600))
        offline_from = at + timedelta(minutes=dice.randint(2, 20)) if dice.random() < 0.3 else None
        for click in range(dice.randint(2, 30)):
            page = "home" if click == 0 else dice.choice(_PAGES)
            orders = page == "basket" and dice.random() < 0.5
            hour = (at - _BEGIN).seconds // 3600
            # A phone without network keeps its clicks, and passes them on two hours later.
            lost = offline_from is not None and offline_from <= at < offline_from + _LOST_FOR
            arrives = hour + (2 if lost else 0)
            if arrives < _HOURS:
                arriving[arrives].append(
                    (visitor, f"{visitor}-{click:02}", at, page, dice.randint(10, 90) + 0.5 if orders else 0.0, orders)
                )
            at += timedelta(seconds=dice.randint(5, 600))
    return [
        Delivery(f"{_BEGIN + timedelta(hours=hour):%H:%M} to {_BEGIN + timedelta(hours=hour + 1):%H:%M}", _table(clicks))
        for hour, clicks in enumerate(arriving)
    ]


def _table(clicks: list[Click]) -> pa.Table:
    schema = pa.schema(
        [
            ("visitor", pa.string()),
            ("click", pa.string()),
            ("clicked_at", pa.timestamp("us", "UTC")),
            ("page", pa.string()),
            ("spent", pa.float64()),
            ("is_order", pa.bool_()),
        ]
    )
    return pa.table(
        dict(zip(schema.names, map(list, zip(*sorted(clicks, key=lambda click: click[2]), strict=True)), strict=True)), schema=schema
    )
