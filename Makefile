# make demo: from nothing to coded notes.  make test: lint, layers, tests.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash

.PHONY: demo demo-grid demo-reports test lint chromium bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/nosology code day-one examples/notes/*.txt
	$(BIN)/nosology simulate --patients 800 --seed 1 --years 2016-2019 --layout mimic4 --out out/demo/hospital
	$(BIN)/nosology corpus prepare mimic4 out/demo/hospital --systems icd10cm,icd10pcs --drop-uncoded --out out/demo/notes
	$(BIN)/nosology corpus split out/demo/notes --out out/demo/corpus
	$(BIN)/nosology corpus audit out/demo/corpus
	$(BIN)/nosology train linear --corpus out/demo/corpus --out out/demo/bundle
	$(BIN)/nosology evaluate out/demo/bundle --corpus out/demo/corpus --split test --out out/demo/report
	$(BIN)/nosology code out/demo/bundle examples/notes/*.txt
	$(MAKE) --no-print-directory demo-grid
	$(MAKE) --no-print-directory demo-reports

# frozen embeddings: every head, trained centrally, by three hospitals and on random splits
demo-grid: .venv/installed
	$(BIN)/nosology simulate --patients 100 --seed 2 --years 2016-2019 --layout mimic4 --out out/demo/small
	$(BIN)/nosology corpus prepare mimic4 out/demo/small --systems icd10cm --drop-uncoded --out out/demo/small_notes
	$(BIN)/nosology corpus split out/demo/small_notes --out out/demo/small_corpus
	$(BIN)/nosology grid small --corpus out/demo/small_corpus --cache out/demo/vectors --out out/demo/grid

# radiology reports of the hospital of demo-grid: two levels of attention over a frozen encoder, and why a code was given
demo-reports: .venv/installed
	$(BIN)/nosology corpus prepare mimic4-radiology out/demo/small --systems icd10cm --drop-uncoded --out out/demo/radiology
	$(BIN)/nosology corpus split out/demo/radiology --out out/demo/reports
	$(BIN)/nosology train hmhan --corpus out/demo/reports --out out/demo/hmhan --set labels.top_k=10 --set model.frozen=true --set model.ensemble_size=1
	$(BIN)/nosology explain out/demo/hmhan examples/notes/pneumonia.txt --method attention --method category --out out/demo/explained

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports --no-cache

test: lint chromium
	$(BIN)/python -m pytest -n 2

# tests of the workbench drive a browser: Debian's own, where there is none and apt is at hand
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null && { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null; } || \
	  echo "no browser: tests of the workbench need chromium" >&2

clean:
	rm -rf .venv build dist *.egg-info
