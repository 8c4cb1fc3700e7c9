"""Processor time of a standalone Airflow by its parts, and of its tasks by task instance, from /proc."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

import psutil

SECONDS_BETWEEN = 0.25
_WORKER = "airflow worker -- LocalExecutor: "


class PartsWatch:
    """Measures the processes of Airflow, below the process id ``root``, and of ``others`` (name to process id), until its context ends.

    Attributes
    ----------
    seconds
        Processor time by part: ``scheduler``, ``dag-processor``, ``triggerer``, ``api-server``, ``tasks`` (executor, supervisors, tasks
        and their commands), and the names of ``others``, this process without its children.
    of_task
        Processor time by the id of a task instance: what a worker of the executor and its children took while it had that task.
    """

    def __init__(self, root: int | None, others: Mapping[str, int]) -> None:
        self.seconds: dict[str, float] = {}
        self.of_task: dict[str, float] = defaultdict(float)
        self._components = {} if root is None else _components(psutil.Process(root))
        self._others = {name: psutil.Process(pid) for name, pid in others.items()}
        self._workers: dict[int, tuple[str, float]] = {}
        self._first: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PartsWatch:
        self._first = self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._take()

    def _watch(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN):
            self._take()

    def _take(self) -> None:
        # A part's time may fall when a process whose parent does not wait for it ends.
        self.seconds = {part: max(self.seconds.get(part, 0.0), used - self._first.get(part, 0.0)) for part, used in self._look().items()}

    def _look(self) -> dict[str, float]:
        used: dict[str, float] = {}
        for name, process in self._components.items():
            with suppress(psutil.Error):
                used[name] = _own(process)
                children = sum(_with_ended(child) for child in process.children(recursive=True)) + _ended(process)
                if name == "scheduler":
                    used["tasks"] = children
                    self._look_at_workers(process)
                else:
                    used[name] += children
        for name, process in self._others.items():
            with suppress(psutil.Error):
                used[name] = _own(process) if process.pid == os.getpid() else _tree(process)
        return used

    def _look_at_workers(self, scheduler: psutil.Process) -> None:
        for worker in scheduler.children():
            with suppress(psutil.Error):
                title, used = " ".join(worker.cmdline()), _tree(worker)
                before, at = self._workers.get(worker.pid, ("", used))
                if before.startswith(_WORKER) and "<idle>" not in before:
                    self.of_task[before.removeprefix(_WORKER).strip()] += max(0.0, used - at)
                self._workers[worker.pid] = (title, used)


def _components(root: psutil.Process) -> dict[str, psutil.Process]:
    """The processes that ``airflow standalone`` has started, by the names of their commands."""
    names = ("scheduler", "dag-processor", "triggerer", "api-server")
    found = {}
    for child in root.children():
        words = child.cmdline()
        # The API server changes its process title, which then has its name with underscores.
        name = next((name for name in names if name in words or any(name.replace("-", "_") in word for word in words)), None)
        if name is not None:
            found[name] = child
    return found


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _ended(process: psutil.Process) -> float:
    """Processor time of the children that the process has waited for, with theirs."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _with_ended(process: psutil.Process) -> float:
    try:
        return _own(process) + _ended(process)
    except psutil.Error:
        return 0.0


def _tree(process: psutil.Process) -> float:
    return _with_ended(process) + sum(map(_with_ended, process.children(recursive=True)))
