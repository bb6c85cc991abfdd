# Everything runs in .venv, which the first call makes. `make help` lists the targets.

PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
ACCURACY_ARGS ?=
REPRODUCE_ARGS ?= all

# worksteal: each worker begins with one half of the tests, in order, so that what the tests of a file share (fixtures,
# divisions, what jax has compiled) is made once, and takes from the other when it is done.
XDIST := -n 2 --dist worksteal

# XLA optimises little in `make test`, which then takes half of the time, and as for users in the longer ones.
OPTIMISED := ANABRANCH_OPTIMISED=1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.anabranch-installed
DOCS_INSTALLED := $(VENV)/.anabranch-docs-installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-versions test-ray lint format bench accuracy reproduce docs gallery clean

help: ## list the targets
	@echo "usage: make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 13
	@echo "variables: PYTHON=$(PYTHON) (3.11 or newer), PYTEST_ARGS, DEMO_ARGS, BENCH_ARGS, ACCURACY_ARGS,"
	@echo "           REPRODUCE_ARGS"

# Made once, and again when pyproject.toml changes. An existing .venv is kept and installed into.
$(INSTALLED): pyproject.toml
	@test -x $(BIN)/python || { \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	        echo "Anabranch needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }; \
	    echo "==> making $(VENV)"; \
	    $(PYTHON) -m venv $(VENV); }
	@echo "==> installing anabranch and its development tools (once, a minute or two)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[docs]'
	@touch $@

demo: $(INSTALLED) ## infer two of the paper's programs and write mixture.png (DEMO_ARGS=file: elsewhere)
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

test: lint ## lint, then run the tests and the examples in docstrings
	@echo "==> pytest"
	@$(BIN)/python -m pytest $(XDIST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(INSTALLED) ## run the tests that `make test` leaves out, which take long
	@echo "==> pytest, slow"
	@$(OPTIMISED) $(BIN)/python -m pytest $(XDIST) -m slow $(PYTEST_ARGS)
	@echo "==> pytest, more examples"
	@$(OPTIMISED) ANABRANCH_EXAMPLES=10 $(BIN)/python -m pytest $(XDIST) $(PYTEST_ARGS) tests/divide/test_properties.py

test-versions: $(INSTALLED) ## run the tests with the oldest and the newest versions of Python, jax and NumPyro supported
	@$(OPTIMISED) $(BIN)/nox -- $(PYTEST_ARGS)

test-ray: $(INSTALLED) ## run the tests that need Ray, in an environment of their own
	@$(BIN)/nox -s ray -- $(PYTEST_ARGS)

lint: $(INSTALLED) ## check style and types
	@echo "==> ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --quiet --check . || { echo "some files are not formatted: run 'make format'"; exit 1; }
	@echo "==> mypy"
	@$(BIN)/mypy --no-error-summary

format: $(INSTALLED) ## format the code and fix what can be fixed
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

bench: $(INSTALLED) ## measure how fast programs are divided into paths, the interpreter, inference, and the engines
	@$(BIN)/python benchmarks/divide.py
	@$(BIN)/python benchmarks/interpreter.py
	@$(BIN)/python benchmarks/infer.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/engines.py --budget 20000

accuracy: $(INSTALLED) ## compare answers with the truth, seed by seed (hours; ACCURACY_ARGS="--only induction")
	@$(BIN)/python benchmarks/accuracy.py $(ACCURACY_ARGS)

reproduce: $(INSTALLED) ## run the paper's experiments again (hours; REPRODUCE_ARGS="all --quick": two minutes)
	@$(BIN)/anabranch reproduce $(REPRODUCE_ARGS)

docs: $(DOCS_INSTALLED) ## build the site into site/, strictly: a broken link is an error
	@$(BIN)/mkdocs build --quiet
	@echo "the site is in site/index.html"

gallery: $(INSTALLED) ## run the problems of the gallery, and write its page (some minutes)
	@$(BIN)/python examples/gallery/build.py

clean: ## remove caches and build output; .venv stays
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
	@echo "clean; to make the environment anew as well: rm -rf $(VENV)"
