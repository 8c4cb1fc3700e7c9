"""The example's windows once more, from the raw rows by DuckDB: the definition written as plain SQL, sharing nothing with windowmill."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

import duckdb
import pyarrow as pa

from examples.flights.land import raw_airports, raw_flights

#: Counts, sums and extremes of integers, and the choice of the worst flight, have one right value; these are rounded on their way.
_EXACT = ("window_start", "flights", "total_delay", "min_delay", "max_delay", "worst_flight", "worst_to", "late_flights")
_ROUNDED = ("mean_delay", "stddev_delay", "share_late")

# A window is out when the watermark (greatest departure so far, less 4 hours of disorder) is an hour of lateness past its end.
# A row counts in a window unless the window was out already when its day landed: a day is one commit. The UTC hour is the data's own
# column, and not computed from New York's clock as the landing does it.
# Each airport and carrier takes its flights up one by one once the watermark has passed them; one that lands after a later one was taken
# up is too late. Every tenth flight shows the last hundred.
_WINDOWS = """
with
  landed as (
    select
      origin, carrier, dep_delay as delay, make_date(year, month, day) as landed_on,
      time_hour + to_minutes(minute) as scheduled,
      time_hour + to_minutes(minute) + to_minutes(dep_delay) as departed,
      format('{}-{}-{}-{}-{:04d}-{:02d}-{:02d}-{:02d}{:02d}', carrier, flight, origin, dest, year, month, day, hour, minute) as flight_id,
      airports.name as airport
    from raw left join airports on dest = faa
    where make_date(year, month, day) <= $last_day and dep_delay is not null
  ),
  seen as (
    select *, max(departed) over (order by landed_on range between unbounded preceding and interval 1 day preceding) as seen from landed
  ),
  kinds(name, size, hop) as (
    values ('hourly', 60, 60), ('rolling_day', 24 * 60, 30), ('rolling_week', 7 * 24 * 60, 6 * 60)
  ),
  ends as (
    select name, size, seen.*, unnest(generate_series(
      time_bucket(to_minutes(hop), departed, timestamp '1970-01-01') + to_minutes(hop),
      departed + to_minutes(size),
      to_minutes(hop)
    )) as window_end
    from seen, kinds
  ),
  placed as (
    select *, window_end - to_minutes(size) as placed_start, null as trigger
    from ends
    where (seen is null or window_end > seen - interval 5 hours) and window_end <= (select max(departed) from landed) - interval 5 hours
  ),
  taken_up as (
    select *, row_number() over (partition by origin, carrier order by departed, flight_id) as number
    from seen as flight
    where departed < (select max(departed) from landed) - interval 4 hours
      and not exists (
        from seen as earlier
        where earlier.origin = flight.origin and earlier.carrier = flight.carrier and earlier.landed_on < flight.landed_on
          and flight.departed < flight.seen - interval 4 hours and earlier.departed < flight.seen - interval 4 hours
          and (earlier.departed, earlier.flight_id) > (flight.departed, flight.flight_id)
      )
  ),
  shown as (
    select
      'last_100' as name, null::timestamp as placed_start, latest.departed as window_end, latest.number // 10 - 1 as trigger,
      flight.* exclude (number)
    from taken_up as latest join taken_up as flight
      on flight.origin = latest.origin and flight.carrier = latest.carrier and flight.number between latest.number - 99 and latest.number
    where latest.number % 10 = 0
  )
select
  origin, carrier, name as "window", coalesce(placed_start, min(departed)) as window_start, window_end, trigger,
  count(*) as flights,
  cast(sum(delay) as bigint) as total_delay,
  avg(delay) as mean_delay,
  min(delay) as min_delay,
  max(delay) as max_delay,
  stddev_samp(delay) as stddev_delay,
  first(flight_id order by delay desc, departed, flight_id) as worst_flight,
  first(airport order by delay desc, departed, flight_id) as worst_to,
  count(*) filter (delay > 15) as late_flights,
  count(*) filter (delay > 15) / count(*) as share_late
from (from placed union all by name from shown)
where window_end > $after
group by origin, carrier, name, placed_start, window_end, trigger
"""

_COMPARED = f"""
select
  count(*) as compared,
  count(*) filter (where w.origin is null) as missing,
  count(*) filter (where d.origin is null) as surplus,
  count(*) filter (where {" or ".join(f"w.{name} is distinct from d.{name}" for name in _EXACT)}) as unequal,
  coalesce(max(greatest({", ".join(f"abs(w.{name} - d.{name}) / greatest(abs(d.{name}), 1e-300)" for name in _ROUNDED)})), 0) as difference,
  count(*) filter (where {" or ".join(f"(w.{name} is null) <> (d.{name} is null)" for name in _ROUNDED)}) as nulls
from recomputed d full join published w
  on d.origin = w.origin and d.carrier = w.carrier and d."window" = w."window" and d.window_end = w.window_end
    and d.trigger is not distinct from w.trigger
"""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Published rows against recomputed ones.

    Attributes
    ----------
    compared
        Rows on either side.
    missing, surplus
        Rows that only the recomputation, only the published table has.
    unequal
        Rows with another start, count, sum, extreme or worst flight, or with a null on one side only.
    difference
        Greatest relative difference of a mean or a standard deviation.
    """

    compared: int
    missing: int
    surplus: int
    unequal: int
    difference: float

    @property
    def holds(self) -> bool:
        """Whether all rows are there and equal: integers exactly, floats to 1e-9."""
        return self.compared > 0 and not (self.missing or self.surplus or self.unequal) and self.difference <= 1e-9


def compare(published: pa.Table, *, after: datetime, last_day: date) -> Agreement:
    """Compare the sink's rows with a recomputation from the flights scheduled through ``last_day``.

    Parameters
    ----------
    published
        The sink's rows, with instants as UTC without a zone.
    after
        Start of the backfill; windows that end at or before it are not published. UTC.
    """
    with duckdb.connect() as database:
        # Without time zones, which are all UTC here: DuckDB would need its ICU extension to compute with them.
        database.register("raw", _without_zone(raw_flights(), "time_hour"))
        database.register("airports", raw_airports())
        database.register("published", published)
        database.execute(f"create table recomputed as {_WINDOWS}", {"last_day": last_day, "after": after.replace(tzinfo=None)})
        compared, missing, surplus, unequal, difference, nulls = database.execute(_COMPARED).fetchone() or (0,) * 6
        return Agreement(compared, missing, surplus, max(unequal - missing - surplus, nulls - missing - surplus, 0), float(difference))


def _without_zone(table: pa.Table, column: str) -> pa.Table:
    return table.set_column(table.schema.get_field_index(column), column, table[column].cast(pa.timestamp("us")))
