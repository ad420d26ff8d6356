# The commands of this project; `make` lists them. CI uses them too.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

BASE_PYTHON ?= python3
VENV := .venv
BENCH_VENV := benchmarks/.venv
PYTHON := $(VENV)/bin/python
# one process more than there are processors, because many tests wait, but at most four; the tests of a file run in one of them
PYTEST = PYTEST_XDIST_AUTO_NUM_WORKERS=$$(($$(nproc) + 1)) $(PYTHON) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
UV := $(shell command -v uv || echo $(VENV)/bin/uv)
# groups of pyproject.toml that a verb or `make docs` needs beyond requirements.lock, each with a lock file of its own
EXTRAS := export search cluster docs hub
LOCKS := requirements.lock $(patsubst %,locks/%.lock,dev $(EXTRAS)) benchmarks/requirements.lock
# for every platform and Python from 3.11 on; without addresses of package indexes, because these differ between sites
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) $(if $(PACKAGE_INDEX),--upgrade-package torch --upgrade-package torchvision)
# versions and hashes of a lock, without platform markers, which versions of uv write differently
PINS := sed -nE 's/^([a-z0-9][^ ]*==[^ ;]+).*/\1/p; s/^ +(--hash=[^ ]+).*/\1/p'
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
# without stored bytecode, Python compiles torch at each start, which takes about ten seconds
export PYTHONDONTWRITEBYTECODE :=
PORT ?= 5000
# PACKAGE_INDEX=address: a package index beside the usual one, such as PyTorch's for another CUDA; the highest version of both is taken
ifneq (,$(PACKAGE_INDEX))
export UV_INDEX := $(PACKAGE_INDEX)
export UV_INDEX_STRATEGY := unsafe-best-match
endif

DOCKER ?= docker
IMAGE ?= pipeline
BASE_IMAGE ?= # a base image by digest instead of the Dockerfile's: a mirror of it, or a newer one
USER_ID ?= $(shell id -u):$(shell id -g)
# with an NVIDIA driver, of Linux or of Windows under WSL2
GPUS ?= $(if $(or $(wildcard /proc/driver/nvidia/version),$(and $(wildcard /dev/dxg),$(wildcard /usr/lib/wsl/lib/libcuda.so.1))),--gpus all)
REVISION = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# the commit's time, so that two builds of it have equal labels; the address of the remote, if it has one and without a password
CREATED = $(shell git log -1 --format=%cI 2>/dev/null)
SOURCE ?= $(shell git remote get-url origin 2>/dev/null | sed -nE 's,^(https?://)([^/@]*@)?,\1,p; s,^(ssh://[^/@:]+)(:[^/@]*)?@,\1@,p; s,^([^/@:]+@[^/:]+):/?,ssh://\1/,p')
LICENSES ?= $(shell sed -n 's/^license = "\(.*\)"/\1/p' pyproject.toml)
LABELS = $(if $(CREATED),--label org.opencontainers.image.created=$(CREATED)) $(if $(SOURCE),--label org.opencontainers.image.source='$(SOURCE)') $(if $(LICENSES),--label org.opencontainers.image.licenses='$(LICENSES)')
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# environment variables to pass to the container, by name only: the list of processes would show values
PASSED_ON = $(foreach name,$(filter-out PIPELINE_COMMIT PIPELINE_EXIT_CODE_FILE PIPELINE_IMAGE%,$(filter PIPELINE_% MLFLOW_% AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_DEFAULT_REGION,$(.VARIABLES))),--env $(name))

.PHONY: help setup setup-dev $(EXTRAS:%=setup-%) repro test test-slow coverage test-long bench check format lock resolve schema golden ui screenshots docs clean image docker-repro secret gpu-acceptance

# a colon separates the folders in PATH
ifneq (,$(findstring :,$(CURDIR)))
setup setup-dev $(EXTRAS:%=setup-%): refuse-path
.PHONY: refuse-path
refuse-path:
	@printf 'error: %q: this path has a colon, and virtual environments do not work there: move the checkout to a path without a colon\n' "$$PWD" >&2; exit 2
endif

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.locked ## make .venv from requirements.lock

setup-dev: $(VENV)/.locked-dev ## add the tools for tests to .venv

