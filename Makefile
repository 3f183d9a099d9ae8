# sgnb: every target works alone on a fresh machine with Python 3.11+, Node 20+ and the package registries.
# What is already done is not done again: see .stamps/. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# What was compiled once is not compiled at every start: a kernel and an engine import some hundred modules.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := .stamps
LABEXT := sgnb/labextension
LAB_LINK := $(VENV)/share/jupyter/labextensions/sgnb
LAB_SOURCES := $(wildcard labextension/src/*.ts labextension/style/* labextension/schema/* sgnb/widgets/static/*) \
	labextension/package.json labextension/tsconfig.json labextension/install.json
MODEL := smollm2-135m-instruct

# Seconds a suite may take on two busy cores; together 45 minutes. A suite that hangs is ended, not waited for, and by an
# interrupt, so that it still prints what failed before.
BUDGET_unit := 350
BUDGET_engine := 790
BUDGET_kernel := 370
BUDGET_notebooks := 330
BUDGET_browser := 620
BUDGET_peer := 240
BUDGET_soak := 7200
SUITES := unit engine peer kernel notebooks browser
PYTEST := $(PY) -m pytest -q --durations=20 --durations-min=0.5

.PHONY: help setup model peer demo lab test soak check bench clean chromium $(SUITES:%=test-%) $(SUITES:%=suite-%)

help:
	@echo "make setup      environment, side panel, model"
	@echo "make demo       run the quickstart and print each cell's answer"
	@echo "make lab        JupyterLab with the quickstart open"
	@echo "make test       all suites: $(SUITES) (each alone: make test-unit, ...)"
	@echo "make check      format, lint, types, import rules, TypeScript"
	@echo "make soak       the long rounds"
	@echo "make bench      speed, printed"
	@echo "make clean      remove everything that was made here"

# ------------------------------------------------------------ set-up

setup: $(STAMPS)/python $(STAMPS)/labextension model peer

# torch first: its version is chosen here, and the package's own range is then already met.
# The link goes before pip runs: pip removes an earlier install's files, and would do so through it.
$(STAMPS)/python: pyproject.toml
	@mkdir -p $(STAMPS)
	@test -x $(PY) || python3 -m venv $(VENV)
	@rm -rf $(LAB_LINK)
	$(BIN)/pip install -q --disable-pip-version-check torch==2.13.0
	SKIP_JUPYTER_BUILDER=1 $(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

$(STAMPS)/npm: labextension/package-lock.json labextension/package.json
	@mkdir -p $(STAMPS)
	cd labextension && npm ci --silent --no-fund --no-audit
	@touch $@

$(STAMPS)/labextension: $(STAMPS)/python $(STAMPS)/npm $(LAB_SOURCES)
	cd labextension && PATH="$(abspath $(BIN)):$$PATH" npm run --silent build:prod
	@rm -rf $(LAB_LINK) && mkdir -p $(dir $(LAB_LINK)) && ln -s "$(abspath $(LABEXT))" $(LAB_LINK)
	@touch $@

model: $(STAMPS)/python
	@$(BIN)/sgnb models pull $(MODEL)

# SGLang's own front end and test programs, which tests/peer compares with; nothing of it is part of this project.
peer: $(STAMPS)/peer

$(STAMPS)/peer: $(STAMPS)/python tests/peer/get_sglang.py
	$(PY) tests/peer/get_sglang.py .peer
	@touch $@

chromium:
	@if ! command -v chromium >/dev/null && [ -z "$${SGNB_CHROMIUM:-}" ]; then \
	  as_root=""; [ "$$(id -u)" = 0 ] || as_root=sudo; \
	  $$as_root apt-get update -q >/dev/null; \
	  DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -q -y --no-install-recommends \
	    chromium fonts-dejavu-core >/dev/null; \
	fi

# ------------------------------------------------------------ use

demo: setup
	@SGNB_DISPLAY=static $(PY) notebooks/run_notebook.py notebooks/quickstart.ipynb

lab: setup
	@$(PY) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/quickstart.ipynb

# ------------------------------------------------------------ tests

# All suites run, whatever the earlier ones gave; one summary line each; fails when any failed.
test: setup chromium
	@failed=""; \
	for suite in $(SUITES); do \
	  $(MAKE) --no-print-directory suite-$$suite || failed="$$failed $$suite"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed suites:$$failed"; exit 1; fi; \
	echo "All suites passed: $(SUITES)"

$(SUITES:%=test-%): test-%: setup suite-%
test-browser: chromium
suite-browser: | chromium

suite-unit suite-engine suite-peer suite-kernel suite-browser: suite-%:
	@echo "== $*"
	@timeout --signal=INT --kill-after=60 $(BUDGET_$*) $(PYTEST) -m 'not soak' tests/$*

suite-notebooks:
	@echo "== notebooks"
	@timeout --signal=INT --kill-after=60 $(BUDGET_notebooks) $(PYTEST) tests/notebooks

soak: setup
	@timeout --signal=INT --kill-after=60 $(BUDGET_soak) $(PYTEST) -m soak tests/unit tests/engine tests/kernel

bench: setup
	@for script in tests/bench/bench_*.py; do echo "== $$script"; $(PY) $$script; done

check: $(STAMPS)/python $(STAMPS)/npm
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) tests/unit/test_source_rules.py
	cd labextension && npm run --silent check

clean:
	rm -rf $(VENV) $(STAMPS) .peer $(LABEXT) dist build *.egg-info test-results .import_linter_cache
	rm -rf labextension/node_modules labextension/lib labextension/tsconfig.tsbuildinfo
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
