"""The oracle: what a pipeline means, in plain code that keeps every event and recomputes every window from scratch.

Slow on purpose. It shares nothing with the engines, so that agreement with it says something; sums are exact (``fractions``), and no
result depends on how the input was cut into batches, because events are judged one by one in the order of their arrival.
"""

from windowmill.windowing.reference.evaluate import Outcome, evaluate
from windowmill.windowing.reference.events import Record

__all__ = ["Outcome", "Record", "evaluate"]
