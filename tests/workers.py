"""Which worker of pytest runs which tests, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling

#: Folders whose tests share a service, each for one worker; and a file that waits for minutes.
TOGETHER = ("tests/airflow/real/", "tests/airflow/test_demo.py", "tests/catalog/", "tests/kafka/", "tests/object_store/", "tests/browser/")


class TogetherByService(LoadFileScheduling):
    """Tests of a file run on one worker, and tests that share a service; files begin in the order in which they are collected."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in TOGETHER if nodeid.startswith(path)), super()._split_scope(nodeid))


def longest_first(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, which would be waited for at the end: services, and then files of many tests."""
    rank = {path: place for place, path in enumerate(TOGETHER)}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (next((rank[path] for path in TOGETHER if item.nodeid.startswith(path)), len(rank)), -tests[item.path]))
