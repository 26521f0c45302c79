# fedsieve: `make help` lists the targets. Needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0
export FEDSIEVE_DATA ?= $(abspath $(firstword $(wildcard data ../shared/data)))
PYTEST_FLAGS ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test test-matrix e2e soak check audit licences format package bench bench-wire fuzz pages docs screenshot clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## build .venv with everything (only what changed)

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsieve needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch by version, not by hash: the CPU build and the one for NVIDIA cards are different files.
$(STAMP): $(BIN)/pip requirements/dev.lock pyproject.toml
	$(PIP) install --require-hashes --requirement requirements/dev.lock
	$(PIP) install $(TORCH)
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

lock: setup  ## requirements/dev.lock from pyproject.toml; UPGRADE=--upgrade for newer versions
	echo $(TORCH) | $(BIN)/uv pip compile pyproject.toml --extra dev --quiet --universal --python-version 3.11 \
	  --generate-hashes --constraints - --excludes requirements/not_locked.txt --no-emit-package torch \
	  --custom-compile-command 'make lock' --output-file requirements/dev.lock $(UPGRADE)

demo: setup  ## seven methods on embedded data, in about a minute
	@$(BIN)/fedsieve demo

test: setup  ## run all tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# Each pair has a venv of its own below .matrix; MATRIX_TESTS and PAIRS narrow it down.
PAIRS ?= 3.11:2.6.0 3.13:$(TORCH:torch==%=%)
MATRIX_TESTS ?= tests
test-matrix:  ## run all tests on other pairs of Python and torch: PAIRS="3.11:2.6.0 3.13:2.13.0"
	@for pair in $(PAIRS); do \
	  echo "Python $${pair%%:*}, torch $${pair##*:}" && \
	  $(MAKE) --no-print-directory test PYTHON=python$${pair%%:*} VENV=.matrix/$${pair%%:*}-$${pair##*:} \
	    TORCH=torch==$${pair##*:} PYTEST_FLAGS="$(PYTEST_FLAGS) $(MATRIX_TESTS)" || exit 1; \
	done

e2e: setup  ## deployments on real processes with faults (10 to 30 minutes)
	$(BIN)/python -m pytest -m e2e tests/e2e

SOAK_MINUTES ?= 60
SOAK_SEED ?= 1
soak: setup  ## a deployment under random kills, stops and garbage: SOAK_MINUTES=60, SOAK_SEED=1
	$(BIN)/python tests/e2e/soak.py --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED)

check: setup  ## lint, format, types, import rules, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/locked.py
	$(BIN)/python tools/licences.py --check
	$(BIN)/python tools/audit.py

audit: setup  ## known vulnerabilities of what is locked; needs the network
	$(BIN)/python tools/audit.py --must-run

licences: setup  ## docs/licences.md from the packages' own metadata
	$(BIN)/python tools/licences.py

format: setup  ## put code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

package: setup  ## build wheel and sdist, check them, and use the wheel alone in a fresh environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv dist/fresh
	dist/fresh/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	dist/fresh/bin/pip install --quiet --disable-pip-version-check dist/*.whl $(TORCH)
	dist/fresh/bin/pip check
	cd dist && fresh/bin/fedsieve --version && fresh/bin/fedsieve methods
	cd dist && FEDSIEVE_DATA= fresh/bin/fedsieve run --rounds 2 --out run

bench: setup  ## speed beside a hand-written loop, and the share of a step that is not training (minutes)
	$(BIN)/python benchmarks/speed/rounds.py
	$(BIN)/python benchmarks/speed/matching.py
	$(BIN)/python benchmarks/speed/steps.py

bench-wire: setup  ## bytes against the information limit, and coding speed (minutes)
	$(BIN)/python benchmarks/speed/wire.py
	$(BIN)/python benchmarks/speed/compressors.py

fuzz: setup  ## a million mutated frames against the decoder (an hour)
	$(BIN)/python tests/fuzz/frames.py --frames 1000000

pages: setup  ## the tables of docs/results from results/; CHECK=--check only compares
	$(BIN)/python benchmarks/studies/pages.py $(CHECK)

docs: setup  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

screenshot: setup  ## docs/figures/report.png from the newest demo's page, or PAGE=...
	$(BIN)/python tools/screenshot.py $(PAGE)

clean:  ## remove what was built
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .matrix
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
