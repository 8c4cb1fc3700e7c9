"""A pipeline that runs can execute: its source and sink are known to be Delta tables given by path."""

from __future__ import annotations

from dataclasses import dataclass

from windowmill.checkpoints.places import Places
from windowmill.windowing.spec import Pipeline, Source


@dataclass(frozen=True, slots=True)
class Runnable:
    """A pipeline that has passed the checks of :func:`windowmill.jobs.spec_checks.runnable_of`, which alone makes these.

    Attributes
    ----------
    source_path, sink_path
        Paths or URIs of the two Delta tables.
    places
        Paths of the pipeline's own tables and pages.
    """

    pipeline: Pipeline
    source: Source
    source_path: str
    sink_path: str
    places: Places

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.pipeline
