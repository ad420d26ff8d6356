# The one vocabulary of this project; `make` lists it. CI and people call these verbs and nothing else.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

BASE_PYTHON ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
UV := $(shell command -v uv || echo $(VENV)/bin/uv)
# for every platform and Python from 3.11 on; without addresses of package indexes, which differ from place to place
COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock"
# versions and hashes of a lock: versions of uv write the markers of platforms differently
PINS := sed -nE 's/^([a-z0-9][^ ]*==[^ ;]+).*/\1/p; s/^ +(--hash=[^ ]+).*/\1/p'
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
PORT ?= 5000

.PHONY: help setup setup-dev repro test faults check format lock schema golden ui clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.locked ## make .venv from requirements.lock

setup-dev: $(VENV)/.locked-dev ## the same with the test tools

$(VENV)/bin/python:
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make BASE_PYTHON=python3.12 ...")'
	$(BASE_PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.locked: requirements.lock | $(VENV)/bin/python
	@command -v $(UV) >/dev/null || $(PYTHON) -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements.lock
	@rm -f $(VENV)/.locked-dev
	@touch $@

$(VENV)/.locked-dev: requirements-dev.lock $(VENV)/.locked
	$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements.lock requirements-dev.lock
	@touch $@

repro: setup ## prepare, train and evaluate what changed; PRESET=name puts a preset in place first
	$(if $(PRESET),$(PYTHON) -m pipeline preset $(PRESET))
	$(PYTHON) -m pipeline check
	dvc repro
	$(PYTHON) -m pipeline summary

test: setup-dev ## run every test
	$(PYTHON) -m pytest $(ARGS)

check: setup-dev ## format, lint, strict types, lock and generated files fresh
	ruff format --check .
	ruff check .
	mypy
	@cp requirements.lock requirements-dev.lock $(VENV)/
	$(COMPILE) --output-file $(VENV)/requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --group dev --output-file $(VENV)/requirements-dev.lock
	@for lock in requirements.lock requirements-dev.lock; do \
	  cmp <($(PINS) $$lock) <($(PINS) $(VENV)/$$lock) || { echo "$$lock does not fit pyproject.toml: run make lock"; exit 1; }; done

faults: setup-dev ## attack the promises at length, some hours: docs/reliability.md has what is said
	$(PYTHON) -m tests.faults.every_call
	$(PYTHON) -m tests.faults.killing 200
	$(PYTHON) -m tests.faults.signals 20
	$(PYTHON) -m tests.faults.flips 10000
	$(PYTHON) -m tests.faults.fuzz 600
	$(PYTHON) -m tests.faults.cost

format: setup-dev ## format the code and mend what lint can mend
	ruff format .
	ruff check --fix .

lock: setup ## resolve pyproject.toml anew (UPGRADE=1 takes newer versions)
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements.lock pyproject.toml
	$(COMPILE) $(if $(UPGRADE),--upgrade) --constraint requirements.lock --group dev --output-file requirements-dev.lock

schema: setup ## write params.schema.json and the README's table of parameters
	$(PYTHON) -m pipeline schema

golden: setup-dev ## record the digests of the default on this machine, where a change of them is meant
	$(PYTHON) -m tests.laws.golden

ui: setup ## open the MLflow UI on this machine (PORT=5000)
	mlflow ui --host 127.0.0.1 --port $(PORT) --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}"

clean: ## remove what the stages and tests made, but no run, data or model
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find pipeline tests -name __pycache__ -prune -exec rm -rf {} +
