# make demo            the demo, in .venv, with the versions in constraints.txt
# make test            everything that CI checks
# make test TRITON=X   the same with another triton
# PYTHON=python3.12    the interpreter that .venv is made with (3.11 or later)

PYTHON ?= python3
VENV ?= .venv
TRITON ?= $(shell sed -n 's/^triton==//p' constraints.txt)
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed-triton-$(TRITON)

.PHONY: help venv demo test lint types layers bench golden clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv and install fusedsl (editable) and what it needs

# triton stands apart: builds of torch differ in whether they bring one, and in which, and the one
# asked for here must win. The last line changes nothing where torch brought none.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "constraints.txt needs Python 3.11 or later; set PYTHON"; exit 1; }
	@test -x $(BIN)/python || { echo "== making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@rm -f $(VENV)/.installed-triton-*
	@grep -v '^triton==' constraints.txt > $(VENV)/constraints.txt
	@echo "== installing triton $(TRITON), torch and the tools (1.6 GB or more; some minutes)"
	$(PIP) install --no-deps triton==$(TRITON)
	$(PIP) install -c $(VENV)/constraints.txt -e '.[test,examples]'
	$(PIP) install --no-deps triton==$(TRITON)
	@touch $@

demo: venv ## run the demo
	$(BIN)/python -m examples.demo

test: venv lint types layers ## lint, types, layers, then the tests with coverage
	@echo "== tests"
	$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term --cov-fail-under=90

lint: venv ## ruff: rules and format
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv ## pyright
	@echo "== types"
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: venv ## import-linter: a stage imports only from below
	@echo "== layers"
	$(BIN)/lint-imports

bench: venv ## the benchmarks (needs a GPU); then python -m benchmarks.report --write
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.chains
	$(BIN)/python -m benchmarks.norms
	$(BIN)/python -m benchmarks.decode
	$(BIN)/python -m benchmarks.lm_head
	$(BIN)/python -m benchmarks.defaults
	$(BIN)/python -m benchmarks.host
	$(BIN)/python -m benchmarks.cold
	$(BIN)/python -m benchmarks.accuracy --rows 1,17,128,4096 --jobs 8

golden: venv ## write tests/golden/ anew, to be read in the diff
	$(BIN)/python -m pytest -n $(JOBS) --update-golden
	git --no-pager diff --stat -- tests/golden

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache .coverage .coverage.* htmlcov
	find fusedsl tests examples benchmarks -name __pycache__ -type d -exec rm -rf {} +
