"""State and its upkeep: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "state-that-did-not-land-passes",
        "checkpoints/state/base.py",
        "        if version is None:\n            raise StateError(",
        "        if version is None:\n            return 0\n            raise StateError(",
        ("tests/checkpoints/test_partial_table.py::test_rows_of_a_batch_are_asked_for_once_they_are_written",),
    ),
    Mutant(
        "row-checksum-not-verified",
        "windowing/columnar/checksums.py",
        "        if pc.any(wrong).as_py():",
        "        if False:",
        (
            "tests/windowing/test_checksums.py::test_rows_that_differ_from_what_was_written_are_refused",
            "tests/checkpoints/test_opening.py::test_a_row_that_is_another_is_damage_however_it_is_read",
        ),
    ),
    Mutant(
        "rows-without-checksums-accepted",
        "windowing/columnar/checksums.py",
        "            wrong = pc.or_(wrong, pc.and_(stored.is_null(), pc.fill_null(late, True)))\n",
        "",
        ("tests/windowing/test_checksums.py::test_rows_that_differ_from_what_was_written_are_refused",),
    ),
    Mutant(
        "restored-rows-not-verified",
        "checkpoints/state/partials.py",
        "        self._check.verify(rows)\n",
        "",
        ("tests/checkpoints/test_opening.py::test_a_row_that_is_another_is_damage_however_it_is_read",),
    ),
    Mutant(
        "newer-format-accepted",
        "checkpoints/formats.py",
        "    if not 1 <= found <= FORMATS[kind]:",
        "    if False:",
        ("tests/checkpoints/test_opening.py::test_a_newer_format_is_refused",),
    ),
    Mutant(
        "missing-state-column-null",
        "checkpoints/reading.py",
        (
            "        require_columns(uri, [*stored, SUM], schema.names)\n"
            "        rows = parquet.read(columns=[name for name in schema.names if name in stored], use_threads=False)\n"
        ),
        (
            "        rows = parquet.read(columns=[name for name in schema.names if name in stored], use_threads=False)\n"
            "        for field in schema:\n"
            "            if field.name not in stored and field.name != SUM:\n"
            "                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))\n"
        ),
        ("tests/checkpoints/test_opening.py::test_a_missing_column_is_damage",),
    ),
    Mutant(
        "missing-columns-accepted",
        "checkpoints/reading.py",
        "    if missing:\n",
        "    if False:\n",
        ("tests/checkpoints/test_opening.py::test_a_missing_column_is_damage",),
    ),
    Mutant(
        "state-that-is-gone-started-empty",
        "checkpoints/opening.py",
        "            if left_at is None:\n                return RowCheck(path)\n",
        "            if True:\n                return RowCheck(path)\n",
        ("tests/checkpoints/test_opening.py::test_no_table_is_a_pipelines_first_or_a_loss",),
    ),
    Mutant(
        "older-state-accepted",
        "checkpoints/opening.py",
        "if left_at is not None and version < left_at:",
        "if False:",
        ("tests/checkpoints/test_opening.py::test_an_older_table_is_a_loss",),
    ),
    Mutant(
        "damaged-log-accepted",
        "checkpoints/opening.py",
        "        if fault is not None:\n            raise",
        "        if False:\n            raise",
        ("tests/checkpoints/test_opening.py::test_a_last_entry_cut_anywhere_is_damage",),
    ),
    Mutant(
        "rows-of-a-dead-attempt-restored",
        "checkpoints/state/wanted.py",
        "(pc.field(BATCH) < before_batch) & within.expression",
        "(pc.field(BATCH) <= before_batch) & within.expression",
        ("tests/checkpoints/test_opening.py::test_rows_come_back_without_their_checksums",),
    ),
    Mutant(
        "compaction-over-what-came-since",
        "checkpoints/formats.py",
        ", max_commit_retries=0)",
        ")",
        ("tests/checkpoints/test_partial_table.py::test_rows_that_another_attempt_appends_meanwhile_are_not_lost",),
    ),
    Mutant(
        "files-of-others-vacuumed",
        "checkpoints/upkeep.py",
        "        every = not _are_of_others(leftovers, path)\n",
        "",
        ("tests/checkpoints/test_upkeep.py::test_what_others_keep_in_the_folder_of_a_table_stays",),
    ),
    Mutant(
        "kept-table-is-not-compared-with-its-log",
        "checkpoints/kept_tables.py",
        "if self._table is None or seen[0] is None or seen != self._seen:",
        "if self._table is None:",
        (
            "tests/checkpoints/test_kept_tables.py::test_a_table_that_was_made_anew_is_another",
            "tests/checkpoints/test_kept_tables.py::test_an_older_copy_put_back_is_seen",
        ),
    ),
    Mutant(
        "kept-table-stays-at-its-version",
        "checkpoints/kept_tables.py",
        "        elif later is not None:\n",
        "        elif False:\n",
        ("tests/checkpoints/test_kept_tables.py::test_what_others_append_is_seen",),
    ),
    Mutant(
        "s3-without-mutual-exclusion",
        "checkpoints/commit_stores.py",
        "if scheme not in _CONDITIONAL:",
        "if scheme not in _CONDITIONAL + _S3:",
        ("tests/checkpoints/test_commit_stores.py::test_s3_is_refused",),
    ),
    Mutant(
        "waiting-tuples-applied-twice",
        "windowing/columnar/position_reads.py",
        " >= through[codes[waiting]]]",
        " > BEFORE]",
        ("tests/windowing/test_positions.py::test_results_are_the_same_to_the_bit_however_rows_are_cut",),
    ),
    Mutant(
        "leaves-that-leave-alone-not-restored",
        "windowing/columnar/position_reads.py",
        "place < applied if self.by_count",
        "place < applied // 2 if self.by_count",
        ("tests/windowing/test_positions.py::test_a_batch_reads_the_leaves_that_it_may_evict_and_few_nodes",),
    ),
    Mutant(
        "missing-nodes-pass",
        "windowing/columnar/position_nodes.py",
        "    if missing:\n",
        "    if False:\n",
        ("tests/windowing/test_positions.py::test_a_node_that_is_gone_is_told",),
    ),
    Mutant(
        "restored-positions-not-verified",
        "windowing/columnar/position_batch.py",
        "        stage.check.verify(stored)\n",
        "        pass\n",
        ("tests/windowing/test_positions.py::test_a_row_that_is_another_is_told",),
    ),
    Mutant(
        "compaction-drops-rows-of-other-parts",
        "checkpoints/state/joint.py",
        '            kept.append(f"SELECT {names} FROM {rows} AND {still}")\n',
        "            pass\n",
        ("tests/jobs/test_mixed_batches.py::test_compaction_keeps_the_rows_of_other_parts",),
    ),
    Mutant(
        "rows-over-positions-taken-for-live-rows",
        "checkpoints/state/joint.py",
        'if way == "live rows" and "positions" in ways else ""',
        'if False else ""',
        ("tests/jobs/test_mixed_batches.py::test_compaction_keeps_the_rows_of_other_parts",),
    ),
    Mutant(
        "spans-dropped-beside-other-parts",
        "checkpoints/state/joint.py",
        'if way == "slices" and spans:\n        return',
        "if False:\n        return",
        ("tests/jobs/test_mixed_batches.py::test_spans_are_kept_and_found_beside_the_rows_of_other_parts",),
    ),
    Mutant(
        "spans-of-keys-dropped-with-their-slices",
        "checkpoints/state/partials.py",
        'return Needed(f"{self.sql} OR {other.sql}", {**self.low, **other.low}, superseded)',
        "return Needed(self.sql, self.low, superseded)",
        ("tests/checkpoints/test_partial_table.py::test_of_a_keys_spans_the_latest_committed_row_stays",),
    ),
    Mutant(
        "spans-superseded-by-an-unfinished-batch",
        "checkpoints/state/partials.py",
        'settled = f"{span} AND {BATCH} < {before_batch}"',
        "settled = span",
        ("tests/checkpoints/test_partial_table.py::test_of_a_keys_spans_the_latest_committed_row_stays",),
    ),
    Mutant(
        "missing-spans-accepted",
        "windowing/columnar/known_spans.py",
        "            if past.any():\n",
        "            if False:\n",
        ("tests/jobs/test_empty_batches.py::test_spans_that_are_gone_are_damage",),
    ),
    Mutant(
        "spans-not-read-in-a-batch-that-completes-nothing",
        "jobs/ways/slice_stages.py",
        "if known and self.batch.restores else slices",
        "if known and self.batch.restores and slices is not None else slices",
        ("tests/jobs/test_empty_batches.py::test_an_idle_key_gets_its_empty_windows_with_its_next_event",),
    ),
    Mutant(
        "spans-of-idle-keys-not-read",
        "windowing/columnar/known_spans.py",
        "        needed[of_touched] = True\n",
        "",
        ("tests/jobs/test_empty_batches.py::test_an_idle_key_gets_its_empty_windows_with_its_next_event",),
    ),
    Mutant(
        "empty-windows-before-a-range-shown",
        "windowing/columnar/slice_windows.py",
        "before = merged.spans if stage.goes_on else None",
        "before = merged.spans",
        ("tests/jobs/test_empty_batches.py::test_a_backfill_shows_the_empty_windows_of_its_range_alone",),
    ),
    Mutant(
        "spans-of-the-latest-late-row-stored",
        "windowing/columnar/known_spans.py",
        "        least[:, ::2] = np.maximum.reduceat(before[:, ::2], begins)\n",
        "        least[:, ::2] = np.minimum.reduceat(before[:, ::2], begins)\n",
        ("tests/jobs/test_empty_batches.py::test_late_rows_of_one_batch_are_stored_with_the_span_before_the_first_of_them",),
    ),
    Mutant(
        "revisions-of-empty-windows-counted-from-zero",
        "windowing/kernels/slice_revisions.py",
        "n_late + (1 if shown or between else 0)",
        "n_late + (1 if shown else 0)",
        ("tests/jobs/test_empty_batches.py::test_a_window_that_was_shown_empty_is_revised",),
    ),
    Mutant(
        "empty-windows-shown-after-their-first-late-row",
        "windowing/columnar/slice_windows.py",
        "        empty &= ~pairs_among(key, every, versions.key[begun], of[begun])\n",
        "",
        ("tests/jobs/test_empty_batches.py::test_a_window_that_was_shown_empty_is_revised",),
    ),
)
