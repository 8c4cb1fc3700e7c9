"""The retry policy: retries conflicts and crashes, but never what is refused, or a batch that a quality rule holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule


def retrying() -> dict[str, Any]:
    """Default arguments of all tasks.

    A held batch and a refused command raise ``AirflowFailException``, which Airflow never retries. The policy covers what a task refuses
    in its own process, such as a spec that it cannot read.
    """
    return {
        "owner": "windowmill",
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=10),
        "retry_policy": ExceptionRetryPolicy(
            [RetryRule("windowmill.windowing.errors.RefusedError", RetryAction.FAIL, reason="refused; no retry mends it")],
        ),
    }
