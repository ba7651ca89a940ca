# Commands for development. Each sets up its requirements in .venv; only the tests need PyTorch.

PYTHON ?= python3
WORKERS ?= 2
VENV ?= .venv
PYTHONS := python3.11 python3.12 python3.13 python3.14
BIN := $(VENV)/bin
CPP := $(shell find native -name '*.cpp' -o -name '*.h')
NATIVE := $(CPP) $(wildcard native/CMakeLists.txt native/*.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DELETE_ON_ERROR:
.PHONY: help demo native test test-all test-long test-pythons lint examples docs dist clean

help:
	@echo "make demo      train a Tree-LSTM, batched, and compare the batching policies"
	@echo "make native    rebuild the native core, in place, if its sources have changed"
	@echo "make test      linters, type checker, tests, doctests and the packaging test"
	@echo "make test-all  make test with the slow tests"
	@echo "make test-long     the remaining tests: more random programs, every sample of every op, other processors"
	@echo "make test-pythons  make test with each installed Python of $(PYTHONS)"
	@echo "make lint      linters and type checker only"
	@echo "make examples  run the scripts and notebooks of the examples, and write their output"
	@echo "make docs      build the documentation site, in site/"
	@echo "make dist      build the archives of a release twice, in dist/, and check them"
	@echo "make clean     remove the virtual environment, all caches and build outputs"

demo: $(VENV)/runtime
	@$(BIN)/python -m autobatch.cli.training.demo

native: $(VENV)/runtime

test: lint
	@$(BIN)/pytest -n $(WORKERS)

test-all: lint $(VENV)/interop $(VENV)/wheels
	@$(BIN)/pytest -n $(WORKERS) -m "not long and not gpu"

test-long: $(VENV)/interop
	@$(BIN)/pytest -n $(WORKERS) -m "long and not gpu"

test-pythons:
	@for python in $(PYTHONS); do \
	  if command -v $$python >/dev/null; then $(MAKE) test PYTHON=$$python VENV=.venv-$$python || exit 1; \
	  else echo "$$python is not installed: skipped"; fi; done

lint: $(VENV)/development
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

examples: $(VENV)/development
	@$(BIN)/python tools/example_outputs.py
	@$(BIN)/python tools/notebooks.py

docs: $(VENV)/documents
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html, or serve it with search: $(BIN)/python -m http.server --directory site"

dist: $(VENV)/wheels
	@$(BIN)/python tools/make_dist.py

clean:
	@rm -rf .venv .venv-* site .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build autobatch/_native*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# If only the native sources have changed, only the module is rebuilt.
$(VENV)/runtime: pyproject.toml autobatch/release.py $(NATIVE) $(BIN)/python
	@echo "Installing autobatch into $(VENV) ..."
	@$(if $(filter-out $(NATIVE),$?),$(PIP) install --editable .,$(BIN)/python tools/build_native.py)
	@touch $@

$(VENV)/development: $(VENV)/runtime
	@echo "Installing the development tools into $(VENV) (PyTorch takes a while) ..."
	@$(PIP) install 'autobatch-nn[dev]'
	@touch $@

$(VENV)/interop: $(VENV)/development
	@echo "Installing the libraries that autobatch works with into $(VENV) ..."
	@$(PIP) install 'autobatch-nn[interop]'
	@touch $@

$(VENV)/wheels: $(VENV)/development
	@echo "Installing the tools that build and check wheels into $(VENV) ..."
	@$(PIP) install 'autobatch-nn[wheels]'
	@touch $@

$(VENV)/documents: $(VENV)/runtime
	@echo "Installing MkDocs into $(VENV) ..."
	@$(PIP) install 'autobatch-nn[docs]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "autobatch needs Python 3.11 or newer, but '$(PYTHON) --version' says '$$($(PYTHON) --version 2>&1)':" \
	    "name a newer one, as in 'make test PYTHON=python3.12'." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