setup-export: ## add what `python -m pipeline export --format onnx` needs to .venv
setup-search: ## add what `python -m pipeline search` needs to .venv
setup-cluster: ## add what PIPELINE_CLUSTER needs to .venv
setup-hub: ## add timm, transformers and peft, which pretrained models need, to .venv
setup-docs: ## add what `make docs` needs to .venv

$(EXTRAS:%=setup-%): setup-%: $(VENV)/.locked-%

$(VENV)/bin/python:
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make BASE_PYTHON=python3.12 ...")'
	$(BASE_PYTHON) -m venv $(VENV) && { command -v $(UV) >/dev/null || $(PYTHON) -m pip install --quiet --disable-pip-version-check uv; } || { rm -rf $(VENV); exit 1; }

$(VENV)/.locked: requirements.lock | $(VENV)/bin/python
	@echo "$(VENV): installing requirements.lock, some 7 GB"
	$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements.lock
	@rm -f $(VENV)/.locked-dev $(EXTRAS:%=$(VENV)/.locked-%)
	@touch $@

$(VENV)/.locked-dev: locks/dev.lock $(VENV)/.locked
	$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements.lock locks/dev.lock
	@touch $@

# `install`, not `sync`, which would remove the tools for tests
$(EXTRAS:%=$(VENV)/.locked-%): $(VENV)/.locked-%: locks/%.lock $(VENV)/.locked
	$(UV) pip install --quiet --python $(PYTHON) --require-hashes --no-deps --requirement $<
	@touch $@

repro: setup ## check, prepare, train, evaluate (only what changed), summary; PRESET=name copies a preset to params.yaml first
	$(if $(PRESET),$(PYTHON) -m pipeline set preset=$(PRESET))
	$(PYTHON) -m pipeline repro

image: ## build the container image from requirements.lock and this checkout's code (IMAGE=pipeline)
	@git diff --quiet HEAD -- params.yaml 2>/dev/null || echo "make image: the image gets params.yaml as it is here, not as it is committed (git diff params.yaml)"
	DOCKER_BUILDKIT=1 $(DOCKER) build --tag $(IMAGE) \
	  $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
	  $(addprefix --label org.opencontainers.image.base.digest=,$(word 2,$(subst @, ,$(or $(BASE_IMAGE),$(shell sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile))))) \
	  $(LABELS) --build-arg REVISION=$(REVISION)$(if $(shell git status --porcelain -- . ':(exclude)dvc.lock' ':(exclude)metrics' ':(exclude)plots'),-changed) --build-arg VERSION=$(VERSION) $(if $(PACKAGE_INDEX),--build-arg PACKAGE_INDEX=$(PACKAGE_INDEX)) $(BUILD_ARGS) . \
	  || { code=$$?; $(DOCKER) buildx version > /dev/null 2>&1 || echo "make image: $(DOCKER) has no buildx, which builds the image: install the package docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's own)" >&2; exit $$code; }

# the Git folder of a worktree is outside the worktree, so mount it too
docker-repro: image ## run `make repro` of this checkout in a container; PRESET=name too; ARGS="dvc exp run -S seed=2" runs another command
	@folders=("$$PWD"); git=$$(git rev-parse --path-format=absolute --git-common-dir 2>/dev/null || true); \
	[ -z "$$git" ] || [ "$$git" = "$$PWD/.git" ] || folders+=("$$git"); \
	mounts=(); for folder in "$${folders[@]}"; do mounts+=(--mount "type=bind,source=$$folder,target=$$folder"); done; \
	export PIPELINE_IMAGE_DIGEST=$$($(DOCKER) image inspect --format '{{.Id}}' $(IMAGE)); \
	$(DOCKER) run --rm $(GPUS) --network host --user $(USER_ID) "$${mounts[@]}" --workdir "$$PWD" \
	  --env PIPELINE_IMAGE_DIGEST $(PASSED_ON) $(if $(PRESET),--env PRESET=$(PRESET)) $(RUN_ARGS) $(IMAGE) $(ARGS)

secret: secrets/postgres ## write a random password for compose.yaml

secrets/postgres:
	@mkdir -p -m 700 secrets
	@head -c 24 /dev/urandom | base64 | tr '+/' '-_' > $@
	@chmod 444 $@ # the folder's mode protects it; the users in the containers can read it

gpu-acceptance: image ## test the image on a machine with a GPU, in five minutes
	DOCKER=$(DOCKER) IMAGE=$(IMAGE) $(BASE_PYTHON) -m tests.container.acceptance

