"""Purges: what is left of a key whose rows are gone from the source, wherever the purge fails, and how runs go on."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.dying import DiedError, arm
from tests.faults.pipelines import PIPELINES, Story, undisturbed
from tests.matrices import crossed
from tests.spark.harness import BASE, MINUTE, WINDOWS, Bench, Row, differences, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sink_views import PublishedTable
from windowmill.windowing import errors
from windowmill.windowing.axis import AXIS_BEGIN

#: The key to purge; nothing else contains these texts.
GONE = "Przybylski"
#: Results of the key break a rule, and hold each batch until it is released; another rule observes all keys.
HELD = {
    "expectations": [
        {"type": "expect_column_values_to_not_be_in_set", "column": "worst", "value_set": ["unwanted"], "severity": "critical"},
        {"type": "expect_column_distinct_values_to_contain_set", "column": "k", "value_set": ["b"], "severity": "info"},
    ]
}
#: A text of fixed length, which Spark pads as it reads it.
CHAR = pa.field("k", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(8)"})
NAMES = [name for name in PIPELINES if name not in ("vouched", "lasting")]


pytestmark = pytest.mark.local


def with_key(rows: Sequence[Row]) -> list[Row]:
    """``rows`` and, at the times of those of one key, rows of the key to purge, so that no watermark depends on it."""
    own = [row | {"k": GONE, "label": "unwanted", "id": f"{row['id']}-{GONE}"} for row in rows if row["k"] == "a"]
    return [*rows, *own]


def begun(name: str, folder: Path, *, deleted: bool = True, **changes: Any) -> Story:
    """The pipeline with the key, after two of its versions; the source has deleted it."""
    folder.mkdir()
    story = Story.of(name, folder)
    story.bench.changes |= changes
    story.versions = [*map(with_key, story.versions[:2]), story.versions[2]]
    for version in range(2):
        story.land(version)
        if changes.get("expectations"):
            with pytest.raises(errors.HeldError):
                story.run()
            story.bench.run(ruling="release")
        else:
            story.run()
    assert has_key(story.bench)
    assert any(GONE in row["row"] for row in story.bench.quarantine())
    if deleted:
        delete(story.bench)
    return story


def delete(bench: Bench) -> None:
    DeltaTable(bench.source).delete(f"k = '{GONE}'")


def purge(bench: Bench, **options: Any) -> purging.Purged:
    return purging.purge(bench.pipeline, quiet(), [{"k": GONE}], **options)


def spec_of(bench: Bench) -> str:
    path = bench.folder / "spec.json"
    path.write_text(json.dumps(bench.spec))
    return str(path)


def finish(story: Story, clean: Story | None = None) -> None:
    """What comes after the purge: the rest of the rows, and upkeep; nothing names the key any more, and all is as in ``clean``."""
    story.run()
    story.land(2)
    story.run()
    maintain(story.bench.pipeline, quiet(), now=True)
    if clean is not None:
        check_equal(story, clean)
    assert named_anywhere(story.bench) == []


def has_key(bench: Bench) -> bool:
    return any(row["k"] == GONE for row in bench.rows())


def actions(story: Story) -> list[str]:
    return [batch.action for batch in Ledger.open(story.bench.pipeline).batches()]


def check_equal(story: Story, clean: Story) -> None:
    assert differences(story.bench.rows(), clean.bench.rows()) == []
    mine, other = (Counter((row["reason"], row["row"]) for row in each.bench.quarantine()) for each in (story, clean))
    assert mine == other


def files_that_name(text: str, folder: Path) -> list[str]:
    """Files below ``folder`` that hold ``text`` in their bytes, or in the values or statistics of their columns."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                content += str(file.metadata.to_dict()).encode() + str(file.read().to_pylist()).encode()
        elif path.suffix == ".z":
            content = zlib.decompress(content)
        if text.encode() in content or text in str(path):
            found.append(str(path.relative_to(folder)))
    return found


