# Commands of the project; `make` alone lists them. Everything runs from .venv, which `setup` makes and keeps.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Setting up records classes in a JVM while it compiles kernels, each on one core.
MAKEFLAGS += --jobs=2

PY := .venv/bin/python
STAMPS := .venv/stamps
# Options of pytest for tests that share no Spark session.
PARALLEL := -n logical --maxprocesses 4 --dist loadfile
export PYTHON ?= python3.11
unexport PYTHONDONTWRITEBYTECODE  # where it is set, every process would compile Airflow and pandas again, seconds each time

.PHONY: help setup demo cluster-demo example-glucose example-stocks example-clickstream up down test test-without-spark test-on-spark cases connect faults machine soak airflow-faults mutants fuzz bench bench-job bench-setup bench-compare bench-try bench-kernels bench-state bench-cost bench-chains bench-changes bench-data-docs bench-positions bench-deltas bench-state-bytes bench-warm bench-current bench-dedup bench-history bench-corrections bench-around-windows bench-long-life bench-report bench-parsing bench-minutes bench-nexmark bench-many-keys bench-lock check lint docs fmt doctor s3-jars reference screenshots release lowest lock clean

help: ## List the commands
	@awk -F ' *## ' '/^[a-z0-9-]+:.*## / { sub(/:.*/, "", $$1); printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/ready ## Make this machine ready: packages, Java, Delta jars, compiled kernels
	@scripts/setup.sh java

demo: setup ## Run the example from raw flights to checked aggregates under a real Airflow scheduler
	@$(PY) -m examples.flights.demo demo

cluster-demo: setup ## Send the example's runs through Airflow to a Spark master with two workers, and compare (minutes)
	@FLIGHTS_FOLDER=.demo-cluster $(PY) -m examples.flights.demo cluster

example-glucose: setup ## Play the example of glucose sensors: time-weighted means, episodes as sessions (seconds)
	@$(PY) -m examples.glucose

example-stocks: setup ## Play the example of stock prices: windows by trades and by shares, linear trends (seconds)
	@$(PY) -m examples.stocks

example-clickstream: setup ## Play the example of a shop's visits: sessions that are shown early and revised (seconds)
	@$(PY) -m examples.clickstream

up: setup ## Keep the example's Airflow and its user interface running
	@$(PY) -m examples.flights.demo up

down: setup ## Stop the example's Airflow
	@$(PY) -m examples.flights.demo down

test: test-without-spark test-on-spark ## Run every check and every test (about 28 minutes on two cores)

# At once: a Spark session waits for its Python workers, and other tests for Airflow and services, so that neither fills two cores.
test-without-spark: lint $(STAMPS)/s3-server $(STAMPS)/browser $(STAMPS)/kafka-broker
	$(PY) -m pytest $(PARALLEL) -m "not spark"

test-on-spark: lint $(STAMPS)/s3-jars
	$(PY) -m pytest -m spark

cases: setup ## Give Spark every case of other engines, and of the tests that give it some of theirs (about 20 minutes)
	WINDOWMILL_CASES=all $(PY) -m pytest -m spark tests/spark

connect: setup ## Run every Spark test and case over a Spark Connect server (an hour)
	WINDOWMILL_TESTS_OVER=connect WINDOWMILL_CASES=all $(PY) -m pytest --timeout=1800 -m "spark and not dag and not demo" tests/spark tests/jobs tests/plugins tests/windowing tests/checkpoints tests/expectations tests/golden

faults: setup ## Every fault at every step on Spark, and 200 kills at random instants (hours)
	WINDOWMILL_FAULTS=all WINDOWMILL_KILLS=200 $(PY) -m pytest --timeout=14400 tests/faults tests/jobs

machine: setup ## Crashes, rulings, upkeep in any order: WINDOWMILL_STEPS (5,000: hours); then corrections, changed specs, all commands: WINDOWMILL_HISTORIES (2,000)
	WINDOWMILL_STEPS=$${WINDOWMILL_STEPS:-5000} WINDOWMILL_HISTORIES=$${WINDOWMILL_HISTORIES:-2000} \
	$(PY) -m pytest -s --timeout=0 tests/faults/test_machine.py tests/faults/test_histories.py

soak: setup ## 300 batches while drivers, JVMs and workers are killed every 30 s (hours on a busy machine)
	$(PY) -m tests.faults.soak --batches 300 --seconds-between-kills 30

airflow-faults: setup ## Kill the parts of a real Airflow in the middle of batches, clear and mark runs (about 10 minutes)
	WINDOWMILL_AIRFLOW_FAULTS=all $(PY) -m pytest tests/airflow/real/test_faults.py tests/airflow/real/test_thirty_intervals.py

