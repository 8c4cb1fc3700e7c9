"""The report: one HTML page on a pipeline, readable without a network, a server or a JVM."""

from __future__ import annotations

from windowmill.jobs.report.curves import ChartSelection
from windowmill.jobs.report.page import report_page, write_report
from windowmill.jobs.report.queries import ReportError

__all__ = ["ChartSelection", "ReportError", "report_page", "write_report"]
