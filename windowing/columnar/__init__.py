"""A pipeline over batches of columns: judge arrivals, cut rows into windows, combine them by the kernels, print rows in order."""

from windowmill.windowing.columnar.engine import ColumnarEngine, Found
from windowmill.windowing.columnar.results import ResultTable

__all__ = ["ColumnarEngine", "Found", "ResultTable"]
