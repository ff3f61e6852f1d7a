# Every target does all its own set-up in .venv; a second call reinstalls nothing.
#   make run      serve the embedded model on 127.0.0.1:8000        make check    ruff, pyright, import contracts
#   make demo     a 15-turn chat with prefix caching off and on     make bench    measure everything, write bench/results/
#   make test     all tests                                        make claims   every measured claim and its target
#   make peers    install the programs Kvasir is compared with     make bench-peers   Kvasir beside them, in turns
# Variables: PYTHON=python3.12  ARGS="--port 9000"  PYTEST_ARGS="tests/unit -x"  PEERS="openvino-genai transformers"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Development pins one PyTorch, so that everybody measures and tests the same kernels; the package allows a range.
TORCH ?= torch==2.13.0
ARGS ?=
PYTEST_ARGS ?=
# Which peers to install; none named: llama-cpp-python, openvino-genai and transformers.
PEERS ?=

VENV := .venv
BIN := $(VENV)/bin
# pip draws its own progress on a terminal and is silent elsewhere.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(QUIET)
SOURCES := pyproject.toml $(wildcard CMakeLists.txt) \
	$(shell find src/kvasir -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name 'CMakeLists.txt' \) 2>/dev/null)
INSTALLED := $(VENV)/.installed

.PHONY: help run demo test check bench peers bench-peers claims readme clean setup

help:
	@sed -n '2,6p' Makefile | sed 's/^# \{0,3\}//'

run: $(INSTALLED)
	@exec $(BIN)/kvasir serve $(ARGS)

demo: $(INSTALLED)
	@exec $(BIN)/kvasir demo $(ARGS)

test: $(INSTALLED)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(INSTALLED)
	@$(BIN)/ruff check src tests bench
	@$(BIN)/ruff format --check src tests bench
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@$(BIN)/lint-imports --no-cache

bench: $(INSTALLED)
	@$(BIN)/python bench/run_all.py $(ARGS)

peers: $(INSTALLED)
	@cd bench && ../$(BIN)/python -m side_by_side.install $(PEERS)

bench-peers: $(INSTALLED)
	@$(BIN)/python bench/peers.py $(ARGS)

readme: $(INSTALLED)
	@$(BIN)/python bench/readme.py $(ARGS)

claims: $(INSTALLED)
	@$(BIN)/python bench/claims.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(INSTALLED)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Kvasir needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1); name another with 'make PYTHON=python3.12 ...'." >&2; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
		{ echo "Kvasir builds its kernels with a C++ compiler, and none of c++, g++ and clang++ was found." >&2; exit 1; }
	@echo "set-up: $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

# PyTorch first and exactly pinned: the resolver must not pick another build for the packages that need one.
$(VENV)/.torch: $(VENV)/.created
	@echo "set-up: $(TORCH)"
	@$(PIP) '$(TORCH)'
	@touch $@

$(INSTALLED): $(VENV)/.torch $(SOURCES)
	@echo "set-up: packages and kernels"
	@$(PIP) 'scikit-build-core>=0.11' 'nanobind>=2.4' ninja cmake
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
