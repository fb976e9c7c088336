# `make quickstart` and `make test` need Python 3.11+, git and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test test-slow test-examples test-exhaustive lint dist container format docs bench clean help

help:
	@echo "make quickstart  install, then raw text -> trained, evaluated, talking model (within 5 minutes)"
	@echo "make test        install, then run the tests"
	@echo "make test-slow   run those that take over ten seconds: guides, restarts, layouts (minutes)"
	@echo "make test-examples  run the published workflows and a rehearsal, small (minutes)"
	@echo "make lint        style, types, import directions"
	@echo "make docs        the site of docs/, into build/site; no link may lead nowhere"
	@echo "make dist        wheel and sdist into dist/, installed into an empty environment and tried (minutes)"
	@echo "make container   the images for CPUs, and the quickstart in one, where docker or podman answers"
	@echo "make bench       profile a step, measure training against other loops, and how cost grows (over 2 hours)"

$(VENV)/.train: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "groundup needs Python 3.11 or newer; name one with: make PYTHON=python3.12")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.train
	$(PIP_INSTALL) -e '.[bench]'
	@touch $@

quickstart: $(VENV)/.train
	$(BIN)/groundup quickstart
	@echo 'To type `groundup ...` as above, first: source $(BIN)/activate'

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not example and not exhaustive"

test-examples: $(VENV)/.dev
	$(BIN)/python -m pytest -m example

test-exhaustive: $(VENV)/.dev
	$(BIN)/python -m pytest -m exhaustive

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

dist: $(VENV)/.dev
	.ci/check-dist

container:
	.ci/build-images

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/step_profile.py
	$(BIN)/python benchmarks/train_cpu.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/plan_scale.py

clean:
	rm -rf $(VENV) quickstart dist build
