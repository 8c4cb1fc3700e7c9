"""A spec is read as written, and refused with the field's path, the value, what was expected and what to do."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windowmill.windowing.axis import DAY_US, Duration
from windowmill.windowing.errors import SpecError
from windowmill.windowing.fields import Table
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline, parse_yaml

MINIMAL = """\
pipeline: p
source: {path: "${WAREHOUSE}/in"}
keys: [k]
time: {column: t, disorder: 5 minutes}
windows:
  - {name: w, type: hopping, size: 1 hour 30 minutes, hop: PT30M}
aggregates:
  n: {count: "*"}
  worst: {arg_max: [delay, id], where: delay > 0}
sink: {path: /out}
"""


def load(tmp_path, text, **environment):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return load_pipeline(path, {"WAREHOUSE": "/data"} | environment)


def test_a_spec_as_written(tmp_path):
    pipeline = load(tmp_path, MINIMAL)
    assert pipeline.source.path == "/data/in"
    assert pipeline.windows[0].size == Duration(ticks=5_400_000_000)
    assert pipeline.windows[0].hop.elapsed() == 1_800_000_000
    assert pipeline.aggregates["worst"].columns == ("delay", "id")
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline


@pytest.mark.parametrize("sink", ["{path: ${WAREHOUSE}/out}", "{path: '${WAREHOUSE}/out'}", "\n  path: ${WAREHOUSE}/out  # or a ${TABLE}"])
def test_a_variable_stands_wherever_a_text_does(tmp_path, sink):
    pipeline = load(tmp_path, MINIMAL.replace("{path: /out}", sink).replace("keys: [k]", "keys: [${KEY}, $${KEY}]"), KEY="k")
    assert (pipeline.sink.path, pipeline.keys) == ("/data/out", ("k", "${KEY}"))


def test_a_variable_that_is_missing_is_told_once_with_its_line(tmp_path):
    with pytest.raises(SpecError) as raised:
        load(tmp_path, MINIMAL.replace("${WAREHOUSE}", "${DATA}/${DATA}").replace("/out", "${DATA}/${OUT}"))
    first, second = str(raised.value).splitlines()
    assert first.endswith("p.yaml:2: source.path: the environment variable DATA is not set; export DATA=…, then run again")
    assert second.endswith("p.yaml:10: sink.path: the environment variable OUT is not set; export OUT=…, then run again")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "hop: PT30M",
            "hopp: PT30M",
            r"p.yaml:6: windows.0.hop: missing; add this field\n.*windows.0.hopp: unknown field; did you mean 'hop'\?",
        ),
        ("PT30M", "30 minuts", r"p.yaml:6: windows.0.hop: got '30 minuts'; expected a duration such as"),
        ("PT30M", "0 seconds", r"windows.0.hop: got '0 seconds'; expected a duration longer than zero"),
        ("PT30M", "30", r"windows.0.hop: got 30; expected a duration with a unit"),
        ("type: hopping", "type: hoping", r"p.yaml:6: windows.0.type: got 'hoping'; expected one of 'tumbling', 'hopping'"),
        ("keys:", "keyz:", r"p.yaml:3: keyz: unknown field; did you mean 'keys'\?"),
        ("keys: [k]", "keys: [window]", r"keys: 'window' is taken by a column of windowmill's own"),
        ("n: {count", "k: {count", r"aggregates.k: the name is taken by a key"),
        ("arg_max:", "argmax:", r"p.yaml:9: aggregates.worst: unknown aggregate 'argmax'; did you mean 'arg_max'\?"),
        ("[delay, id]", "delay", r"aggregates.worst.arg_max: got 'delay'; expected two columns"),
        ("pipeline: p", "pipeline: P-1", r"p.yaml:1: pipeline: got 'P-1'; expected text matching"),
        ("${WAREHOUSE}", "${NOWHERE}", r"p.yaml:2: source.path: the environment variable NOWHERE is not set; export NOWHERE=…"),
        ("keys: [k]", "keys: &a [k]\nx: *a", r"aliases are not read"),
        ("keys: [k]", "keys: [k]\nkeys: [k]", r"p.yaml:4: .*the field 'keys' is given twice"),
        ("keys: [k]", "keys: [k", r"not readable as YAML"),
        ("sink: {path: /out}", "sink: {path: /out, table: x}", r"sink: got both; expected either path or table"),
        ("sink: {path: /out}", "emit: twice", r"emit: got 'twice'; expected one of 'final' or 'revise'"),
        ("sink: {path: /out}", "expectations: [{type: nonsense}]", r"expectations.0.type: got 'nonsense'"),
        ("hop: PT30M", "hop: PT30M, timezone: Mars/Base", r"windows.0.timezone: got 'Mars/Base'; expected a time zone"),
        ("hop: PT30M", "hop: PT30M, origin: 5", r"windows.0.origin: got 5; expected an instant"),
        ("disorder: 5 minutes", "arrival: row", r"p.yaml:\d+: time.arrival: unknown field; known here are column, .* disorder, lateness"),
        ("disorder: 5 minutes", "disorder: 1 month", r"time.disorder: got 1 month; expected a fixed length"),
        (
            "type: hopping, size: 1 hour 30 minutes, hop: PT30M",
            "type: session, gap: 1 month",
            r"windows.0.gap: got '1 month'; expected a fixed",
        ),
        ("size: 1 hour 30 minutes, hop: PT30M", "size: 1 hour, hop: 1 hour, idle_after: 1 day", r"windows.0.idle_after: unknown field"),
        (
            "type: hopping, size: 1 hour 30 minutes, hop: PT30M",
            "type: sliding, evict: {delta: {column: delay, by: -1}}",
            r"windows.0.evict.delta.by: got -1",
        ),
        (
            "type: hopping, size: 1 hour 30 minutes, hop: PT30M",
            "type: sliding, evict: {time: 1 month}, trigger: {time: 1 month}",
            r"evict.time: got 1 month; expected an age of fixed length, such as 30 days",
        ),
        ("keys: [k]", "keys: !!python/object/apply:os.system [x]", r"not readable as YAML"),
    ],
)
def test_each_problem_is_one_line_that_says_where_what_and_what_next(tmp_path, old, new, message):
    assert old in MINIMAL
    with pytest.raises(SpecError, match=f"(?s){message}") as caught:
        load(tmp_path, MINIMAL.replace(old, new, 1))
    assert caught.value.exit_code == 2
    assert all(line.startswith(str(tmp_path)) for line in str(caught.value).splitlines())


def test_a_pipeline_whose_tables_are_not_opened_needs_no_value_of_their_variables(tmp_path):
    fields = parse_yaml(MINIMAL)[0] | {"source": {"path": "${NOWHERE}/in", "table": None}, "sink": {"table": "${CATALOG}.shop.out"}}
    with pytest.raises(SpecError, match=r"source.path: the environment variable NOWHERE is not set"):
        parse_pipeline(fields, environment={})
    assert parse_pipeline(fields, environment={}, opens_tables=False).source.path == "NOWHERE/in"
    with pytest.raises(SpecError, match=r"keys.0: the environment variable KEY is not set"):
        parse_pipeline(fields | {"keys": ["${KEY}"]}, environment={}, opens_tables=False)


def test_a_path_in_python_holds_no_variable():
    with pytest.raises(ValidationError, match="holds a variable, which a spec's file and mappings may name; give its value here"):
        Table(path="${WAREHOUSE}/flights")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("own", None),
        ("{}", None),
        ("{catchup: true, start_date: 2024-01-01, retries: 0, owner: data, tags: [a, b], on_failure: 'a.b:c', on_warning: 'a:B.c'}", None),
        ("{start_date: 2024-01-01T06:00:00+02:00}", None),
        ("other", "airflow: got 'other'; expected one of 'own'"),
        ("[own]", "airflow: got ['own']; expected fields"),
        ("{catchup: true}", "airflow: start_date: missing; with catchup: true it says where the runs begin"),
        ("{start_date: soon}", "airflow.start_date: got 'soon'; expected an instant"),
        ("{start_date: 20240101}", "airflow.start_date: got 20240101; expected an instant"),
        ("{retries: -1}", "airflow.retries: got -1; expected a number from 0"),
        ("{retries: true}", "airflow.retries: got true; expected a whole number"),
        ("{tags: delays}", "airflow.tags: got 'delays'; expected a list"),
        ("{owner: ''}", "airflow.owner: got ''; expected at least 1 character"),
        ("{on_failure: alerts}", "airflow.on_failure: got 'alerts'; expected text matching"),
        ("{on_warnings: 'a:b'}", "airflow.on_warnings: unknown field; did you mean 'on_warning'?"),
    ],
)
def test_a_spec_has_settings_of_its_dags_which_change_no_meaning(tmp_path, written, problem):
    text = f"{MINIMAL}airflow: {written}\n"
    if problem is not None:
        with pytest.raises(SpecError) as refused:
            load(tmp_path, text)
        assert problem in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
        return
    pipeline = load(tmp_path, text)
    assert pipeline.meaning() == load(tmp_path, MINIMAL).meaning()
    assert pipeline.means(load(tmp_path, MINIMAL).shown_meaning(), load(tmp_path, MINIMAL).meaning_hash())
    again = parse_pipeline(json.loads(json.dumps(pipeline.model_dump(mode="json", exclude_unset=True))))
    assert again.airflow == pipeline.airflow


def test_a_file_that_is_not_there_or_too_large(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        load_pipeline(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="a spec has at most"):
        load(tmp_path, "#" * (1 << 20) + "\n")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_spec_and_what_it_names_are_regular_files(tmp_path, kind):
    def make(path):
        path.parent.mkdir(exist_ok=True)
        {"pipe": os.mkfifo, "device": lambda at: at.symlink_to("/dev/zero")}[kind](path)

    make(tmp_path / "odd.yaml")
    with pytest.raises(SpecError, match=r"odd\.yaml': cannot be read \(not a regular file\); give the path of a pipeline's YAML file"):
        load_pipeline(tmp_path / "odd.yaml")
    make(tmp_path / "quality" / "odd.json")
    with pytest.raises(SpecError, match=r"suite: 'quality/odd\.json' cannot be read \(not a regular file\)"):
        with_suite(tmp_path, "{}", "quality/odd.json")


def with_suite(tmp_path, suite, named="quality/team.json"):
    (tmp_path / "quality").mkdir(exist_ok=True)
    (tmp_path / "quality" / "team.json").write_text(suite if isinstance(suite, str) else json.dumps(suite))
    rules = f"expectations:\n  - {{type: expect_table_row_count_to_be_between, min_value: 1}}\n  - suite: {named}\n"
    return load(tmp_path, MINIMAL + rules + "  - {type: expect_column_values_to_not_be_null, column: n}\n", WAREHOUSE="/w")


def test_a_suite_brings_its_rules_in_its_place(tmp_path):
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 1}, "severity": "warning", "id": "x"}
    null = {"type": "expect_column_values_to_be_null", "kwargs": {"column": "k", "mostly": 0.5}, "meta": {"why": "theirs"}}
    rules = with_suite(tmp_path, {"name": "team", "expectations": [between, null]}).expectations
    assert [(rule.type, rule.severity, rule.arguments) for rule in rules] == [
        ("expect_table_row_count_to_be_between", "critical", {"min_value": 1}),
        ("expect_column_values_to_be_between", "warning", {"column": "n", "min_value": 1}),
        ("expect_column_values_to_be_null", "critical", {"column": "k", "mostly": 0.5}),
        ("expect_column_values_to_not_be_null", "critical", {"column": "n"}),
    ]


@pytest.mark.parametrize(
    ("suite", "named", "message"),
    [
        ("{}", "quality/none.json", "expectations.1.suite: 'quality/none.json' cannot be read (No such file or directory); give a path"),
        ("[" * 200_000, "quality/team.json", "expectations.1.suite: 'quality/team.json' is no JSON ("),
        ("{" + " " * (1 << 20) + "}", "quality/team.json", "cannot be read (more than 1048576 bytes)"),
        ("{", "quality/team.json", "expectations.1.suite: 'quality/team.json' is no JSON ("),
        ("[]", "quality/team.json", "expectations.1.suite: 'quality/team.json' has no list 'expectations'; give the JSON file of a"),
        ("{}", "[a]", "expectations.1.suite: got ['a']; expected the path of a suite's JSON file"),
        (
            "{}",
            "a.json\n    severity: warning",
            "expectations.1.suite: got other fields in addition to suite; the rules of a suite bring",
        ),
        (
            '{"expectations": [{"expectation_type": "x"}]}',
            "quality/team.json",
            "expectation 0: has no type (this one is of",
        ),
        ('{"expectations": [{"type": "no_rule"}]}', "quality/team.json", "expectations.1.type: got 'no_rule'; expected text matching"),
    ],
)
def test_what_is_no_suite_is_refused_at_the_line_that_names_it(tmp_path, suite, named, message):
    with pytest.raises(SpecError) as error:
        with_suite(tmp_path, suite, named)
    assert message in str(error.value)
    assert "p.yaml:13" in str(error.value)


def test_the_meaning_leaves_out_checks_and_schedule_and_paths(tmp_path):
    pipeline = load(tmp_path, MINIMAL)
    same = load(tmp_path, MINIMAL + 'schedule: "@daily"\nexpectations: [{type: expect_column_to_exist, column: n}]\n', WAREHOUSE="/other")
    assert same.meaning_hash() == pipeline.meaning_hash()
    assert load(tmp_path, MINIMAL.replace("PT30M", "PT45M")).meaning_hash() != pipeline.meaning_hash()
    filters = (parse_pipeline(pipeline.model_dump(mode="json") | {"source": {"path": "/s"} | more}) for more in ({}, {"filter": "x > 1"}))
    assert len({filtered.meaning_hash() for filtered in filters}) == 2
    assert load(tmp_path, MINIMAL.replace("PT30M", "30 minutes")).meaning_hash() == pipeline.meaning_hash()


@pytest.mark.parametrize(
    ("text", "months", "days", "ticks"),
    [
        ("90 seconds", 0, 0, 90_000_000),
        ("5 minutes", 0, 0, 300_000_000),
        ("1 hour 30 minutes", 0, 0, 5_400_000_000),
        ("1 day", 0, 1, 0),
        ("2 weeks", 0, 14, 0),
        ("1 month", 1, 0, 0),
        ("1.5 seconds", 0, 0, 1_500_000),
        ("250 ms", 0, 0, 250_000),
        ("PT5M", 0, 0, 300_000_000),
        ("P1DT0.5S", 0, 1, 500_000),
        ("P1Y2M", 14, 0, 0),
    ],
)
def test_durations(text, months, days, ticks):
    assert Duration.parse(text) == Duration(months, days, ticks)


@pytest.mark.parametrize(
    "text", ["", "5", "minutes", "5 parsecs", "PT", "P", "-5 minutes", "1.5 days", "0.0000001 seconds", None, 1.5, True]
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="expected a duration such as"):
        Duration.parse(text)


@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 2 * DAY_US))
def test_durations_read_back_as_written(months, days, ticks):
    duration = Duration(months, days, ticks)
    assert Duration.parse(str(duration)) == duration


def test_an_integer_axis_takes_plain_integers():
    spec = {
        "pipeline": "p", "time": {"column": "t", "unit": "s"}, "windows": [{"name": "w", "type": "tumbling", "size": 60}],
        "aggregates": {"n": {"count": "*"}},
    }  # fmt: skip
    assert parse_pipeline(spec).windows[0].size.ticks == 60
    with pytest.raises(SpecError, match="expected a plain integer"):
        parse_pipeline(spec | {"time": {"column": "t", "unit": "none"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 minute"}]})


def test_a_variable_is_written_in_the_fields_that_name_it():
    """Another field of the same value stays what it is, whatever the variable is next time."""
    spec = {
        "pipeline": "p",
        "source": {"path": "/in", "filter": "site = '${SITE}' and kind = 'north'"},
        "keys": ["${KEY_COLUMN}", "shop"],
        "time": {"column": "t", "disorder": "${WAIT}", "lateness": "1 hour"},
        "windows": [
            {"name": "w", "type": "hopping", "size": "${WAIT}", "hop": "1 hour"},
            {"name": "v", "type": "tumbling", "evict": {"punctuation": "k = '${SITE}'"}},
        ],
        "aggregates": {"n": {"count": "*", "where": "k = '${SITE}'"}, "m": {"count": "*", "where": "k = 'north'"}},
    }
    environment = {"WAIT": "1 hour", "SITE": "north", "KEY_COLUMN": "region"}
    pipeline = parse_pipeline(spec, environment=environment)
    shown = pipeline.shown_meaning()
    # Lengths that say when rows are late are written by their values: another one is compared with what it was.
    assert shown["time"] == {"column": "t", "disorder": "1 hour", "lateness": "1 hour"}
    assert {name: shown["windows"][0][name] for name in ("size", "hop")} == {"size": "${WAIT}", "hop": "1 hour"}
    assert shown["windows"][1]["evict"] == {"punctuation": "k = '${SITE}'"}
    assert shown["keys"] == ["${KEY_COLUMN}", "shop"]
    assert shown["filter"] == "site = '${SITE}' and kind = 'north'"
    assert [shown["aggregates"][name]["where"] for name in "nm"] == ["k = '${SITE}'", "k = 'north'"]
    assert pipeline.has_variables_of(shown, pipeline.meaning_hash())
    later = parse_pipeline(spec, environment=environment | {"WAIT": "2 hours"})
    assert later.meaning_as(shown).windows[0].hop == pipeline.windows[0].hop


def test_policies_take_no_interval_events():
    windows = [{"name": "g", "type": "tumbling", "size": 4}, {"name": "p", "type": "sliding", "evict": {"count": 3}}]
    spec = {"pipeline": "p", "time": {"column": "t", "end": "e", "unit": "none"}, "windows": windows, "aggregates": {"n": {"count": "*"}}}
    said = "windows.1: got sliding: evict count 3, trigger count 1, and time.end; .*: use a grid .* or leave time.end out"
    with pytest.raises(SpecError, match=said):
        parse_pipeline(spec)
    assert parse_pipeline(spec | {"windows": [windows[0], {"name": "s", "type": "session", "gap": 2}]})
