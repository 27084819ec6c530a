.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCH_STAMP := .venv/.installed-bench
NPM_STAMP := tests/node/node_modules/.installed
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PART ?=
# Without .pyc files every start of a process takes much longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup system packages run test test-fast soak check bench map docs pictures format lock clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(STAMP)  ## Install Toolgate and its tools into .venv

$(STAMP): requirements.lock pyproject.toml
	@echo "Installing into .venv; the first time this takes a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements-bench.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-bench.lock
	@touch $@

system:  ## Install the system's parts: Chromium, bubblewrap, Docker (Debian, as root)
	sh tools/install-system.sh

packages: $(NPM_STAMP)  ## Install what the tests take from npm

$(NPM_STAMP): $(STAMP) tests/node/package.json tests/node/package-lock.json
	sh tools/install-npm-packages.sh

run: setup  ## Start Toolgate on its embedded defaults
	$(BIN)/toolgate up

test: setup system packages  ## Run every test
	$(PYTEST)

test-fast: setup  ## Run the short tests that need no system package
	$(PYTEST) --fast

soak: setup system packages  ## Run kills, faults, hostile and properties in full (PART=kills: one of them)
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

lock:  ## Pin the dependencies again (needs uv)
	uv pip compile pyproject.toml --extra llm --extra browser --extra dev \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11 -o requirements.lock
	uv pip compile pyproject.toml --extra llm --extra browser -c requirements.lock \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11 -o requirements-image.lock
	uv pip compile pyproject.toml --all-extras -c requirements.lock \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11 -o requirements-bench.lock

clean:  ## Remove everything that make created
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/node/node_modules
