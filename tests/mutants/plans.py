"""What a plan pins, and what a retry takes up: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "retry-plans-anew",
        "jobs/planning.py",
        "    _verify(pipeline, ledger, accepted)\n    return plan\n",
        (
            "    _verify(pipeline, ledger, accepted)\n"
            '    return Plan(**{name: getattr(plan, name) for name in plan.__slots__} | {"to_version": source.version})\n'
        ),
        ("tests/jobs/test_plans.py::test_a_retry_takes_up_the_plan_as_it_was_pinned",),
    ),
    Mutant(
        "columns-of-a-retry-unchecked",
        "jobs/planning.py",
        "    _check_columns(pipeline, plan.source_schema, source)\n",
        "",
        ("tests/jobs/test_plans.py::test_a_column_of_another_type_is_refused_by_a_retry_and_by_the_next_batch",),
    ),
    Mutant(
        "columns-of-a-plan-unchecked",
        "jobs/planning.py",
        "        _check_columns(pipeline, ledger.newest_kept.plan.source_schema, source)\n",
        "        pass\n",
        ("tests/jobs/test_plans.py::test_a_column_of_another_type_is_refused_by_a_retry_and_by_the_next_batch",),
    ),
    Mutant(
        "columns-unchecked",
        "jobs/sources/columns.py",
        "    for field in old:\n        if field.name not in used:",
        "    for field in ():\n        if field.name not in used:",
        ("tests/jobs/test_columns.py::test_what_would_change_results_is_refused",),
    ),
    Mutant(
        "rolled-back-source-unnoticed",
        "jobs/planning.py",
        "if newest and source.version < newest.plan.to_version:",
        "if False:",
        ("tests/jobs/test_plans.py::test_a_source_that_was_rolled_back_or_exchanged_is_refused",),
    ),
    Mutant(
        "exchanged-source-unnoticed",
        "jobs/planning.py",
        "if newest and newest.plan.source_id != source.table_id:",
        "if False:",
        ("tests/jobs/test_plans.py::test_a_source_that_was_rolled_back_or_exchanged_is_refused",),
    ),
    Mutant(
        "verify-skipped-before-a-run",
        "jobs/planning.py",
        "    _verify(pipeline, ledger, accepted)\n    options =",
        "    options =",
        ("tests/jobs/test_plans.py::test_own_tables_are_verified_before_each_plan_and_each_retry",),
    ),
    Mutant(
        "verify-skipped-before-a-retry",
        "jobs/planning.py",
        "    _verify(pipeline, ledger, accepted)\n    return plan\n",
        "    return plan\n",
        ("tests/jobs/test_plans.py::test_own_tables_are_verified_before_each_plan_and_each_retry",),
    ),
    Mutant(
        "verify-skipped-before-a-backfill",
        "jobs/planning.py",
        "    _verify(pipeline, ledger, accepted)\n    before =",
        "    before =",
        ("tests/jobs/test_plans.py::test_own_tables_are_verified_before_each_plan_and_each_retry",),
    ),
    Mutant(
        "refuse-landed-removed",
        "jobs/planning.py",
        "    refuse_landed(plan, pipeline.pipeline, own_tables(pipeline))\n",
        "",
        ("tests/jobs/test_plans.py::test_a_plan_whose_number_has_landed_is_not_recorded",),
    ),
    Mutant(
        "edited-modules-accepted",
        "jobs/planning.py",
        "if ledger.newest_kept and not accepted.code:",
        "if False:",
        ("tests/jobs/test_plans.py::test_an_edited_module_is_refused_unless_it_is_accepted",),
    ),
    Mutant(
        "interval-vouches-for-every-part",
        "jobs/planning.py",
        "vouched if reach.through == source.version else None",
        "vouched",
        ("tests/jobs/test_plans.py::test_only_the_last_part_of_a_backlog_is_vouched_for",),
    ),
    Mutant(
        "generation-left-out-of-app-id",
        "jobs/planning.py",
        'app=f"windowmill/{ledger.generation}"',
        'app="windowmill"',
        ("tests/jobs/test_plans.py::test_transactions_are_named_by_the_ledger_and_not_by_the_pipeline",),
    ),
    Mutant(
        "app-id-of-the-pipelines-name",
        "checkpoints/batches.py",
        'return self.legacy_app_id(pipeline, role) if self.app is None else f"{self.app}/{role}"',
        "return self.legacy_app_id(pipeline, role)",
        (
            "tests/simulator/test_simulator.py::test_a_renamed_pipeline_goes_on",
            "tests/jobs/test_plans.py::test_transactions_are_named_by_the_ledger_and_not_by_the_pipeline",
        ),
    ),
    Mutant(
        "generation-left-out-of-older-app-id",
        "checkpoints/batches.py",
        'return f"windowmill/{pipeline}/{self.generation}/{role}"',
        'return f"windowmill/{pipeline}/{role}"',
        ("tests/jobs/test_plans.py::test_transactions_are_named_by_the_ledger_and_not_by_the_pipeline",),
    ),
    Mutant(
        "generation-of-each-question",
        "checkpoints/ledger.py",
        "if self._batches else self._new_generation",
        "if self._batches else uuid.uuid4().hex[:12]",
        ("tests/jobs/test_plans.py::test_transactions_are_named_by_the_ledger_and_not_by_the_pipeline",),
    ),
    Mutant(
        "meaning-not-compared",
        "checkpoints/ledger.py",
        "if last is None or last.plan.meaning == pipeline.meaning_hash():",
        "if True:",
        ("tests/checkpoints/test_ledger.py::test_a_changed_meaning_is_refused_and_changed_expectations_are_not",),
    ),
    Mutant(
        "legacy-transactions-forgotten",
        "checkpoints/protocol.py",
        "for app in {plan.app_id(pipeline, role), plan.legacy_app_id(pipeline, role)}:",
        "for app in {plan.app_id(pipeline, role)}:",
        ("tests/jobs/test_plans.py::test_a_plan_whose_number_has_landed_is_not_recorded",),
    ),
    Mutant(
        "progress-forgotten",
        "jobs/planning.py",
        "emitted=outcome.emitted if outcome else None",
        "emitted=None",
        ("tests/jobs/test_plans.py::test_a_plan_goes_on_from_what_the_last_batch_left",),
    ),
    Mutant(
        "backfill-judges-by-the-newest-event",
        "jobs/planning.py",
        "        seen=None,\n",
        "",
        ("tests/jobs/test_plans.py::test_a_backfill_reads_no_further_than_the_schedule_has_come",),
    ),
    Mutant(
        "backfill-beside-an-open-batch",
        "jobs/planning.py",
        "            return _reused(pipeline, ledger, _source(pipeline, ledger), arrival, accepted)\n        raise LedgerError(",
        (
            "            return _reused(pipeline, ledger, _source(pipeline, ledger), arrival, accepted)\n"
            "        return plan\n"
            "        raise LedgerError("
        ),
        ("tests/jobs/test_plans.py::test_a_backfill_waits_for_the_batch_that_is_open",),
    ),
    Mutant(
        "later-interval-of-open-windows",
        "jobs/planning.py",
        "else (emitted, vouched - lateness)",
        "else (emitted, vouched)",
        ("tests/jobs/test_planning.py::test_a_later_interval_without_new_rows_moves_on_what_ends_by_then",),
    ),
    Mutant(
        "time-zones-uncompared",
        "jobs/planning.py",
        "        code.check_zones(pipeline, ledger.newest_kept.plan)\n",
        "",
        ("tests/jobs/test_abandoned_plans.py::test_time_zones_are_compared_with_those_of_the_newest_plan",),
    ),
    Mutant(
        "time-zones-without-their-past",
        "jobs/code.py",
        "    for begin in range(0, through, _WEEK_SECONDS):",
        "    for begin in ():",
        ("tests/jobs/test_code.py::test_rules_that_changed_after_the_batch_make_no_difference",),
    ),
)
