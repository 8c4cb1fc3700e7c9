"""What the example of stock prices plays."""

from __future__ import annotations

from pathlib import Path

from examples.deliveries import Example
from examples.stocks.trades import deliveries

EXAMPLE = Example(
    folder=Path(__file__).parent,
    source="trades",
    deliveries=deliveries,
    questions={
        "ACME's last 20,000 shares, whenever 10,000 more have been traded": """
            select
              strftime(window_end, '%H:%M:%S') as at, date_diff('second', window_start, window_end)::int as seconds,
              trades, shares, vwap, low, high, trend.slope as dollars_a_minute
            from stock_trades
            where "window" = 'last_shares' and symbol = 'ACME'
            order by trigger
        """,
        "The last 100 trades of each stock": """
            select
              symbol, count(*)::int as results, min(date_diff('second', window_start, window_end))::int as shortest_s,
              max(date_diff('second', window_start, window_end))::int as longest_s, min(trend.slope) as steepest_fall
            from stock_trades
            where "window" = 'last_trades'
            group by symbol
            order by symbol
        """,
    },
)
