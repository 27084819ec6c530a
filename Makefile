.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
RUN_STAMP := .venv/.installed-run
LLM_STAMP := .venv/.installed-llm
STAMP := .venv/.installed
BENCH_STAMP := .venv/.installed-bench
NPM_STAMP := tests/node/node_modules/.installed
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PART ?=
# Without .pyc files every start of a process takes much longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup system packages llm run dist test test-fast soak check bench map docs pictures format lock clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(STAMP)  ## Install Toolgate and its tools into .venv

$(RUN_STAMP): requirements-run.lock pyproject.toml
	@echo "Installing into .venv; the first time this takes up to a minute"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --no-deps --require-hashes -r requirements-run.lock
	$(PIP) install --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(LLM_STAMP): $(RUN_STAMP) requirements-image.lock
	$(PIP) install --no-deps --require-hashes -r requirements-image.lock
	@touch $@

$(STAMP): $(RUN_STAMP) requirements.lock
	@echo "Installing what the tests need"
	$(PIP) install --no-deps --require-hashes -r requirements.lock
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements-bench.lock
	$(PIP) install --no-deps --require-hashes -r requirements-bench.lock
	@touch $@

system:  ## Install the system's parts: Chromium, bubblewrap, Docker (Debian, as root)
	sh tools/install-system.sh

packages: $(NPM_STAMP)  ## Install what the tests take from npm

$(NPM_STAMP): $(STAMP) tests/node/package.json tests/node/package-lock.json
	sh tools/install-npm-packages.sh

llm: $(LLM_STAMP)  ## Install what the assistant needs to call a model

run: $(RUN_STAMP) $(if $(TOOLGATE_MODEL),llm)  ## Start Toolgate on its embedded defaults
	$(BIN)/toolgate up

test: setup system packages  ## Run every test
	$(PYTEST)

test-fast: setup  ## Run the short tests that need no system package
	$(PYTEST) --fast

soak: setup system packages  ## Run kills, faults, hostile and properties in full (PART=faults: kills and faults; PART=kills: one of them)
	$(BIN)/python tools/soak.py $(PART)

check: setup  ## Check types, lint, import rules and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pip check --quiet
	$(BIN)/python tools/arch_map.py --check
	$(BIN)/python tools/conformance.py --check
	$(BIN)/python tools/reference.py --check

bench: $(BENCH_STAMP)  ## Measure the budgets, side by side
	$(BIN)/python -m bench

map: setup  ## Generate docs/architecture-map.md from the imports
	$(BIN)/python tools/arch_map.py

docs: setup  ## Generate the pages that come from the code
	$(BIN)/python tools/conformance.py --settle
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/arch_map.py

pictures: setup system  ## Take the pictures in docs/images from a running Toolgate
	$(BIN)/python tools/screenshots.py

format: setup  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK := uv pip compile pyproject.toml --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11

lock:  ## Pin the dependencies again (needs uv)
	$(LOCK) --extra llm --extra browser --extra dev --group install -o requirements.lock
	$(LOCK) --extra browser --group install -c requirements.lock -o requirements-run.lock
	$(LOCK) --extra llm --extra browser -c requirements.lock -o requirements-image.lock
	$(LOCK) --all-extras --group install -c requirements.lock -o requirements-bench.lock

dist: $(STAMP)  ## Build the wheel and the sdist into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

clean:  ## Remove everything that make created
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/node/node_modules
