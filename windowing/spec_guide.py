"""What each field of a spec says, with an example: for the JSON schema that editors read, and for the reference pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windowmill.windowing.spec import Pipeline

#: Fields of every window.
_EVERY_WINDOW: Mapping[str, tuple[str, Any]] = {
    "name": ("Name of the window in the column `window` of the sink.", "hourly"),
    "type": ("Type of the window.", None),
    "output": ("Either is accepted: rows carry `window_start` and `window_end` in both cases.", "window_end"),
    "empty": ("`emit`: also a row, with count 0 and nulls, for each known key whose window holds nothing.", "emit"),
}
_ORIGIN = ("Instant from which windows are counted; the Unix epoch unless given.", "2013-01-01T06:00:00Z")
_TIMEZONE = ("Time zone whose calendar and clock days, weeks and months follow.", "Europe/Vienna")
_IDLE = ("A key without events for this long is forgotten.", "7 days")
_PATH = ("Folder of the table, or its URI on object storage.", "${WAREHOUSE}/flights")
_STORAGE = (
    "Options of delta-rs for object storage; each names the environment variable that holds its value.",
    {"aws_region": "${LAKE_REGION}"},
)
_TABLE = ("Name of a Delta table of Spark's catalog, in place of `path`; a first run looks up where it lies.", "lake.shop.orders")

#: Class of the spec's model -> field -> what it says, and an example; null where the class has one value only.
GUIDE: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    "Pipeline": {
        "pipeline": ("Name of the pipeline; it stays with the sink.", "flight_delays"),
        "renamed_from": ("The name under which the pipeline built its sink, if it has been renamed since.", "delays"),
        "source": ("Where events come from; `windowmill try` and `aggregate` do without.", {"path": "${WAREHOUSE}/flights"}),
        "steps": (
            "What rows go through before windows see them, in this order: computed columns, lookups in other tables, and filters.",
            [{"columns": {"delay": "dep_delay + arr_delay"}}, {"filter": "delay is not null"}],
        ),
        "dedup": ("Rows behind the last step that are left out: all but the first with equal values.", {"by": ["event_id"]}),
        "keys": ("Columns by which events are grouped, or fields of structs (`user.id`); none: one global group.", ["origin", "carrier"]),
        "time": (
            "The time axis, and how long rows are waited for; needed unless the source is another pipeline.",
            {"column": "departed_at", "disorder": "30 minutes"},
        ),
        "windows": ("The windows, each with a name.", [{"name": "hourly", "type": "tumbling", "size": "1 hour"}]),
        "aggregates": ("Columns of the result -> the aggregate; see the page of aggregates.", {"mean_delay": {"mean": "delay"}}),
        "emit": ("`final`: each row once, when its window is complete; `revise`: earlier, and again for late rows.", "revise"),
        "strict": ("Refuse a pipeline that would keep raw rows in its state.", True),
        "sink": ("The table that receives result rows.", {"path": "${WAREHOUSE}/flight_delays"}),
        "checkpoints": ("Folder of ledger and state; `<sink>.windowmill` unless given.", {"path": "${WAREHOUSE}/state/flight_delays"}),
        "expectations": (
            "Great Expectations rules over the rows about to be published; `suite: FILE`: those of a suite; or `freshness: 2 hours`.",
            [{"type": "expect_column_values_to_be_between", "column": "mean_delay", "max_value": 2880, "severity": "critical"}],
        ),
        "fold_revisions": ("Age from which on maintenance keeps only the newest revision of a window; all stay unless given.", "30 days"),
        "savepoints": ("How often maintenance makes a savepoint, and how many of them it keeps.", {"every": "7 days", "keep": 4}),
        "quarantine": ("Shares of a batch's rows above which quarantined rows are a warning, or hold it.", {"warn": "1 %", "hold": "10 %"}),
        "schedule": ("When Airflow runs it: five cron fields, a word such as `@hourly`, or an asset.", "*/30 * * * *"),
        "airflow": (
            "Settings of the pipeline's DAGs; or `own`: a DAG file of yours builds them, and those that ship leave the pipeline alone.",
            {"retries": 2, "tags": ["delays"], "on_warning": "shop_alerts:warned"},
        ),
        "compute": ("Who computes a batch: Spark, this process where a batch is small (`auto`), or this process alone (`local`).", "local"),
        "apply": ("Whether a run carries out a changed spec itself where it only adds windows or aggregates (`auto`).", "auto"),
    },
    "Source": {
        "pipeline": (
            "File of another pipeline's spec, from the folder of this one, whose results are the rows; with `window` or `windows` only.",
            "minutes.yaml",
        ),
        "window": ("Window of the other pipeline whose results are the rows; it may be left out where there is only one.", "minute"),
        "windows": ("Several windows of the other pipeline, in place of `window`.", ["minute", "five_minutes"]),
        "path": _PATH,
        "storage_options": _STORAGE,
        "table": _TABLE,
        "format": (
            "Kind of the source: `delta`, a folder of `parquet`, `csv` or `json` files, topics of `kafka`, or one that a plugin brings.",
            "csv",
        ),
        "options": ("Options of the source kind, by its own names.", {"header": "true"}),
        "filter": ("A Spark SQL condition; other rows are not read: neither applied nor quarantined.", "cancelled = false"),
        "changes": (
            "Versions that update or remove rows: `refuse` stops the run, `ignore` skips them, `restate` brings new revisions.",
            "ignore",
        ),
    },
    "SourceStep": {
        "columns": (
            "Columns -> Spark SQL over one row; each may use those before it, and take the place of one.",
            {"origin": "upper(origin)"},
        ),
        "lookup": (
            "Columns of another table, taken by equal values.",
            {"path": "${WAREHOUSE}/airports", "on": {"origin": "code"}, "columns": ["region"]},
        ),
        "filter": ("A Spark SQL condition; the steps behind it, and windows, see the rows for which it is true.", "delay is not null"),
    },
    "Lookup": {
        "path": ("Folder or URI of the table, or of the folder of Parquet files.", "${WAREHOUSE}/airports"),
        "storage_options": _STORAGE,
        "table": ("Name of a Delta table of Spark's catalog, in place of `path`.", "lake.ref.airports"),
        "name": ("Its name for messages and commands; the last part of path or table unless given.", "origins"),
        "format": ("`delta`, or `parquet` for a folder of files.", "parquet"),
        "on": ("Columns of the rows, or fields of structs -> columns of the table; rows match if all are equal.", {"origin": "code"}),
        "columns": ("Columns to take; or new names -> columns of the table.", {"region": "region_name"}),
        "valid_from": (
            "Column of the table with the time from which a row is valid; the row valid at the event's time counts.",
            "since",
        ),
        "missing": ("What becomes of a row without a match: null columns (`keep`), or the quarantine, as `no_match`.", "quarantine"),
    },
    "Dedup": {
        "by": (
            "Columns, or fields of structs: a row is a duplicate of an earlier one if all are equal. Rows with a null among them stay.",
            ["event_id"],
        ),
        "within": (
            "How long behind the watermark a row is remembered; by default `disorder`, `lateness` and the longest window together.",
            "1 hour",
        ),
    },
    "Sink": {
        "path": _PATH,
        "storage_options": _STORAGE,
        "table": _TABLE,
        "current": (
            "Folder of a second Delta table, with one row for each key and window: the newest; its storage options are those of the sink.",
            "${WAREHOUSE}/flight_delays_now",
        ),
    },
    "Table": {"path": _PATH, "storage_options": _STORAGE, "table": _TABLE},
    "Time": {
        "column": (
            "The column that says when an event happened: timestamp, date, text or integer; of results `window_end` or `window_start`.",
            "departed_at",
        ),
        "end": ("Column of an event's end, if events last from `column` until then.", "arrived_at"),
        "unit": ("What an integer column counts since 1970; `none`: an axis that is no time.", "ms"),
        "axis": ("Numbers of `unit` are instants; unless given, they are where a length of the spec has a unit of time.", "instants"),
        "tie_break": ("Columns that order equal times of a key.", ["flight_id"]),
        "disorder": ("The watermark trails the latest event time by this much.", "30 minutes"),
        "lateness": ("Behind the watermark a row still counts this long.", "6 hours"),
        "max_future_skew": ("A row later than this after the run's own time is quarantined; null: no limit.", "1 hour"),
        "watermark": ("`data_interval_end`: the scheduler asserts that the data interval is complete.", "data_interval_end"),
    },
    "Tumbling": {
        **_EVERY_WINDOW,
        "size": ("Length of a window; either this or `evict`.", "1 hour"),
        "evict": ("Policy that flushes the window, in place of a size.", {"count": 100}),
        "origin": _ORIGIN,
        "timezone": _TIMEZONE,
        "idle_after": _IDLE,
    },
    "Hopping": {
        **_EVERY_WINDOW,
        "size": ("Length of a window.", "24 hours"),
        "hop": ("Distance of the starts of two windows; beyond `size`, events between two belong to none.", "30 minutes"),
        "origin": _ORIGIN,
        "timezone": _TIMEZONE,
    },
    "Cumulative": {
        **_EVERY_WINDOW,
        "size": ("Length of the longest window.", "1 day"),
        "step": ("Windows of step, 2·step … size share their start.", "1 hour"),
        "origin": _ORIGIN,
        "timezone": _TIMEZONE,
    },
    "Sliding": {
        **_EVERY_WINDOW,
        "evict": ("When tuples leave the window.", {"time": "10 minutes"}),
        "trigger": ("When the window is evaluated; with every tuple unless given.", {"count": 10}),
        "partial": ("Whether a window that has not been full yet gives rows.", False),
        "origin": _ORIGIN,
        "idle_after": _IDLE,
    },
    "Session": {
        **_EVERY_WINDOW,
        "gap": ("Events at most this far apart share a window.", "30 minutes"),
        "max_size": ("A session that lasts longer is cut.", "12 hours"),
    },
    "Snapshot": {**_EVERY_WINDOW},
    "Count": {**_EVERY_WINDOW, "count": ("A window spans this many different event times.", 10)},
    "Custom": {**_EVERY_WINDOW, "function": ("`module:name` of the function that begins and ends windows.", "shop_windows:by_shift")},
    "Policy": {
        "count": ("Number of tuples.", 100),
        "time": ("Length of event time.", "10 minutes"),
        "delta": ("Difference of a column's values.", {"column": "odometer_km", "by": 5}),
        "punctuation": ("Condition of the tuple that closes the window (tumbling only).", "kind = 'end of shift'"),
    },
    "Delta": {"column": ("A column of numbers or instants.", "odometer_km"), "by": ("The difference above which the policy acts.", 5)},
    "Expectation": {
        "type": (
            "Name of the rule, as Great Expectations has it; its arguments are further fields.",
            "expect_column_values_to_be_between",
        ),
        "severity": ("`critical` holds the batch, `warning` publishes and flags, `info` records.", "warning"),
    },
    "QuarantineLimits": {
        "warn": ("Share above which the batch has a warning; `never`: none has.", "1 %"),
        "hold": ("Share above which the batch is held; `never`: none is.", "10 %"),
    },
    "SavepointPolicy": {
        "every": ("Time after which maintenance makes the next savepoint.", "7 days"),
        "keep": ("Number of savepoints of maintenance that stay; older ones are dropped.", 4),
    },
    "AirflowSettings": {
        "catchup": ("Whether each interval since `start_date` gets a run of its own.", True),
        "start_date": ("Start of the first data interval; UTC where no zone is named.", "2024-01-01"),
        "retries": ("How often a failed task is tried again, where that may help; 3 unless given.", 2),
        "owner": ("Owner of the tasks.", "data"),
        "tags": ("Tags of the DAGs, in addition to `windowmill`.", ["delays"]),
        "on_failure": (
            "`module:name` of a function, or a notifier, that is called with the context of a task that has failed.",
            "shop_alerts:failed",
        ),
        "on_warning": ("The same for a task that has committed a batch with warnings.", "shop_alerts:warned"),
    },
    "AssetSchedule": {"asset": ("Name of the Airflow asset whose updates start a run.", "flights")},
}


def described_schema() -> dict[str, Any]:
    """The JSON schema of a spec, with a description and an example of each field of windowmill's own."""
    schema = Pipeline.model_json_schema()
    for name, described in {"Pipeline": schema, **schema["$defs"]}.items():
        for field, settings in described.get("properties", {}).items():
            text, example = GUIDE.get(name, {}).get(field, (None, None))
            if text is not None:
                settings["description"] = text
            if example is not None:
                settings["examples"] = [example]
    # Files bring rules before the model sees them (specfile).
    suite = {"type": "object", "properties": {"suite": {"type": "string"}}, "required": ["suite"], "additionalProperties": False}
    rules = schema["properties"]["expectations"]
    severity = {"enum": ["critical", "warning", "info"]}
    fresh = {"type": "object", "properties": {"freshness": {"type": "string"}, "severity": severity}, "required": ["freshness"]}
    rules["items"] = {"anyOf": [rules["items"], suite, fresh | {"additionalProperties": False}]}
    return schema