def named_anywhere(bench: Bench) -> list[str]:
    return [path for path in files_that_name(GONE, bench.folder) if path.startswith("sink")]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_key_is_left_and_runs_go_on_as_without_it(tmp_path, prepared, name):
    clean, story = prepared.original(undisturbed, name), prepared.copy(tmp_path / "story", begun, name)
    done = purge(story.bench)
    assert (done.plan.from_version, done.plan.to_version) == (1, 2)
    assert all(done.rows[role] for role in ("sink", "state", "quarantine"))
    assert not has_key(story.bench)
    maintain(story.bench.pipeline, quiet())
    assert any(path.startswith("sink/") for path in named_anywhere(story.bench)), "old versions are kept"
    maintain(story.bench.pipeline, quiet(), now=True)
    assert named_anywhere(story.bench) == []
    finish(story, clean)
    assert actions(story) == ["run", "run", "purge", "run"]


DEATHS = [
    *("batch.before", "batch.lost", "batch.after", "sink.before", "sink.lost", "sink.after", "quality.before", "quality.lost"),
    *("quarantine.before", "quarantine.after", "state.before", "state.lost", "state.after", "held.before", "held.after"),
]


@pytest.mark.parametrize(("name", "place"), crossed(["slices", "mixed"], DEATHS))
def test_a_purge_that_dies_anywhere_is_finished_or_never_was(tmp_path, prepared, name, place):
    held = HELD if place.partition(".")[0] in ("held", "quality") else {}
    clean, story = prepared.original(undisturbed, name), prepared.copy(tmp_path / "story", begun, name, **held)
    savepoints.create(story.bench.pipeline, quiet(), "before")
    before = story.tables() if place == "batch.before" else None
    arm(place)
    try:
        purge(story.bench)
    except DiedError:
        if before is not None:
            assert story.tables() == before
            purge(story.bench)
        if place == "sink.before":  # others may rewrite the files meanwhile
            for path in (story.bench.sink, f"{story.bench.sink}.windowmill/quarantine"):
                assert DeltaTable(path).optimize.compact()["numFilesRemoved"] > 1
    else:
        assert place != "sink.before"
    finish(story, clean)
    assert actions(story).count("purge") == 1


def test_what_is_left_to_forget_is_forgotten_by_the_next_command(tmp_path, prepared, monkeypatch):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    savepoints.create(story.bench.pipeline, quiet(), "before")

    def die(_ledger: str) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr("windowmill.jobs.batch.finishing.forget_bounds", die)
        with pytest.raises(DiedError):
            purge(story.bench)
    finish(story)


def test_manifests_of_the_ledger_are_rid_of_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr("windowmill.checkpoints.ledger.MAX_FILES", 0)
    story = begun("slices", tmp_path / "story")
    manifests = "sink.windowmill/ledger.manifests/"
    assert sum(path.startswith(manifests) for path in named_anywhere(story.bench)) == 2
    purge(story.bench)
    assert not any(path.startswith(manifests) for path in named_anywhere(story.bench))
    ledger = Ledger.open(story.bench.pipeline)
    assert all(ledger.changes_of(batch)["sink"].files for batch in ledger.batches())
    finish(story)


