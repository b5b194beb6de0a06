# Two commands do all: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint check test-slow soak bench docs clean

demo: $(STAMP)  ## three networks queued on one emulated HTP
	$(BIN)/openhtp demo

test: $(STAMP) lint  ## linters, types, layers and the default tests (under 15 minutes)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-slow: $(STAMP)  ## what takes longer: browsers, whole networks, fuzzing
	$(BIN)/python -m pytest -m "slow" --timeout 1800

soak: $(STAMP)  ## one million executions from eight threads
	$(BIN)/python -m pytest -m soak --timeout 3600 -s

bench: $(STAMP)  ## sync against async, and against other runtimes
	$(BIN)/pip install --quiet ".[bench]"
	$(BIN)/openhtp bench async --peers

docs: $(STAMP)  ## regenerate generated pages
	$(BIN)/python tools/gen_ops_doc.py

clean:
	rm -rf $(VENV) out

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@
