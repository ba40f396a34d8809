# Vennue's commands. Each works on a fresh machine that has only Python >= 3.11 and make: the first one installs
# everything into .venv, once, and again only when pyproject.toml changes. ARGS passes options on, as in
# `make test ARGS="tests/unit/core -k plan"`.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-rest test-all lint docs bench soak clean

# 3.11 first: it is what the project is developed on.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet --quiet
READY := .venv/.ready
READY_ALL := .venv/.ready-all
ARGS ?=

help: ## List these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: $(READY) ## Install the package and the tools into .venv
	@echo 'Ready. To use it in this shell: source .venv/bin/activate'

demo: $(READY) ## Run a pool, a fleet of simulated devices and several learning jobs
	@$(BIN)/vennue demo $(ARGS)

test: $(READY) ## Run the fast tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not services and not slow_suite' $(ARGS)

test-rest: $(READY_ALL) ## Run what `test` leaves out: slow tests, and those that need services or optional libraries
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'services or slow_suite or extras' --ignore=tests/docs $(ARGS)

test-all: ## Run every test, and every command of the README and the docs
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest
	@$(MAKE) --no-print-directory docs

lint: $(READY) ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

docs: $(READY) ## Check the documents' links, and run their commands and programs
	@$(BIN)/python -m pytest tests/docs $(ARGS)

bench: $(READY) ## Run the benchmarks, or a single one with ONLY=name; writes build/bench.json
	@$(BIN)/python -m benchmarks $(ONLY) $(ARGS)

soak: $(READY) ## Search for broken promises: 20 000 simulated pools, and 10 000 examples per property: hours
	@$(BIN)/python -m vennue.testing.simulate --seeds 10000 --processes 2
	@$(BIN)/python -m vennue.testing.simulate --leaves --seeds 10000 --processes 2
	@$(BIN)/python -m pytest tests/property -n 2 --hypothesis-profile=soak --timeout=0 $(ARGS)

clean: ## Remove caches and results, but not .venv
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .schemathesis
	@find benchmarks src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo 'Vennue needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo 'cannot create .venv: on Debian and Ubuntu, apt-get install python3-venv' >&2; exit 1; }
	@echo 'Installing Vennue and its tools into .venv (a minute or two, once) ...'
	@$(PIP) install --editable '.[dev]'
	@touch $@

# torch is pinned so that the tests always run on one build; the package itself takes whichever the user has.
$(READY_ALL): $(READY) .ci/services
	@echo 'Installing optional libraries and services for the whole test suite (once) ...'
	@$(PIP) install 'torch==2.13.0' --editable '.[dev,ray,sklearn,torch]'
	@.ci/services
	@touch $@