mutants: setup ## Put known bugs into the code, one at a time, and check that a fast test fails for each (minutes)
	$(PY) -m tests.mutants

fuzz: setup ## Try 10,000 examples of every property of windows and aggregates, 500 of those of batches, 10,000 conditions and text files, and 2,000 pipelines (hours)
	HYPOTHESIS_PROFILE=fuzz $(PY) -m pytest --timeout=0 tests/windowing tests/jobs/test_rows.py
	WINDOWMILL_FAULTS=all HYPOTHESIS_PROFILE=many $(PY) -m pytest --timeout=0 tests/jobs/test_arrival.py tests/jobs/test_*_batches.py \
	  tests/checkpoints/test_needed_rows.py tests/checkpoints/test_wanted_rows.py tests/checkpoints/test_position_table.py tests/windowing/test_planned_costs.py
	$(PY) -m tests.checkpoints.fuzz_ledger --examples 10000
	WINDOWMILL_CONDITIONS=10000 $(PY) -m pytest --timeout=0 tests/spark/test_condition_roads.py
	WINDOWMILL_TEXT_FILES=10000 $(PY) -m pytest --timeout=0 tests/jobs/test_text_balance.py
	WINDOWMILL_RANDOM_PIPELINES=2000 $(PY) -m pytest --timeout=0 tests/jobs/test_random_pipelines.py

bench: bench-setup ## Compare with Spark, Flink, DuckDB and polars, and write docs/benchmarks.md (more than an hour)
	$(PY) -m benchmarks

bench-compare: setup ## Time this checkout against another one, round by round: BEFORE=/path/to/checkout (minutes)
	$(PY) -m benchmarks.before_after --before $(BEFORE)

bench-try: setup ## Time `windowmill try` on a million rows, and what starting it costs (about 2 minutes)
	$(PY) -m benchmarks.try_rows

bench-job: setup ## Time the job from Delta to Delta, cold and warm, beside PySpark, DuckDB and Structured Streaming (about 20 minutes)
	$(PY) -m benchmarks.job

bench-kernels: setup ## Time the kernels by window size; CPP=/path/to/benchmark_driver runs C++ beside them (minutes)
	$(PY) -m benchmarks.kernels $(if $(CPP),--cpp $(CPP))

bench-state: setup ## Time three layouts of live rows in Delta (about 2 minutes)
	$(PY) -m benchmarks.state_layouts

bench-cost: setup ## Time runs over 1,000 new rows by kind of window and aggregate (about 10 minutes)
	$(PY) -m benchmarks.cost

bench-current: setup ## Time runs beside Structured Streaming and beside Spark recomputing (about 20 minutes)
	$(PY) -m benchmarks.keeping_current

bench-dedup: setup ## Time runs over 1,000 rows with 10 million remembered ids beside runs without dedup (about 5 minutes)
	@$(PY) -m benchmarks.remembered

bench-history: setup ## Time 90 days of history in one job beside a run a day (about 15 minutes)
	$(PY) -m benchmarks.history

bench-corrections: setup ## Time the restatement of 200 corrected rows beside a first run over 10 million (about 10 minutes)
	$(PY) -m benchmarks.corrections

bench-around-windows: setup ## Time computed columns, lookups and current rows beside runs without (about 5 minutes)
	$(PY) -m benchmarks.around_windows

bench-chains: setup ## Time hours and days over the results of minutes beside the minutes (about 5 minutes)
	$(PY) -m benchmarks.chains

bench-changes: setup ## Time changed specs by kind beside a rebuild (about 2 minutes)
	$(PY) -m benchmarks.changes

bench-data-docs: setup ## Time runs with 1,000 validated batches and their Data Docs behind them (about 3 minutes)
	$(PY) -m benchmarks.data_docs

bench-positions: setup ## Time runs over long windows of positions, and count what they restore (about 10 minutes)
	$(PY) -m benchmarks.positions

bench-deltas: setup ## Time runs over 100,000 tuples a key with delta eviction beside count eviction (about 5 minutes)
	$(PY) -m benchmarks.deltas

bench-state-bytes: setup ## Compare the bytes of state of windows of a week with ten times the rows (about 5 minutes)
	$(PY) -m benchmarks.state_bytes

bench-warm: setup ## Time runs as processes of their own, cold and on a warm Spark Connect server (about 5 minutes)
	$(PY) -m benchmarks.warm_runs

bench-long-life: setup ## Time runs and status after 100,000 batches (about 2 minutes)
	$(PY) -m benchmarks.long_life

