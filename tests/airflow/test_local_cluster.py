"""The example's own Spark cluster: its workers come, and all of it goes with whoever started it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import psutil
import pytest

from examples.flights.local_cluster import WORKERS, LocalCluster

pytestmark = pytest.mark.demo

PROGRAM = """
import signal, sys, time
from pathlib import Path
from examples.flights.local_cluster import LocalCluster

signal.signal(signal.SIGINT, signal.default_int_handler)  # else one that a job in the background had inherited: to ignore it
with LocalCluster.running(Path(sys.argv[1])) as cluster:
    print(*(process.pid for process in cluster.processes), sep=",", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_cluster_ends_with_its_starter(tmp_path, number):
    starter = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        members = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split(",")]
        assert [member.name() for member in members] == ["java"] * 3
    finally:
        starter.send_signal(number)
        starter.wait(60)
    _, alive = psutil.wait_procs(members, timeout=30)
    assert alive == []


def test_a_page_in_place_of_json_is_waited_for(tmp_path, monkeypatch):
    answers = ["<!DOCTYPE html>", '{"workers": []}', json.dumps({"workers": [{"state": "ALIVE"}] * WORKERS})]
    asked = httpx.Request("GET", "http://127.0.0.1/json/")
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text=answers.pop(0), request=asked))
    LocalCluster(0, 0, tmp_path, ())._wait_until_ready()
    assert answers == []
