# Each target makes what it needs. PYTHON may name any interpreter from 3.11 on.
PYTHON ?= python3
BIN := .venv/bin
QUICK ?=

.PHONY: venv demo test lint bench clean

venv: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "viva needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade-strategy only-if-needed --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/viva demo

test: venv lint
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .typing/viva

# The peer has a home of its own: its dependencies are none of ours.
.inspect/bin/python:
	$(PYTHON) -m venv .inspect
	.inspect/bin/pip install --quiet inspect_ai

bench: venv .inspect/bin/python
	$(BIN)/python benches/overhead.py $(QUICK)

clean:
	rm -rf .venv .inspect build *.egg-info
