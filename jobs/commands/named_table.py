"""A table of Spark's catalog as the source that ``windowmill init`` examines: the spec names it, and a sink in the same database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A Delta table by its name, with its location and the folder of its database."""

    name: str
    location: str
    folder: str

    @classmethod
    def find(cls, name: str) -> NamedTable:
        """Ask the catalog, which starts Spark.

        Raises
        ------
        SourceError
            If the catalog has no such table, or it is no Delta table.
        """
        from windowmill.jobs.spark import catalog
        from windowmill.jobs.spark.session import spark_session

        spark = spark_session("windowmill init", brief=True)
        location = catalog.location_of(spark, name)
        if location is None:
            raise catalog.not_found(spark, "--table", name)
        return cls(name, location, catalog.folder_of(spark, name))

    def in_place_of_paths(self, spec: Mapping[str, Any], *, is_sink_given: bool) -> dict[str, Any]:
        """``spec``, which has paths, with the table's name, and with that of a sink in its database unless the sink's path is given."""
        named = dict(spec) | {"source": {"table": self.name}}
        if is_sink_given:
            return named
        database, _, _ = self.name.rpartition(".")
        pipeline = str(spec["pipeline"])
        named["sink"] = {"table": f"{database}.{pipeline}" if database else pipeline}
        # Ledger and state need a place of their own, which no catalog lists.
        place = {"checkpoints": {"path": f"{self.folder}/{pipeline}.windowmill"}}
        last = {"compute": named.pop("compute")}
        return named | place | last