@pytest.mark.spark
def test_batches_of_spark_are_purged_and_go_on(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    clean, story = undisturbed("mixed", tmp_path / "clean"), begun("mixed", tmp_path / "story")
    purge(story.bench)
    finish(story, clean)


def test_savepoints_held_results_pages_and_the_report_are_rid_of_the_key(tmp_path, prepared, capsys):
    story = prepared.copy(tmp_path / "story", begun, "slices", **HELD)
    spec = spec_of(story.bench)
    assert main(["report", spec]) == 0
    savepoints.create(story.bench.pipeline, quiet(), "before")
    roots = ("docs/", "held/", "quality/", "savepoints/", "report.html")
    for root in roots:
        assert any(path.startswith(f"sink.windowmill/{root}") for path in named_anywhere(story.bench)), root
    capsys.readouterr()
    assert main(["purge", spec, "--key", f"k={GONE}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["keys"], told["savepoints"], told["report_removed"]) == ("purged", 1, ["before"], True)
    assert all(told["rows"][role] for role in ("sink", "state", "quarantine", "held", "quality"))
    assert told["pages_removed"] == 2
    assert main(["maintain", spec, "--now"]) == 0
    assert named_anywhere(story.bench) == []
    assert main(["quality", spec]) == 0


def test_a_dry_run_says_what_goes_and_changes_nothing(tmp_path, prepared, capsys):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    before, spec = story.tables(), spec_of(story.bench)
    assert main(["purge", spec, "--key", f"k={GONE}", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "1 key to purge: rows " in told
    assert told.endswith("nothing has been changed\n")
    assert story.tables() == before
    assert len(Ledger.open(story.bench.pipeline).batches()) == 2
    done = purge(story.bench)
    assert f"rows {done.rows['sink']:,} of results" in told


def test_a_purge_is_refused_while_the_source_has_rows(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", begun, "slices", deleted=False)
    before = story.tables()
    with pytest.raises(
        errors.PurgeError, match=r"version 1 still has \d+ rows of what is to be purged; .*delete them there, and purge again"
    ):
        purge(story.bench)
    assert story.tables() == before


def test_changed_rows_of_other_keys_are_not_passed_over(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    DeltaTable(story.bench.source).update(updates={"v": "7.0"}, predicate="k = 'b'")
    with pytest.raises(errors.NonAppendCommitError, match="versions 2 to 3 also changed rows of other keys; `windowmill restate`"):
        purge(story.bench)
    loop.restate(story.bench.pipeline, quiet())
    done = purge(story.bench)
    assert done.plan.from_version == done.plan.to_version == 3
    assert not has_key(story.bench)
    finish(story)


@pytest.mark.parametrize("changes", ["refuse", "ignore", "restate"])
def test_unread_rows_of_the_key_are_read_before_it_is_purged(tmp_path, prepared, changes):
    clean = prepared.original(undisturbed, "slices")
    (tmp_path / "story").mkdir()
    story = Story.of("slices", tmp_path / "story")
    story.bench.changes |= {"source": {"path": story.bench.source, "changes": changes}}
    story.bench.land(with_key(story.versions[0]))
    story.run()
    story.bench.land(with_key(story.versions[1]))
    delete(story.bench)
    story.land(2)
    done = purge(story.bench)
    assert ([batch.plan.to_version for batch in done.before], done.plan.to_version) == ([1], 2)
    story.run()
    check_equal(story, clean)


def test_a_source_that_deletes_the_key_twice_takes_two_batches(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", begun, "slices")
    story.bench.land(with_key(story.versions[2]))
    delete(story.bench)
    done = purge(story.bench)
    assert actions(story) == ["run", "run", "purge", "run", "purge"]
    assert done.plan.to_version == 4
    check_equal(story, clean)


def test_files_that_are_gone_from_the_source_leave_only_ignoring(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    DeltaTable(story.bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    told = r"set source\.changes to ignore, which leaves results of other keys as they are, and purge again"
    with pytest.raises(errors.SourceRangeGoneError, match=told):
        purge(story.bench)
    story.bench.changes |= {"source": {"path": story.bench.source, "changes": "ignore"}}
    assert purge(story.bench).plan.to_version == 2
    finish(story)


def test_some_of_the_key_columns_and_whole_keys_from_a_file(tmp_path, prepared, capsys):
    story = prepared.copy(tmp_path / "story", begun, "slices", deleted=False)
    DeltaTable(story.bench.source).delete(f"(k = '{GONE}' AND site = 1) OR (k IS NULL AND site = 2)")
    keys = tmp_path / "keys.jsonl"
    keys.write_text(json.dumps({"k": GONE, "site": 1}) + "\n\n" + json.dumps({"k": None, "site": 2}) + "\n")
    before = story.bench.rows()
    assert main(["purge", spec_of(story.bench), "--keys", str(keys)]) == 0
    assert "batch 2: 2 keys purged: rows " in capsys.readouterr().out
    gone = {(GONE, 1), (None, 2)}
    left = [row for row in before if (row["k"], row["site"]) not in gone]
    assert differences(story.bench.rows(), left) == []
    assert len(left) < len(before)
    assert {(row["k"], row["site"]) for row in left} >= {(GONE, 2), (None, 1)}


def test_as_of_an_earlier_batch_there_is_the_table_without_the_key(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    purge(story.bench)
    finish(story)
    at = PublishedTable.of(story.bench.pipeline).as_of(0, None)
    assert (at.version, at.batch) == (DeltaTable(story.bench.sink).version(), 0)


def test_as_arrived_does_not_bring_the_key_back_and_an_ordinary_backfill_does_without(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    story.bench.changes["source"] = {"path": story.bench.source, "changes": "ignore"}
    purge(story.bench)
    before, ends = story.bench.rows(), [row["window_end"] for row in story.bench.rows()]
    with pytest.raises(errors.UnsupportedError, match="batch 2 has purged keys, whose rows --as-arrived would bring back"):
        loop.backfill(story.bench.pipeline, quiet(), begin=min(ends) - 1, end=max(ends), history="log")
    assert differences(story.bench.rows(), before) == []
    loop.backfill(story.bench.pipeline, quiet(), begin=min(ends) - 1, end=max(ends))
    assert not has_key(story.bench)


@pytest.mark.parametrize("changes", ["refuse", "ignore"])
def test_a_changed_spec_does_not_bring_the_key_back(tmp_path, prepared, changes):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    story.bench.changes["source"] = {"path": story.bench.source, "changes": changes}
    purge(story.bench)
    story.bench.changes |= {"windows": [{"name": "hours", "type": "tumbling", "size": "1 hour"}]}
    assert loop.apply(story.bench.pipeline, quiet(), history=AXIS_BEGIN) is not None
    found = story.bench.rows()
    assert any(row["window"] == "hours" for row in found)
    assert not any(row["k"] == GONE for row in found)
    finish(story)


def test_wrong_keys_are_refused(tmp_path, prepared, capsys):
    story = prepared.copy(tmp_path / "story", begun, "slices")
    spec, lines, null = spec_of(story.bench), tmp_path / "keys.jsonl", tmp_path / "null.jsonl"
    lines.write_text('{"k": "x"}\n{"site": 1}\n')
    null.write_text('{"k": "x"}\nnull\n')
    for wrong, told in (
        (["--key", "color=x"], "got a key of color; expected some or all of the key columns"),
        (["--key", "site=x"], "--key site=x: not of type int64"),
        (["--keys", str(lines)], "got a key of site; expected"),
        (["--keys", str(null)], "null.jsonl: line 2: expected an object of key columns"),
        (["--keys", str(tmp_path / "none.jsonl")], "none.jsonl: cannot be read"),
        (["--key", "k=a", "--key", "k=b"], "got a column twice"),
        ([], "expected --key NAME=VALUE or --keys FILE"),
    ):
        assert main(["purge", spec, *wrong]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(errors.UnsupportedError, match="has no keys"):
        purging.purge(Bench(tmp_path, {"keys": []}).pipeline, quiet(), [{"k": GONE}])
    with pytest.raises(errors.SpecError):
        purging.purge(story.bench.pipeline, quiet(), [{}])


def counted(folder: Path, kind: Any, keys: list[Any], **changes: Any) -> tuple[Bench, pa.Table]:
    """A pipeline that has counted rows with keys of this ``kind``: two of each key, and one without a time; also the rows."""
    schema = pa.schema([kind if isinstance(kind, pa.Field) else ("k", kind), ("t", pa.timestamp("us", "UTC"))])
    rows = pa.Table.from_pylist([{"k": key, "t": at} for key in keys for at in (BASE, BASE + 1_000 * MINUTE, None)], schema)
    spec = {"keys": ["k"], "time": {"column": "t"}, "windows": [WINDOWS[0]], "aggregates": {"n": {"count": "*"}}}
    bench = Bench(folder, spec | changes)
    bench.append(rows)
    bench.run()
    return bench, rows


@pytest.mark.parametrize(
    ("kind", "gone", "stays", "line"),
    [
        (pa.string(), ["a\u2028b", "a\x85b"], "x", '\ufeff{"k": "a\u2028b"}\r\n \n{"k": "a\x85b"}\r\n'),
        (pa.decimal128(30, 10), [Decimal("12345678901234567.1234567891")], Decimal("1.5"), '{"k": 12345678901234567.1234567891}'),
        (pa.float64(), [-0.0], 1.5, '{"k": 0}'),
        (pa.float64(), [0.0], 1.5, '{"k": -0.0}'),
        (pa.float64(), [float("nan")], 1.5, '{"k": NaN}'),
        (pa.binary(), [b"\x00\xff", b"\xed\xa0"], b"x", '{"k": "0x00ff"}\n{"k": "0XEDA0"}'),
        (pa.binary(), [b"plain"], b"x", '{"k": "plain"}'),
        (CHAR, ["sesame  "], "sesame!!", '{"k": "sesame"}'),
        (CHAR, ["sesame  "], "sesame!!", '{"k": "sesame  "}'),
    ],
)
def test_odd_keys_go_from_all_tables(tmp_path, kind, gone, stays, line):
    bench, rows = counted(tmp_path, kind, [*gone, stays])
    assert len(bench.quarantine()) == len(gone) + 1
    write_deltalake(bench.source, rows.slice(3 * len(gone)), mode="overwrite")
    (tmp_path / "keys.jsonl").write_text(line, encoding="utf-8")
    assert main(["purge", spec_of(bench), "--keys", str(tmp_path / "keys.jsonl")]) == 0
    assert [row["k"] for row in bench.rows()] == [stays]
    told = "eA==" if stays == b"x" else stays if isinstance(stays, str) else float(stays)
    assert [json.loads(row["row"])["k"] for row in bench.quarantine()] == [told]


@pytest.mark.parametrize("changes", ["ignore", "restate"])
@pytest.mark.parametrize(
    ("kind", "there", "wrong"),
    [
        (pa.binary(), b"\x00\xff", ["k=00ff", "k=AP8=", "k=\\x00\\xff", "k=0x00fe", "k"]),
        (pa.string(), "sesame", ["k=Sesame", "k=sesame ", "k=0x736573616d65", "k"]),
        (pa.int64(), 7, ["k=70", "k"]),
    ],
)
def test_a_key_that_names_nothing_is_refused(tmp_path, capsys, kind, there, wrong, changes):
    bench, _ = counted(tmp_path, kind, [there], source={"path": str(tmp_path / "source"), "changes": changes})
    ledger = Ledger.open(bench.pipeline).count
    for key in wrong:
        for more in ([], ["--dry-run"]):
            assert main(["purge", spec_of(bench), "--key", key, *more]) == 2
            assert "none of its tables has rows of" in capsys.readouterr().err
    assert main(["purge", spec_of(bench), "--key", "k=0xzz"]) == 2
    assert Ledger.open(bench.pipeline).count == ledger


def test_no_purge_before_the_first_batch(tmp_path):
    story = Story.of("slices", tmp_path)
    story.land(0)
    with pytest.raises(errors.OutOfTurnError, match="has committed no batch"):
        purge(story.bench)
