# Everything below needs only Rust (cargo, rustfmt, clippy), Python >= 3.11 with venv, and a C linker.
#
#   make demo   install into .venv and search a GPT of 2.7 billion parameters on 8 A100
#   make test   the whole suite, Rust and Python, as CI runs it
#   make peers  a table of times against other solvers and libraries, installed from PyPI for it

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# pip and cargo are parallel themselves, and two of a kind would wait for each other.
.NOTPARALLEL:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CARGO  ?= cargo

export VIRTUAL_ENV := $(abspath $(VENV))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pyo3 binds against the interpreter of the virtual environment, whatever else is on the path.
export PYO3_PYTHON := $(abspath $(BIN)/python)

NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src -name '*.rs')

.PHONY: help demo test lint lint-rust lint-python test-rust test-python instructions peers native dev clean

help:
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)

# ---------------------------------------------------------------------------- environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tensoropt needs Python 3.11 or newer: run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-requirements: pyproject.toml tools/constraints.txt | $(BIN)/python
	$(BIN)/python tools/requirements.py plot progress > $@.txt
	echo 'maturin>=1.9.4,<2' >> $@.txt
	$(BIN)/python -m pip install --quiet -c tools/constraints.txt -r $@.txt
	touch $@

$(VENV)/.dev-requirements: pyproject.toml tools/constraints.txt | $(BIN)/python
	$(BIN)/python tools/requirements.py all dev > $@.txt
	$(BIN)/python -m pip install --quiet -c tools/constraints.txt -r $@.txt
	touch $@ $(VENV)/.demo-requirements

# The package is installed in place: the extension module is built with optimisation (maturin's own
# default is not) and lies beside the Python sources.
$(VENV)/.native: $(NATIVE_SOURCES) | $(VENV)/.demo-requirements
	PIP_QUIET=1 $(BIN)/maturin develop --release --quiet
	touch $@

native: $(VENV)/.native

dev: $(VENV)/.dev-requirements $(VENV)/.native

# ---------------------------------------------------------------------------- demo

demo: $(VENV)/.demo-requirements $(VENV)/.native
	$(BIN)/tensoropt search --example gpt-2.7b --cluster 8xA100-SXM-80GB

# ---------------------------------------------------------------------------- test

test: lint test-rust test-python instructions
	@echo "make test: all passed"

lint: lint-rust lint-python

lint-rust: | $(BIN)/python
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --quiet --locked --all-targets --features serde -- -D warnings
	$(CARGO) clippy --quiet --locked --all-targets --features python -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --no-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --no-deps --features serde
	@if $(CARGO) tree --locked --edges normal | grep -E 'pyo3|serde|flate2'; then \
		echo "these are dependencies without a feature" >&2; exit 1; fi
	@if $(CARGO) tree --locked --edges normal --features serde | grep -E 'pyo3'; then \
		echo "this is a dependency without the feature python" >&2; exit 1; fi

lint-python: $(VENV)/.dev-requirements $(VENV)/.native
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --concise tensoropt._native
	$(BIN)/python tools/stub_docs.py

# With the feature python the tests link against libpython, which some systems ship only in a
# development package. No Rust test calls into Python, so where it is missing the crate is built the
# way an extension module is, with those symbols left open.
OPEN_SYMBOLS = $(if $(shell $(BIN)/python tools/libpython.py),PYO3_BUILD_EXTENSION_MODULE=1)

test-rust: | $(BIN)/python
	$(CARGO) test --quiet --locked --workspace
	$(CARGO) test --quiet --locked --features serde --lib exchange
	$(CARGO) test --quiet --locked --features serde --test exchange --test iopddl --test malformed --test soak
	$(CARGO) test --quiet --locked --features serde --doc exchange
	$(OPEN_SYMBOLS) $(CARGO) test --quiet --locked --features python --lib
	$(OPEN_SYMBOLS) $(CARGO) test --quiet --locked --features python --doc

test-python: $(VENV)/.dev-requirements $(VENV)/.native
	$(BIN)/python -m pytest

# Counts instructions of sequential paths under valgrind, and says so where that is not installed.
instructions:
	@$(PYTHON) tools/instructions.py

peers: $(VENV)/.native
	$(BIN)/python -m pip install --quiet scipy moocore pytoulbar2 ortools
	$(BIN)/python tools/peers.py

clean:
	rm -rf target $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/tensoropt/_native*.so frontier.json frontier.png