MARKED = not container and not slow
test: setup-dev ## test every promise in its short form, in five to six minutes, without a container engine; MARKED= runs all tests
	$(PYTEST) -m "$(MARKED)" $(ARGS)

test-slow: MARKED = container or slow
test-slow: test ## test the containers and the longer forms: series of dvc repro, compiled models, more kills

coverage: ARGS = --cov --cov-report=term-missing:skip-covered --cov-fail-under=95
coverage: MARKED =
coverage: test ## run all tests with coverage: 95% of the lines of pipeline/ are required; takes a third longer

test-long: setup-dev ## run the long tests of reliability, some hours: docs/reliability.md has the results
	$(PYTHON) -m tests.faults.every_call
	$(PYTHON) -m tests.faults.killing 200
	for name in texts code code-lstm store; do $(PYTHON) -m tests.faults.killing 50 $$name || exit; done
	$(PYTHON) -m tests.faults.signals 20
	FLIPS=10000 FUZZ=100 $(PYTHON) -m pytest tests/inference/test_tensor_file.py tests/faults/test_fuzz.py

check: setup-dev ## check format, lint, types and lock files
	ruff format --check .
	ruff check .
	mypy --num-workers auto
	@! git grep -nE '^(<{7}|>{7}) ' || { echo 'remove the marks of a merge'; exit 1; }
	hadolint Dockerfile
	shellcheck .ci/run deploy/slurm/train.sbatch
	@mkdir -p $(VENV)/resolved && cp --parents $(LOCKS) $(VENV)/resolved/
	@$(MAKE) --no-print-directory resolve INTO=$(VENV)/resolved/
	@for lock in $(LOCKS); do \
	  cmp <($(PINS) $$lock) <($(PINS) $(VENV)/resolved/$$lock) || { echo "$$lock does not fit pyproject.toml: run make lock"; exit 1; }; done
	@for files in 'pipeline/*.py' 'tests/*.py' 'docs/*.md'; do \
	  echo "$$files: $$(git ls-files "$$files" | wc -l) files, $$(git ls-files -z "$$files" | xargs -0r cat | wc -l) lines"; done

$(BENCH_VENV)/.locked: requirements.lock benchmarks/requirements.lock | setup
	$(PYTHON) -m venv --without-pip $(BENCH_VENV)
	$(UV) pip sync --quiet --python $(BENCH_VENV)/bin/python --require-hashes requirements.lock benchmarks/requirements.lock
	@touch $@

bench: $(BENCH_VENV)/.locked ## compare the speed of the training loop with others, in most of an hour: benchmarks/README.md
	$(BENCH_VENV)/bin/python -m benchmarks --output benchmarks/results/$(or $(NAME),latest) $(ARGS)

format: setup-dev ## format the code and fix what lint can fix
	ruff format .
	ruff check --fix .

lock: | $(VENV)/bin/python ## resolve pyproject.toml into the lock files (UPGRADE=1 takes newer versions)
	@$(MAKE) --no-print-directory resolve

# each group within the versions of requirements.lock; the tools for tests within those of every extra too
resolve:
	$(COMPILE) --output-file $(INTO)requirements.lock pyproject.toml
	@for extra in $(EXTRAS); do $(COMPILE) --constraint requirements.lock --group $$extra --output-file $(INTO)locks/$$extra.lock || exit 1; done
	$(COMPILE) --constraint requirements.lock $(EXTRAS:%=--constraint locks/%.lock) --group dev --output-file $(INTO)locks/dev.lock
	$(COMPILE) --constraint requirements.lock --group bench --output-file $(INTO)benchmarks/requirements.lock

schema: setup ## write params.schema.json and docs/parameters.md
	$(PYTHON) -m pipeline schema

golden: setup-dev ## record new digests of the default training on this machine, after an intended change of results
	$(PYTHON) -m tests.laws.golden

ui: setup ## serve the MLflow UI and print the address of the comparison of runs (PORT=5000)
	$(PYTHON) -m pipeline ui --port $(PORT)

screenshots: setup-dev ## take new screenshots of the MLflow UI and the report for docs/images (needs Debian's chromium)
	$(PYTHON) -m tests.screenshots

docs: setup-docs ## build the site of docs/ into site/, without requests to elsewhere; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
	@echo "site/index.html; to search it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory site"

clean: ## remove caches of tests and tools; runs, data and models stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find pipeline tests benchmarks -path benchmarks/.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
