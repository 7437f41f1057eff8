# `make help` lists what there is. CI and pre-commit call the same targets.
export HF_HUB_OFFLINE = 1
export OMP_NUM_THREADS = 1
PYTHON ?= python

.PHONY: help check lint types test test-all test-full lowest docs digits

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

check: lint types  ## lint, format and types

lint:  ## lint and format
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:  ## types
	$(PYTHON) -m mypy

test:  ## the fast tests and the doctests, under two minutes
	$(PYTHON) -m pytest -m "not slow"

test-all:  ## all tests but the further cases of the long ones, on all cores
	$(PYTHON) -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-full:  ## every test with every case, on all cores; half an hour
	$(PYTHON) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m ""

lowest:  ## the fast tests with the lowest versions that pyproject.toml allows, in an environment of its own
	.ci/lowest

docs:  ## the pages of docs/ as HTML, in docs/_build; a warning is an error
	$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build

digits:  ## the main job: digits, nothing to download
	accelerate launch recipes/digits.py --output_dir out/digits
