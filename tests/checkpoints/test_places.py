"""Where a pipeline keeps its tables: beside its sink, on this machine or on object storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs import a_spec
from windowmill.checkpoints.places import Places, local_path
from windowmill.windowing.specfile import parse_pipeline

SPEC = a_spec(pipeline="delays", windows=[{"name": "hourly", "type": "tumbling", "size": "1 hour"}])


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/tables/delays", "/tables/delays"),
        ("tables/delays", "tables/delays"),
        ("file:///tables/delays", "/tables/delays"),
        ("file:/tables/delays", "/tables/delays"),
        ("file://localhost/tables/late%20delays/", "/tables/late delays"),
        ("s3://bucket/delays", None),
        ("abfss://container@account.dfs.core.windows.net/delays", None),
    ],
)
def test_local_path(place, path):
    assert local_path(place) == (None if path is None else Path(path))


@pytest.mark.parametrize(
    ("sink", "root"),
    [
        ("/tables/delays/", "/tables/delays.windowmill"),
        ("file:///tables/delays", "/tables/delays.windowmill"),
        ("s3://bucket/delays", "s3://bucket/delays.windowmill"),
    ],
)
def test_places_are_beside_the_sink(sink, root):
    places = Places.of(parse_pipeline(SPEC | {"sink": {"path": sink}}))
    assert (places.root, places.ledger, places.docs, places.report) == (root, f"{root}/ledger", f"{root}/docs", f"{root}/report.html")
