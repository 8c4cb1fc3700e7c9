"""Fixtures that every kind of test shares: one Spark session a run, fresh folders, hypothesis profiles."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.readers import compute_by_many_tasks, use_spark_for_small_batches
from windowmill.checkpoints import failpoints

# py4j tells that it closes when the stream for it is closed already: where Airflow has lowered the level, a traceback follows the summary.
logging.getLogger("py4j").setLevel(logging.WARNING)
# And, to the root logger, that it sends a command again: also when an object of the JVM is collected while `ast.parse` runs. To format the
# traceback parses, too, and Python 3.11 ends an `ast.parse` within which another one has run in a SystemError.
logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command." or record.levelno >= logging.WARNING)

# The same examples every time, so that a test fails for what has changed: few for `make check`; the search for others is `make fuzz`.
settings.register_profile("fixed", max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", parent=settings.get_profile("fixed"), max_examples=5)
settings.register_profile("fuzz", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("many", parent=settings.get_profile("fuzz"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


#: ``connect``: tests run over a Spark Connect server. ``spark``: Spark reads the rows of small batches, too.
OVER = os.environ.get("WINDOWMILL_TESTS_OVER")
OVER_CONNECT = OVER == "connect"
#: Who computes the batches of a test that says nothing of it: Spark's tasks, as by default, where the test has a session.
GIVEN, COMPUTE = os.environ.get("WINDOWMILL_COMPUTE"), {True: "spark", False: "auto"}
_BY_SPARK = pytest.param("Spark", marks=pytest.mark.spark)
# Where it is set, answers are wrapped: pytest's workers get it from the terminal.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    """Set who computes for fixtures of more than a test; not where workers are started, which would inherit it and take it for given."""
    if not config.getoption("numprocesses", None):
        os.environ.setdefault("WINDOWMILL_COMPUTE", COMPUTE[False])


@pytest.fixture(autouse=True)
def _who_computes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = request.node.get_closest_marker
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local" if marked("local") else GIVEN or COMPUTE[any(map(marked, ("spark", "demo")))])


@pytest.fixture(autouse=True)
def _no_failpoint_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture(autouse=OVER == "spark")
def spark_for_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs over few rows in plain files use Spark from their beginning, as those over other rows do."""
    use_spark_for_small_batches(monkeypatch)


def _refuse_spark(settings: object) -> None:
    raise AssertionError("Spark would start in a test without the mark `spark`; its session would outlive the test")


@pytest.fixture(autouse=True)
def no_jvm_begins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in a test without Spark start no JVM: it would outlive the test, and later tests of the same process would compute by it."""
    if not any(map(request.node.get_closest_marker, ("spark", "dag", "demo"))) and request.path.name != "test_launch.py":
        monkeypatch.setattr("windowmill.jobs.spark.launch.begin", lambda **_: None)
        monkeypatch.setattr("windowmill.jobs.spark.launch.attach", _refuse_spark)


@pytest.fixture(params=["here", _BY_SPARK] if OVER is None else [_BY_SPARK])
def either_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs twice: with small batches read in this process, and by Spark."""
    if request.param == "Spark":
        request.getfixturevalue("spark")
        use_spark_for_small_batches(monkeypatch)


@pytest.fixture(params=["this process", pytest.param("many tasks", marks=pytest.mark.spark)])
def each_scheduler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs twice: its batches are computed in this process without Spark, and by many tasks however small they are."""
    if request.param == "many tasks":
        request.getfixturevalue("spark")
        compute_by_many_tasks(monkeypatch)


#: Settings by which Spark compiles no code.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The one Spark session of the test run, with the product's own settings.

    But Spark interprets all queries: each is run once, and its code would take a tenth of the processor time of these tests to compile.
    """
    from tests.spark.serving import serve
    from windowmill.jobs.spark.session import spark_session

    with ExitStack() as stack:
        if OVER_CONNECT:
            os.environ["SPARK_REMOTE"] = stack.enter_context(serve()).address
            yield spark_session("windowmill tests")
            return
        session = spark_session("windowmill tests", master="local[2]", conf=_INTERPRETED, brief=True)
        yield session
        session.stop()


class Prepared:
    """Pipelines that several tests begin from: a function makes each of them once below ``root``, and a test gets a copy of its tables.

    A function is called with ``folder``, too, which does not exist yet. What it returns has ``copied_to(folder)``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[tuple[str, ...], Any] = {}

    def original(self, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The pipeline that ``make`` has made, for tests that only read it."""
        key = (make.__module__, make.__qualname__, repr(args), repr(options))
        if key not in self._made:
            self._made[key] = make(*args, folder=self._root / str(len(self._made)), **options)
        return self._made[key]

    def copy(self, folder: Path, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A copy of that pipeline in ``folder``."""
        return self.original(make, *args, **options).copied_to(folder)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("prepared"))


#: Folders and modules whose tests compute in this process alone: laws, specs, plans, small cases; but those that are thorough.
PURE = (
    *("src/", "tests/architecture/", "tests/cases/", "tests/mutants/", "tests/windowing/", "tests/expectations/test_suites.py"),
    *("tests/jobs/test_arrival.py", "tests/jobs/test_columns.py", "tests/jobs/test_conditions.py"),
    *("tests/jobs/test_file_surveys.py", "tests/jobs/test_kept_rules.py", "tests/jobs/test_malformed_specs.py"),
    *("tests/jobs/test_session_batches.py", "tests/jobs/test_spec_checks.py"),
)
_NOT_PURE = ("thorough", "spark", "dag", "demo")
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
    rank, tests = {path: place for place, path in enumerate(TOGETHER)}, Counter(item.path for item in items)
    items.sort(key=lambda item: (next((rank[path] for path in TOGETHER if item.nodeid.startswith(path)), len(rank)), -tests[item.path]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> TogetherByService | None:
    """Let tests that share a service run on one worker, too, where tests of a file do."""
    return TogetherByService(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark pure tests; on workers, begin with those that take long; leave out what needs a session of this process over a server."""
    if hasattr(config, "workerinput"):
        longest_first(items)
    for item in items:
        if str(item.path.relative_to(config.rootpath)).startswith(PURE) and not any(map(item.get_closest_marker, _NOT_PURE)):
            item.add_marker("pure")
        if OVER_CONNECT and item.get_closest_marker("classic"):
            item.add_marker(pytest.mark.skip(reason="needs a session of this process"))