bench-report: setup $(STAMPS)/browser ## Measure the report's size, and how long Chromium takes to open it (a minute)
	$(PY) -m benchmarks.report_page

bench-parsing: setup ## Time Airflow's DAG processor on a folder of 500 specs (about a minute)
	$(PY) -m benchmarks.dag_parsing

bench-minutes: setup ## Run 50 pipelines each minute under a real Airflow; late runs, processor time by part (about 20 minutes)
	$(PY) -m benchmarks.minute_schedules

bench-nexmark: bench-setup ## Time the windowed queries of Nexmark beside Flink SQL; EVENTS=N for fewer than 20 million (an hour)
	$(PY) -m benchmarks.nexmark $(if $(EVENTS),--events $(EVENTS))

bench-many-keys: setup ## Run a first batch of 200 M rows and 1 M keys, and compare it with DuckDB; WORKERS=1 times two workers (minutes)
	$(PY) -m benchmarks.many_keys $(if $(WORKERS),--workers --rows 20000000)

bench-setup: setup ## Install the peers that bench compares with, each into an environment of its own (1.4 GB)
	@benchmarks/setup.sh

check: lint ## Run lint, types, doctests and pure tests, with few examples of each property (under 2 minutes)
	HYPOTHESIS_PROFILE=few $(PY) -m pytest $(PARALLEL) -m pure

lint: setup docs ## Check style, types of everything but the tests, and links of the documentation; changes nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: setup ## Build the site of the documentation into .site/; `mkdocs serve` shows it with its search (seconds)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

fmt: setup ## Format the code and repair what lint can repair
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

doctor: setup ## Say what is wrong with this machine, and what to do
	@.venv/bin/windowmill doctor

s3-jars: setup $(STAMPS)/s3-jars ## Fetch the jars with which Spark reads s3:// (13 MB): only for sources that tasks cannot read by Arrow

reference: setup ## Write docs/reference anew from the code: fields, aggregates, commands, tables
	@$(PY) -m scripts.reference

screenshots: setup $(STAMPS)/browser ## Take the pictures of report, overview and Data Docs in docs/images anew (a minute)
	@$(PY) -m scripts.screenshots

release: setup ## Build the wheel and the source distribution into dist/, and try both in an empty environment (minutes)
	@scripts/release.sh

lowest: setup ## Run the pure tests with the lowest versions of packages that pyproject.toml allows (10 minutes)
	@scripts/lowest.sh

lock: setup ## Write requirements.lock anew from pyproject.toml
	@.venv/bin/uv pip compile pyproject.toml --all-extras --quiet --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --output-file requirements.lock

bench-lock: setup ## Write the locks of the benchmarks' peers anew
	@for peer in peers flink; do \
	  .venv/bin/uv pip compile benchmarks/$$peer.in --quiet --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make bench-lock" \
	    --output-file benchmarks/$$peer.lock; \
	done

clean: ## Remove what tests, builds and the example have written; keeps .venv
	@if [ -x $(PY) ] && [ -d .demo ]; then $(PY) -m examples.flights.demo down; fi
	@rm -rf .demo .demo-cluster build dist warehouse spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

$(STAMPS)/packages: requirements.lock pyproject.toml
	@scripts/setup.sh venv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/jars: requirements.lock jobs/spark/jars.py jobs/spark/jars.txt | $(STAMPS)/packages
	@scripts/setup.sh java
	@$(PY) -m windowmill.jobs.spark.jars
	@touch $@

$(STAMPS)/classes: $(STAMPS)/jars jobs/spark/session.py
	@$(PY) -m windowmill.jobs.spark.session
	@touch $@

$(STAMPS)/kernels: requirements.lock $(wildcard windowing/kernels/*.py) | $(STAMPS)/packages
	@$(PY) -m windowmill.windowing.kernels
	@touch $@

$(STAMPS)/s3-jars: jobs/spark/jars.py jobs/spark/jars.txt | $(STAMPS)/classes
	@$(PY) -m windowmill.jobs.spark.jars --s3
	@$(PY) -m windowmill.jobs.spark.session
	@touch $@

$(STAMPS)/s3-server: scripts/setup.sh | $(STAMPS)/packages
	@scripts/setup.sh s3-server
	@touch $@

$(STAMPS)/kafka-broker: tests/kafka/brokers.py | $(STAMPS)/packages
	@scripts/setup.sh java
	@$(PY) -m tests.kafka.brokers
	@touch $@

$(STAMPS)/browser: scripts/setup.sh | $(STAMPS)/packages
	@scripts/setup.sh browser
	@touch $@

$(STAMPS)/ready: $(STAMPS)/packages $(STAMPS)/classes $(STAMPS)/kernels
	@touch $@
