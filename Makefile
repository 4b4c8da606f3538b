# The same commands that CI runs. `make help` lists them. Everything is installed into .venv, except
# the system packages that scripts/need finds missing: as root it installs them, else it prints the
# command.
PYTHON ?= python3
# PYTEST_ARGS="-n0" runs the Python tests in one process, one after the other.
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
RUST := Cargo.toml $(wildcard Cargo.lock) $(shell find rust -path rust/fuzz -prune -o \( -name '*.rs' -o -name '*.c' -o -name '*.h' -o -name Cargo.toml \) -print)

# uv installs what pip would, in a tenth of the time, and keeps what it has unpacked. It reads no
# settings of pip: the index that pip's variable names is passed on.
UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
ifneq ($(UV_DEFAULT_INDEX),)
export UV_DEFAULT_INDEX
endif
# Modules that are compiled only when a test imports them would warn there, which is an error.
export UV_COMPILE_BYTECODE := 1
DEVELOP := PATH="$(abspath $(BIN)):$$PATH" $(BIN)/maturin develop --uv --release

# A panic names its source file without the path on this machine. All builds of the module use the
# same flags, because a change of flags rebuilds everything.
REMAPPED := $(strip $(RUSTFLAGS) --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo \
  --remap-path-prefix=$(CURDIR)=/fastrecord)
$(VENV)/.deps $(VENV)/.extension $(VENV)/.bench wheel test-python: export RUSTFLAGS := $(REMAPPED)

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: setup demo check check-rust check-python check-licenses check-workflows docs audit test test-rust build-test-rust test-python \
  torture bench bench-full bench-peers bench-micro wheel rustflags clean help

# maturin installs into the active environment: use .venv, whichever environment the caller's shell
# has activated.
export VIRTUAL_ENV := $(abspath $(VENV))
export PYO3_PYTHON := $(abspath $(BIN))/python
# cmake builds libjpeg-turbo; it comes from pip, like the rest.
export CMAKE := $(abspath $(BIN))/cmake
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip calls scripts/build_backend.py, which calls maturin.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
unexport CONDA_PREFIX PYTHONHOME

setup: $(VENV)/.extension ## install the package, in place, with all that demo, check and test need

demo: setup ## pack real images, train ResNet-50 with two processes on the CPU, show the result (some minutes)
	PATH="$(abspath $(BIN)):$$PATH" demo/run

check: check-rust check-python check-licenses check-workflows ## formatting, lints, types, the stubs of the compiled module, licences

check-rust: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

check-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml fastrecord._core

check-licenses: setup
	$(BIN)/python scripts/licenses.py

check-workflows: setup
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --offline --persona pedantic .github

docs: setup ## build the documentation as a site, site/index.html; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

audit: setup ## ask for known vulnerabilities of all that is used; needs a network and, once, some minutes
	scripts/audit $(BIN)/python

test: test-rust test-python ## every test: the core's, then the package's, the slow ones too

test-rust: setup
	if cargo nextest --version >/dev/null 2>&1; then \
	  cargo nextest run -p fastrecord-core -p fastrecord-model && cargo test -q -p fastrecord-core -p fastrecord-model --doc; \
	else \
	  cargo test -p fastrecord-core -p fastrecord-model; \
	fi

build-test-rust: $(VENV)/.tools # without the package and what it needs: CI does this meanwhile
	if cargo nextest --version >/dev/null 2>&1; then \
	  cargo nextest run --no-run -p fastrecord-core -p fastrecord-model; \
	else \
	  cargo test --no-run -p fastrecord-core -p fastrecord-model; \
	fi

test-python: setup
	marked=$$($(BIN)/python -c 'import torch; print("" if torch.cuda.is_available() else "not gpu")'); \
	$(BIN)/python -m pytest -m "$$marked" -n $(shell echo $$(($$(nproc) < 4 ? $$(nproc) : 4))) --dist worksteal $(PYTEST_ARGS)

torture: setup ## break things for some hours, and write what came of it into docs/reliability.md
	$(BIN)/python -m tests.torture --page docs/reliability.md

bench: $(VENV)/.bench ## every experiment in short, and their page, .cache/bench/report.md (15 minutes, some GB of disk)
	status=0; $(BIN)/python -m benches.experiments || status=$$?; \
	  $(BIN)/python -m benches.report .cache/bench/results/short --page .cache/bench/report.md; exit $$status

bench-full: bench-peers ## every experiment at length, into benches/results/full and docs/ (two hours, 25 GB of disk)
	status=0; $(BIN)/python -m benches.experiments --full --out benches/results/full || status=$$?; \
	  $(BIN)/python -m benches.report; exit $$status

bench-peers: $(VENV)/.bench ## install the other packages that bench measures if they are there, into .cache/bench/peers
	[ -x .cache/bench/peers/bin/python ] || $(BIN)/python -m benches.peers.install

bench-micro: $(VENV)/.bench ## measure single parts by pytest-benchmark (many minutes)
	$(BIN)/python -m pytest benches --timeout 3600 $(PYTEST_ARGS)

wheel: setup ## build dist/*.whl, for every CPython from 3.11 on and every Linux with glibc 2.28 or newer
	PATH="$(abspath $(BIN)):$$PATH" maturin build --release --zig --compatibility manylinux_2_28 --out dist
	$(BIN)/auditwheel show "$$(ls -t dist/*.whl | head -1)"

rustflags: # for tests that build a wheel
	@echo '$(REMAPPED)'

clean: ## remove what was built and made; .venv stays
	rm -rf target rust/fuzz/target dist site demo/out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f python/fastrecord/_core*.so $(VENV)/.extension

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.tools: pyproject.toml
	scripts/need $(PYTHON)
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q 'maturin>=1.9.4,<2' 'cmake>=3.28,<5' 'uv>=0.9,<1'
	touch $@

$(VENV)/.deps: $(VENV)/.tools pyproject.toml Cargo.toml
	$(DEVELOP) --extras dev,demo
	touch $@

$(VENV)/.extension: $(VENV)/.deps $(RUST)
	$(BIN)/maturin develop --release --skip-install
	touch $@

$(VENV)/.bench: $(VENV)/.extension
	$(DEVELOP) --extras bench
	touch $@
