"""What Airflow shows of pipelines: the provider, links of tasks, and the pages in its user interface, for those who may see them."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import airflow
import httpx
import jsonschema
import pytest
from airflow.api_fastapi.core_api import security

from tests.airflow.test_rulings import RULE, land
from windowmill.dags import links, pages
from windowmill.dags.factory import build_dag
from windowmill.dags.provider import get_provider_info
from windowmill.jobs.cli import main

pytestmark = pytest.mark.dag

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = {"fastapi", "pyspark", "deltalake", "pyarrow", "pandas", "numba", "great_expectations", "windowmill.dags.pages"}


class Gate:
    """An auth manager: ``ada`` sees the DAG delays, ``bob`` none."""

    def get_url_login(self) -> str:
        return "/auth/login"

    async def get_user_from_token(self, token: str) -> str:
        return token

    def is_authorized_dag(self, *, method, details, user, access_entity) -> bool:
        assert (method, access_entity) == ("GET", None)
        return user == "ada" and details.id.startswith("delays")

    def get_authorized_dag_ids(self, *, user) -> set[str]:
        return {"delays"} if user == "ada" else set()


@pytest.fixture
def get(write_spec, tmp_path, monkeypatch):
    """Asks for a page of the pipeline ``delays``, which holds a batch; ``spoilt`` is a spec with a mistake."""
    monkeypatch.setenv("WINDOWMILL_PIPELINES", str(tmp_path / "specs"))
    monkeypatch.setattr(pages, "KEPT_SECONDS", 0.0)
    for module in (pages, security):
        monkeypatch.setattr(module, "get_auth_manager", Gate)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    spec = write_spec(folder=tmp_path / "specs", **{'schedule: "*/30 * * * *"\n': RULE + "airflow: own\n"})
    write_spec("spoilt", tmp_path / "specs", **{"size: 1 hour": "size: soon"})
    land(tmp_path, range(6))
    assert main(["run", str(spec)]) == 3

    def asked(path: str, user: str | None = "ada") -> httpx.Response:
        headers = {"Authorization": f"Bearer {user}"} if user else {}

        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(app=pages.application())
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(answer())

    return asked


def test_the_provider_says_what_airflow_may_read():
    info = get_provider_info()
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    for kind in ("operators", "sensors", "triggers"):
        for module in (name for part in info[kind] for name in part["python-modules"]):
            importlib.import_module(module)
    for name in info["extra-links"]:
        module, _, link = name.rpartition(".")
        assert getattr(importlib.import_module(module), link) in {type(link) for link in links.PAGES}


def test_the_package_names_the_provider_and_the_plugin():
    points = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("apache_airflow_provider", "airflow.plugins"):
        [place] = points[group].values()
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_every_process_of_airflow_loads_the_plugin_and_nothing_heavy():
    code = f"import windowmill.dags.plugin, windowmill.dags.provider, sys; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("base_url", "start"), [("https://airflow.example/af/", "https://airflow.example/af"), ("", "")])
def test_tasks_link_to_report_and_data_docs(write_spec, monkeypatch, base_url, start):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    dag = build_dag(write_spec())
    for task in (dag.get_task("micro_batch"), dag.get_task("quality_report")):
        assert {link.name: link.get_link(task, ti_key=SimpleNamespace()) for link in task.operator_extra_links} == {
            "Report": f"{start}/windowmill/pipelines/delays/report.html",
            "Data Docs": f"{start}/windowmill/pipelines/delays/docs/index.html",
        }


def test_the_report_of_a_pipeline(get):
    answer = get("/pipelines/delays/report.html")
    assert answer.status_code == 200
    assert "windowmill release" in answer.text
    assert 'href="docs/index.html"' in answer.text
    assert 'href="..' not in answer.text, "links into the file system lead nowhere"
    assert "connect-src" not in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("dag_id", ["delays__maintenance", "delays__backfill"])
def test_every_dag_of_a_pipeline_leads_to_its_report(get, dag_id):
    answer = get(f"/pipelines/{dag_id}/report.html")
    assert (answer.status_code, answer.headers["location"]) == (307, "../delays/report.html")


def test_data_docs_run_no_script(get, tmp_path):
    docs = tmp_path / "delays.windowmill" / "docs"
    (docs / "planted.html").write_text("<script>steal()</script>")
    for page in ("index.html", "planted.html", next(docs.glob("batch-*.html")).name):
        answer = get(f"/pipelines/delays/docs/{page}")
        assert (answer.status_code, answer.text) == (200, (docs / page).read_text())
        assert answer.headers["content-security-policy"].startswith("sandbox allow-same-origin;")


@pytest.mark.parametrize("page", ["none.html", "..", "..%2freport.html", "%2fetc%2fpasswd", "..%2f..%2fevents"])
def test_only_pages_of_the_folder_are_served(get, page):
    assert get(f"/pipelines/delays/docs/{page}").status_code == 404


def test_a_dag_that_is_no_pipeline(get):
    answer = get("/pipelines/delays_of_others/report.html")
    assert answer.status_code == 404
    assert "delays_of_others is no pipeline of the folders in WINDOWMILL_PIPELINES" in answer.text


def test_a_spec_that_cannot_be_read_says_why(get, monkeypatch):
    monkeypatch.setattr(Gate, "is_authorized_dag", lambda self, **asked: True)
    monkeypatch.setattr(Gate, "get_authorized_dag_ids", lambda self, user: {"delays", "spoilt"})
    answer = get("/pipelines/spoilt/report.html")
    assert answer.status_code == 500
    assert "spoilt.yaml:6: windows.0.size: got &#x27;soon&#x27;" in answer.text
    assert "spoilt.yaml:6: windows.0.size: got &#39;soon&#39;" in get("/").text


def test_the_overview_lists_what_the_user_may_see(get):
    seen = get("/").text
    assert '<a href="pipelines/delays/report.html">delays</a>' in seen
    assert "spoilt" not in seen
    assert "delays" not in get("/", user="bob").text.partition("<main")[2]


@pytest.mark.parametrize("page", ["report.html", "docs/index.html"])
def test_who_may_not_read_the_dag_sees_no_page_of_it(get, page):
    assert get(f"/pipelines/delays/{page}", user="bob").status_code == 403


@pytest.mark.parametrize("path", ["/", "/pipelines/delays/report.html"])
def test_who_has_not_logged_in_is_sent_there_and_back(get, path):
    answer = get(path, user=None)
    assert answer.status_code == 307
    assert httpx.URL(answer.headers["location"]).params["next"] == f"http://airflow{path}"


def test_a_page_is_made_once_for_many_who_look(get, monkeypatch):
    monkeypatch.setattr(pages, "KEPT_SECONDS", 60.0)
    kept, made = pages._Kept(), []
    assert [kept.page("delays", lambda: made.append(1) or f"page {len(made)}") for _ in range(3)] == ["page 1"] * 3
    assert kept.page("others", lambda: "another") == "another"
