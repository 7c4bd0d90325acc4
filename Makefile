# make demo: notes coded without training, then a coder trained, measured and explained (base install, no torch)
# make test: lint and the whole test suite (all extras)      make help: all targets
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
BROWSER = $(shell command -v chromium chromium-browser google-chrome | head -n 1)

.PHONY: help demo reproduce test plan lint docs browser clean

help:
	@echo "make demo       code the example notes without training; train, measure and explain a coder (3 minutes)"
	@echo "make test       lint, then the whole test suite on 2 processes; installs all extras"
	@echo "make lint       ruff, import layers, type check of nosology/ with pyrefly"
	@echo "make docs       the API reference from the docstrings, into out/api"
	@echo "make reproduce  the papers' tables on small simulated hospitals, into out/reproduce"
	@echo "make clean      delete .venv and build folders"

.venv/base: pyproject.toml constraints.txt
	@echo "installing into .venv: nosology and its base dependencies (about 0.6 GB on disk, no torch)"
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/all: .venv/base
	@echo "installing into .venv: all extras (about 3 GB on disk, with the CPU build of torch)"
	$(PIP) --editable '.[all]'
	touch $@

.venv/dev: .venv/base
	@echo "installing into .venv: all extras and the development tools (about 4 GB on disk, with the CPU build of torch)"
	$(PIP) --editable '.[dev]'
	touch .venv/all $@

demo: .venv/base
	$(BIN)/nosology code day-one examples/notes/*.txt
	$(BIN)/nosology simulate --patients 800 --seed 1 --years 2016-2019 --layout mimic4 --out out/demo/hospital
	$(BIN)/nosology corpus prepare mimic4 out/demo/hospital --systems icd10cm,icd10pcs --drop-uncoded --out out/demo/notes
	$(BIN)/nosology corpus split out/demo/notes --out out/demo/corpus
	$(BIN)/nosology corpus audit out/demo/corpus
	$(BIN)/nosology train linear --corpus out/demo/corpus --out out/demo/bundle
	$(BIN)/nosology evaluate out/demo/bundle --corpus out/demo/corpus --split test --out out/demo/report
	$(BIN)/nosology code out/demo/bundle examples/notes/*.txt
	$(BIN)/nosology explain out/demo/bundle examples/notes/pneumonia.txt --code J18.9 --method contributions --out out/demo/explained
	@echo "nosology is installed in .venv/bin: run 'source .venv/bin/activate', then 'nosology --help'"
	@echo "open out/demo/report/index.html (scores) and out/demo/explained (the words behind a code)"

reproduce: .venv/all
	for paper in federated-heads dual-laat hmhan plant; do \
	  $(BIN)/nosology reproduce $$paper --small --out out/reproduce/$$paper || exit 1; \
	done

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyrefly check

docs: .venv/dev
	$(BIN)/python tools/api_reference.py --out out/api

test: plan .venv/dev browser lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# What make test is going to install, before it does.
plan:
	@[ -e .venv/dev ] || echo "make test installs all extras and the development tools from PyPI into .venv (about 4 GB)"
ifeq ($(BROWSER),)
	@echo "make test installs chromium with apt-get, system-wide (about 0.5 GB): tests of the workbench drive a browser"
endif

# Tests of the workbench drive a browser. Without one, Debian's chromium is installed if apt-get is there.
browser:
ifeq ($(BROWSER),)
	@command -v apt-get >/dev/null || { echo "no apt-get: install chromium or Google Chrome yourself" >&2; exit 1; }
	{ apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null
endif

clean:
	rm -rf .venv build dist *.egg-info
