# `make demo` and `make test` set up everything they need, in a virtual environment of the checkout.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 50051

# Tests run many small models, some beside each other.  Threads that spin while they wait keep others
# off the cores that those wait for: with two models on two cores, a step takes ten times as long.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# ---- environment

$(VENV)/.pip:
	@command -v $(PYTHON) >/dev/null || { echo "error: there is no $(PYTHON); set PYTHON=/path/to/python3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: structgen needs Python 3.11 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' # the first with --group
	@touch $@

# What it takes to run; what it takes to develop has all of it.  One pip call each, so that pip sees
# all requirements together.
$(VENV)/.run: $(VENV)/.pip pyproject.toml
	@echo "installing structgen and what it runs on into $(VENV); this takes some minutes"
	@$(BIN)/python -m pip install --quiet --editable . --group examples
	@touch $@

$(VENV)/.dev: $(VENV)/.pip pyproject.toml
	@echo "installing structgen and what its tests and checks need into $(VENV); this takes some minutes"
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $(VENV)/.run $@

.PHONY: setup
setup: $(VENV)/.dev ## virtual environment with everything for development

# ---- use

.PHONY: demo
demo: $(VENV)/.run ## fetch the model, serve it, extract three documents, stop
	$(BIN)/structgen pull
	$(BIN)/python examples/demo.py

.PHONY: serve
serve: $(VENV)/.run ## serve the default model; PORT=N, ARGS="--option ..."
	$(BIN)/structgen serve --port $(PORT) $(ARGS)

# ---- develop

.PHONY: lint
lint: $(VENV)/.dev ## format, lint and types of everything, without running it
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	@if [ -x $(BIN)/buf ]; then echo "$(BIN)/buf lint protos"; $(BIN)/buf lint protos; \
	else echo "buf is not to be had here: protos not linted"; fi

.PHONY: check
check: lint ## lint, and the quick tests
	$(TEST_ENV) $(BIN)/pytest -m "not slow and not network" $(ARGS)

.PHONY: test
test: lint ## lint, and all tests
	$(TEST_ENV) $(BIN)/pytest $(ARGS)

.PHONY: smoke
smoke: $(VENV)/.dev ## call a server with buf curl and grpcurl, as strangers do
	$(TEST_ENV) $(BIN)/python smoke/smoke.py $(ARGS)

.PHONY: bench
bench: $(VENV)/.dev ## measure; a quiet machine and patience, please
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/serve.py

.PHONY: protos
protos: $(VENV)/.dev ## generate the Python code of the protos anew
	$(BIN)/python protos/generate.py

.PHONY: clean
clean: ## remove the virtual environment and everything generated; models stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
