# What a machine with only Python and make needs: `make verify` and `make test`. Everything lands in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
FAMILY ?= deepseekv32
PLUGINS := $(wildcard plugins/*)
ENV := .venv
BIN := $(ENV)/bin
MANIFESTS := pyproject.toml $(wildcard plugins/*/pyproject.toml)
PYTEST_ARGS ?=

.PHONY: help verify test test-live test-vllm check format test-pythons bench clean

help:
	@echo 'make verify        environment, core and plugins, then: tito verify --family $(FAMILY)'
	@echo 'make test          the same with the test tools and the oracles, then the whole suite'
	@echo 'make test-live     the tests that need SGLang: its environment (2.5 GB, kept), then servers on this machine'
	@echo 'make test-vllm     the tests that need vLLM: its environment (3.4 GB, kept), then servers on this machine'
	@echo 'make test-pythons  the unit tests under the other Pythons that are claimed and that this machine has'
	@echo 'make bench         tito beside its peers from PyPI: times, ratios and bounds, in some minutes'
	@echo 'make format        formats the code'
	@echo 'make clean         removes what these made'

verify: $(ENV)/.installed
	$(BIN)/tito verify --family $(FAMILY)

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests $(wildcard plugins/*/tests) $(PYTEST_ARGS)

test-live: $(ENV)/.dev
	$(BIN)/python tests/oracles.py
	$(BIN)/python tests/live/environment.py sglang
	$(BIN)/python -m pytest tests/live $(PYTEST_ARGS)

test-vllm: $(ENV)/.dev
	$(BIN)/python tests/oracles.py
	$(BIN)/python tests/live/environment.py vllm
	$(BIN)/python -m pytest tests/vllm $(PYTEST_ARGS)

check: $(ENV)/.dev
	$(BIN)/python tests/oracles.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p tito_core
	$(foreach plugin,$(PLUGINS),$(BIN)/mypy --strict $(plugin)/$(notdir $(plugin)) &&) true
	$(BIN)/mypy --strict tests/oracles.py tests/pythons.py tests/live/*.py
	$(BIN)/mypy --strict tests/vllm/*.py
	$(BIN)/python tests/mutants.py

format: $(ENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-pythons: $(ENV)/.dev
	$(BIN)/python tests/pythons.py

bench: $(ENV)/.dev
	$(BIN)/python tests/oracles.py
	$(BIN)/python benchmarks/speed.py

# Editable: what is edited is what runs, and only a changed manifest installs again. The wheels have tests of their own.
$(ENV)/.installed: $(ENV)/.made $(MANIFESTS)
	$(BIN)/python -m pip install --quiet --editable . $(PLUGINS:%=--editable ./%)
	@touch $@

$(ENV)/.dev: $(ENV)/.made $(MANIFESTS)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' $(PLUGINS:%=--editable ./%)
	@touch $@ $(ENV)/.installed

$(ENV)/.made:
	@[[ -n '$(PYTHON)' ]] || { echo 'tito needs Python 3.11 or newer, and none is on PATH; name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'tito needs Python 3.11 or newer; $(PYTHON) is '"$$('$(PYTHON)' -V 2>&1)"'; name another: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	'$(PYTHON)' -m venv $(ENV) || { echo 'no virtual environment could be made with $(PYTHON); on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(ENV) $(ENV)-* build dist plugins/*/build plugins/*/dist *.egg-info plugins/*/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
