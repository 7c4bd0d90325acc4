# make demo: from nothing to coded notes.  make test: lint, layers, tests.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash

.PHONY: demo test lint bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/python -m nosology.cli demo

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2

clean:
	rm -rf .venv build dist *.egg-info
