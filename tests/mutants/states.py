"""State and its upkeep: bugs that a fast test has to notice."""

from tests.mutants.edits import always, instead, never, without

CHECKSUMS = "tests/windowing/test_checksums.py::test_"
OPENING = "tests/checkpoints/test_opening.py::test_"
LOG_TABLE = "tests/checkpoints/test_log_table.py::test_"
PARTIAL_TABLE = "tests/checkpoints/test_partial_table.py::test_"
UPKEEP = "tests/checkpoints/test_upkeep.py::test_"
KEPT_TABLES = "tests/checkpoints/test_kept_tables.py::test_"
STORES = "tests/object_store/test_stores.py::test_"
POSITIONS = "tests/jobs/test_position_batches.py::test_"
MIXED_BATCHES = "tests/jobs/test_mixed_batches.py::test_"
EMPTY_BATCHES = "tests/jobs/test_empty_batches.py::test_"
INTERVAL_BATCHES = "tests/jobs/test_interval_batches.py::test_"
DUPLICATES = "tests/windowing/test_duplicates.py::test_"
DEDUP = "tests/jobs/test_dedup_cases.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{DUPLICATES}duplicates_are_those_of_a_search_however_commits_are_cut_into_batches": [
        ("ids-are-not-used-again", "windowing.columnar.duplicates:duplicates", always("np.abs(_ - _[first]) <= within")),
        ("rows-that-came-too-late-are-remembered", "windowing.columnar.duplicates:_walked", without("counts")),
        ("rows-of-a-commit-are-forgotten", "windowing.columnar.duplicates:_walked", without("insort(together, time)")),
    ],
    f"{DEDUP}a_copy_of_a_key_that_shares_nothing_else_counts_once_its_row_is_gone": [
        ("copies-of-changed-rows-stay-out", "jobs.batch.counted_rows:Copies.touched_with", instead("pc.or_(_1, _2)", "_2")),
    ],
    f"{DEDUP}entries_that_a_restatement_forgets_go_from_files_that_others_rewrite": [
        ("forgotten-entries-stay", "checkpoints.seen:SeenTable.replaced_by", instead("(AXIS_BEGIN, AXIS_END)", "None")),
    ],
    f"{DEDUP}a_changed_spec_finds_duplicates_of_rows_before_its_windows": [
        ("rows-before-duplicates-not-read", "jobs.batch.applying:_needed_from", without("_.pipeline.dedup is not None")),
    ],
    f"{DEDUP}entries_expire_with_the_watermark_and_are_merged": [
        ("what-is-remembered-is-not-merged", "checkpoints.seen:to_merge", always("len(_) <= FEW_FILES")),
    ],
    (f"{CHECKSUMS}rows_that_differ_from_what_was_written_are_refused", f"{OPENING}a_row_that_is_another_is_damage_however_it_is_read"): [
        ("row-checksum-not-verified", "windowing.columnar.hashes:RowCheck.verify", never("pc.any(...).as_py()")),
    ],
    f"{CHECKSUMS}rows_that_differ_from_what_was_written_are_refused": [
        (
            "rows-without-checksums-accepted",
            "windowing.columnar.hashes:RowCheck.verify",
            instead("pc.fill_null(_1, True)", "pc.fill_null(_1, False)"),
        ),
    ],
    f"{OPENING}a_row_that_is_another_is_damage_however_it_is_read": [
        ("restored-rows-not-verified", "checkpoints.state.readers:DeltaState._rows", without("self.check.verify(...)")),
    ],
    f"{LOG_TABLE}a_batch_reads_the_entries_of_keys_that_it_touches_or_that_are_due": [
        ("live-rows-of-due-keys-not-read", "checkpoints.state.tables:of_keys", instead("_1 <= _2", "_1 < _2")),
        (
            "key-due-by-its-first-entry",
            "checkpoints.state.tables:of_keys",
            instead("_1.sort_by(BATCH)", '_1.sort_by([(BATCH, "descending")])'),
        ),
    ],
    f"{LOG_TABLE}an_altered_entry_is_told": [
        ("live-rows-in-the-driver-not-verified", "checkpoints.state.readers:DeltaState.log", without("self.check.verify(...)")),
    ],
    f"{OPENING}a_newer_format_is_refused": [
        ("newer-format-accepted", "checkpoints.delta_tables:check_format", never("int(_) > FORMATS[_]")),
    ],
    f"{OPENING}a_missing_column_is_damage": [
        ("missing-state-column-null", "checkpoints.state.reading:read_file", without("require_columns(...)")),
        ("missing-columns-accepted", "checkpoints.state.reading:require_columns", without("raise StateCorruptError(...)")),
    ],
    f"{OPENING}no_table_is_a_pipelines_first_or_a_loss": [
        ("state-that-is-gone-started-empty", "checkpoints.state.reading:open_state", always("left_at is None")),
    ],
    f"{OPENING}an_older_table_is_a_loss": [
        ("older-state-accepted", "checkpoints.state.reading:open_state", never("_ is not None and _ < _")),
    ],
    f"{OPENING}a_last_entry_cut_anywhere_is_damage": [
        ("damaged-log-accepted", "checkpoints.state.reading:open_state", without("raise StateCorruptError(...)")),
    ],
    f"{OPENING}rows_come_back_without_their_checksums": [
        (
            "rows-of-a-dead-attempt-restored",
            "checkpoints.state.reading:rows_before",
            instead('ColumnComparison(BATCH, "<", _1)', 'ColumnComparison(BATCH, "<=", _1)'),
        ),
    ],
    f"{PARTIAL_TABLE}rows_that_another_attempt_appends_meanwhile_are_not_lost": [
        ("compaction-over-what-came-since", "checkpoints.delta_tables:own_commit", without("max_commit_retries=0")),
    ],
    f"{UPKEEP}what_others_keep_in_the_folder_of_a_table_stays": [
        ("files-of-others-vacuumed", "checkpoints.delta_tables:vacuum", without("_are_of_others(...)")),
    ],
    (f"{KEPT_TABLES}a_table_that_was_made_anew_is_another", f"{KEPT_TABLES}an_older_copy_put_back_is_seen"): [
        (
            "kept-table-is-not-compared-with-its-log",
            "checkpoints.delta_tables:KeptTable.newest",
            instead("_1 or _ or _ != self._seen", "_1"),
        ),
    ],
    f"{KEPT_TABLES}what_others_append_is_seen": [
        ("kept-table-stays-at-its-version", "checkpoints.delta_tables:KeptTable.newest", never("_ is not None")),
    ],
    f"{STORES}two_writers_that_win_are_refused_whichever_of_them_the_store_keeps": [
        ("two-winners-accepted", "checkpoints.protocol:_check", without("len(_) > 1")),
    ],
    f"{POSITIONS}results_are_the_same_to_the_bit_however_rows_are_cut": [
        ("waiting-tuples-applied-twice", "windowing.columnar.position_reads:StoredSequence.of", instead("_1 >= _", "_1 > BEFORE")),
    ],
    f"{POSITIONS}a_batch_reads_the_leaves_that_it_may_evict_and_few_nodes": [
        (
            "leaves-that-leave-alone-not-restored",
            "windowing.columnar.position_reads:Evictable.holds",
            instead("_1 < _2 if self.by_count else _3", "_1 < _2 // 2 if self.by_count else _3"),
        ),
    ],
    f"{POSITIONS}damaged_state_is_refused[node]": [
        ("missing-nodes-pass", "windowing.columnar.positions:_all_there", without("raise StateCorruptError(...)")),
    ],
    f"{POSITIONS}damaged_state_is_refused[row]": [
        ("restored-positions-not-verified", "windowing.columnar.position_batch:advance", without("verify_once(...)")),
    ],
    f"{MIXED_BATCHES}compaction_keeps_the_rows_of_other_parts": [
        (
            "compaction-drops-rows-of-other-parts",
            "checkpoints.state.compaction:NeededRows.kept",
            instead("np.concatenate(_1)", "next(iter(_1))"),
        ),
        ("rows-over-positions-taken-for-live-rows", "checkpoints.state.tables:own_rows", never('"positions" in _')),
    ],
    f"{MIXED_BATCHES}spans_are_kept_and_found_beside_the_rows_of_other_parts": [
        (
            "spans-dropped-beside-other-parts",
            "checkpoints.state.tables:own_rows",
            instead("Present(SLICE) | rows_of_spans(_)", "Present(SLICE)"),
        ),
    ],
    f"{PARTIAL_TABLE}of_a_keys_spans_the_latest_committed_row_stays": [
        (
            "spans-of-keys-dropped-with-their-slices",
            "checkpoints.state.compaction:NeededRows._are_needed",
            without("needed[of_spans] = _"),
        ),
        (
            "spans-superseded-by-an-unfinished-batch",
            "checkpoints.state.compaction:NeededRows._kept",
            instead("rows_before(_)", "rows_before(1 << 62)"),
        ),
    ],
    f"{EMPTY_BATCHES}spans_that_are_gone_are_damage": [
        ("missing-spans-accepted", "windowing.columnar.known_spans:Spans.check", without("raise StateCorruptError(...)")),
    ],
    f"{EMPTY_BATCHES}an_idle_key_gets_its_empty_windows_with_its_next_event": [
        (
            "spans-not-read-in-a-batch-that-completes-nothing",
            "jobs.layouts.slices:SlicePart.wanted",
            instead("_1 if _2 and self.batch.restores else _3", "_1 if _2 and self.batch.restores and _3 is not None else _3"),
        ),
        ("spans-of-idle-keys-not-read", "windowing.columnar.known_spans:StoredSpans.needed", without("_[of_touched] = True")),
    ],
    f"{EMPTY_BATCHES}a_backfill_shows_the_empty_windows_of_its_range_alone": [
        ("empty-windows-before-a-range-shown", "windowing.columnar.grid_windows:_with_empty", always("_.continues")),
    ],
    f"{INTERVAL_BATCHES}a_late_event_makes_its_key_known_from_where_it_begins": [
        (
            "keys-known-from-where-late-events-count",
            "windowing.columnar.slices:IntervalLifting.lift",
            without("np.maximum.at(...)"),
        ),
    ],
    f"{INTERVAL_BATCHES}a_late_event_does_not_lie_in_the_span_that_was_known_before_it": [
        ("late-events-known-before-they-came", "windowing.kernels.grid_ranges:known_span", instead("_[_[_1]] == _[_[_2]]", "_1 == _2")),
    ],
    f"{EMPTY_BATCHES}a_window_that_was_shown_empty_is_revised": [
        (
            "revisions-of-empty-windows-counted-from-zero",
            "windowing.kernels.slices:_list_earlier",
            instead("1 if _1 or _ else 0", "1 if _1 else 0"),
        ),
        (
            "empty-windows-shown-after-their-first-late-row",
            "windowing.columnar.grid_windows:_with_empty",
            without("_ &= ~pairs_among(...)"),
        ),
    ],
}
