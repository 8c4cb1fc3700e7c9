"""Runs a pipeline over batches of columns: judges arrivals, assigns rows to windows, aggregates them by the kernels, orders results."""

from windowmill.windowing.columnar.engine import ColumnarEngine, Found
from windowmill.windowing.columnar.results import ResultTable

__all__ = ["ColumnarEngine", "Found", "ResultTable"]
