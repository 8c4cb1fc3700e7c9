"""What publishing says of commits that did not land."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import sink
from windowing.errors import SinkError

ROWS = pa.table({"window": ["w"], "n": [1]})
COMMIT = {"app_id": "app/sink", "metadata": "{}", "replaces": None, "instants": True}


@pytest.mark.parametrize("batch", [0, 1])
def test_a_commit_that_did_not_land_stops_the_batch(tmp_path, monkeypatch, batch):
    path = str(tmp_path)
    write_deltalake(path, ROWS)
    if batch:
        sink.publish(ROWS, 1, path, batch=batch - 1, **COMMIT)
    monkeypatch.setattr(sink, "append_once", lambda *arguments, **options: None)
    with pytest.raises(SinkError, match=f"batch {batch} did not land"):
        sink.publish(ROWS, 1, path, batch=batch, **COMMIT)


def test_a_batch_that_comes_again_is_published_once(tmp_path):
    path = str(tmp_path)
    write_deltalake(path, ROWS)
    assert [sink.publish(ROWS, 1, path, batch=0, **COMMIT) for _ in range(2)] == [1, 1]
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2
