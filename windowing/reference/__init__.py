"""The reference engine: the semantics of a pipeline in plain code that keeps every event and recomputes every window.

It is slow on purpose. It shares no code with the other engines, so that agreement with it is evidence. Sums are exact (``fractions``).
Events are judged commit by commit in order of arrival, so no result depends on how the input is cut into batches.
"""

from windowmill.windowing.reference.evaluate import Evaluation, evaluate
from windowmill.windowing.reference.events import Record

__all__ = ["Evaluation", "Record", "evaluate"]
