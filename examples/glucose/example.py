"""What the example of glucose sensors plays."""

from __future__ import annotations

from pathlib import Path

from examples.deliveries import Example
from examples.glucose.readings import deliveries

EXAMPLE = Example(
    folder=Path(__file__).parent,
    source="readings",
    deliveries=deliveries,
    questions={
        "Means of 24 hours, weighted by time, beside the plain mean": """
            select
              patient, strftime(window_end, '%a %H:%M') as until, readings, mean_mg_dl, plain_mean,
              100 * share_in_range as in_range_pct
            from glucose_profile
            where hour(window_end) = 0 and readings > 200
            order by patient, window_end
        """,
        "The five longest episodes above 180 mg/dL": """
            select
              patient, strftime(first_reading, '%a %H:%M') as began,
              date_diff('minute', first_reading, last_reading)::int as minutes, readings, highest,
              strftime(highest_at, '%H:%M') as highest_at
            from glucose_episodes
            order by minutes desc, patient, began
            limit 5
        """,
    },
)
