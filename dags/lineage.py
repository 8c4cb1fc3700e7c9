"""Lineage of a pipeline's tasks for OpenLineage: tables, columns and where they come from, rows, and the outcomes of rules.

Only the OpenLineage provider calls this, where it is installed and configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, local_path
from windowmill.checkpoints.stores import is_table, located, table_at
from windowmill.dags.specs import identity_of
from windowmill.jobs.conditions.truths import columns_of, read_by
from windowmill.jobs.report.quality import read_quality
from windowmill.windowing.fields import LookupStep, Table
from windowmill.windowing.spec import Pipeline

#: Namespace of tables that a catalog names.
CATALOG = "spark_catalog"


@attr.define
class WindowmillBatchesRunFacet(RunFacet):
    """The batches of a run: number, action, verdict and counts of rows, as ``windowmill run --json`` has them."""

    batches: list[dict[str, Any]]


def lineage_of(pipeline: Pipeline, summary: Mapping[str, Any] | None) -> OperatorLineage[Any, Any]:
    """Lineage of a run of ``pipeline``; ``summary`` is that of its command, null if it failed."""
    source, sink = _name(pipeline.source if pipeline.upstream is None else pipeline.upstream.sink), _name(pipeline.sink)
    batches = list((summary or {}).get("batches", ()))
    inputs, outputs = [], []
    if source is not None:
        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=sum(batch["rows_read"] for batch in batches))
        inputs.append(InputDataset(*source, inputFacets={"inputStatistics": read} if batches else {}))
        inputs += [InputDataset(*place) for place in dict.fromkeys(map(_name, pipeline.lookups)) if place is not None]
    if sink is not None:
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(batch["rows_published"] for batch in batches)
        )
        facets: dict[str, Any] = {} if source is None else {"columnLineage": _columns(pipeline, source)}
        outputs.append(
            OutputDataset(*sink, facets=facets | _schema(pipeline), outputFacets={"outputStatistics": written} if batches else {})
        )
        current = None if pipeline.sink is None else pipeline.sink.current
        outputs += [] if current is None else [OutputDataset(*_of_path(current), facets=facets)]
    return OperatorLineage(
        inputs=inputs, outputs=outputs, run_facets={"windowmill_batches": WindowmillBatchesRunFacet(batches=batches)} if batches else {}
    )


def quality_of(pipeline: Pipeline) -> OperatorLineage[Any, Any]:
    """The outcomes of the rules of the newest batch, as those of the sink."""
    sink, newest = _name(pipeline.sink), Ledger.open(pipeline).newest
    if sink is None or newest is None:
        return OperatorLineage()
    assertions = [
        data_quality_assertions_dataset.Assertion(
            assertion=rule.title, success=outcome == "passed", column=rule.column or None, severity=rule.severity
        )
        for rule in read_quality(Places.of(pipeline).quality, newest.number).rules
        for (_, batch), outcome in rule.outcomes.items()
        if batch == newest.number
    ]
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions=assertions)
    return OperatorLineage(inputs=[InputDataset(*sink, inputFacets={"dataQualityAssertions": facet})])


def _name(table: Table | None) -> tuple[str, str] | None:
    """Namespace and name of a table, as OpenLineage's naming has them."""
    if table is None or (table.path is None and table.table is None):
        return None
    if table.path is None:
        return CATALOG, str(table.table)
    return _of_path(table.path)


def _of_path(path: str) -> tuple[str, str]:
    local = local_path(path)
    if local is not None:
        return "file", str(Path(local).absolute())
    parts = urlsplit(identity_of(path))
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _schema(pipeline: Pipeline) -> dict[str, Any]:
    sink = located(pipeline).sink
    if sink is None or sink.path is None or not is_table(sink.path):
        return {}
    fields = table_at(sink.path).schema().fields
    named = [
        schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(getattr(field.type, "type", field.type))) for field in fields
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=named)}


def _columns(pipeline: Pipeline, source: tuple[str, str]) -> Any:
    """The columns of the source, and of tables that it looks up, from which each column of the sink is computed.

    Keys and time, and what is looked up and filtered by, decide about every row.
    """

    def field(table: tuple[str, str], name: str, kind: str, subtype: str) -> Any:
        how = column_lineage_dataset.Transformation(type=kind, subtype=subtype)
        return column_lineage_dataset.InputField(*table, field=name, transformations=[how])

    # The columns, with their tables, from which steps make each column, whose name is in lower case.
    made: dict[str, list[tuple[tuple[str, str], str]]] = {}
    for step in pipeline.row_steps:
        if isinstance(step, LookupStep):
            table = _name(step.lookup) or source
            made |= {name.lower(): [(table, theirs)] for name, theirs in step.lookup.columns.items()}
            continue
        read = [made.get(name.lower(), [(source, name)]) for name in sorted(columns_of(step.text))]
        made |= {name.lower(): list(dict.fromkeys(each for columns in read for each in columns)) for name in step.makes}

    def fields(name: str, kind: str, subtype: str) -> list[Any]:
        direct = "TRANSFORMATION" if name.lower() in made and subtype == "IDENTITY" else subtype
        return [field(*each, kind, direct) for each in made.get(name.lower(), [(source, name)])]

    columns = {key: column_lineage_dataset.Fields(inputFields=fields(key, "DIRECT", "IDENTITY")) for key in pipeline.keys}
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.expr is None:
            inputs = [each for column in aggregate.columns for each in fields(column, "DIRECT", "AGGREGATION")]
        else:
            inputs = [each for used in read_by([aggregate.expr], columns) for each in columns[used].inputFields]
        columns[name] = column_lineage_dataset.Fields(inputFields=inputs)
    for name in ("window_start", "window_end"):
        columns[name] = column_lineage_dataset.Fields(inputFields=fields(pipeline.time.column, "DIRECT", "TRANSFORMATION"))
    of_rows = [*((key, "GROUP_BY") for key in pipeline.keys), (pipeline.time.column, "WINDOW")]
    for step in pipeline.row_steps:
        if isinstance(step, LookupStep):
            of_rows += [(name, "JOIN") for text in step.texts for name in sorted(columns_of(text))]
    filters = [pipeline.own_filter or "", *(text for step in pipeline.row_steps for text in step.filters)]
    of_rows += [(name, "FILTER") for text in filters if text for name in sorted(columns_of(text))]
    return column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=columns, dataset=[each for name, subtype in of_rows for each in fields(name, "INDIRECT", subtype)]
    )
