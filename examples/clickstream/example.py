"""What the example of visits plays."""

from __future__ import annotations

from pathlib import Path

from examples.clickstream.clicks import deliveries
from examples.deliveries import Example

#: Of the versions of a visit that overlap, the latest.
LATEST = """
    select * from shop_visits
    qualify row_number() over (partition by visitor, window_start, window_end order by revision desc) = 1 and not retracted
"""

EXAMPLE = Example(
    folder=Path(__file__).parent,
    source="clicks",
    deliveries=deliveries,
    questions={
        "How often visits were shown": """
            select revision, count(*)::int as rows, sum(clicks)::int as clicks
            from shop_visits
            where not retracted
            group by revision
            order by revision
        """,
        "A visit that was two until the clicks between them came": """
            select
              visitor, batch, revision, strftime(window_start, '%H:%M') as "from", strftime(window_end, '%H:%M') as until,
              clicks, pages, left_at, retracted
            from shop_visits
            where visitor = (
              select visitor from shop_visits first join shop_visits second using (visitor)
              where first.revision = 0 and second.revision = 0 and first.window_end < second.window_start
                and exists (
                  from shop_visits whole
                  where whole.visitor = visitor and whole.window_start = first.window_start and whole.window_end >= second.window_end
                )
              order by visitor limit 1
            )
            order by batch, retracted desc, window_start
        """,
        "The latest revision of every visit, by the hour in which it began": f"""
            select
              strftime(window_start, '%H:00') as hour, count(*)::int as visits, sum(clicks)::int as clicks,
              sum(bought::int)::int as bought, sum(spent) as spent
            from ({LATEST})
            group by hour
            order by hour
        """,
    },
)
