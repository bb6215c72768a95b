# `make help` lists the targets. Everything is installed into $(VENV), nothing outside it.
PYTHON ?= python3
VENV ?= .venv
DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
PORT ?= 30000
MINUTES ?= 5
SEED ?=
ARGS ?=

SGLANG := sglang==0.5.23
BIN := $(VENV)/bin
# Compiling 50,000 files of bytecode at install takes longer than what is imported does, once: the
# first import of a module keeps its bytecode.
unexport PYTHONDONTWRITEBYTECODE
PIP := MAKEFLAGS= PYTHONWARNINGS=ignore PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip --disable-pip-version-check install --no-compile
BUILD := --quiet --no-deps --no-build-isolation --editable
STAMP := $(VENV)/.stamp
KERNEL_SOURCES := $(wildcard sgl-kernel/*.py sgl-kernel/*.toml sgl-kernel/csrc/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve bench audit doctor check format test test-slow soak test-gpu clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

ifeq ($(DEVICE),cuda)
setup: $(STAMP)-glance  ## build .venv: SGLang, its ops for this machine, GLANCE
else
setup: ; @$(MAKE) --no-print-directory --silent -j2 $(STAMP)-kernel $(STAMP)-glance
endif

demo: setup  ## start the server twice, plain and GLANCE, ask both about pictures, compare
	@$(BIN)/python -m sglang_glance demo $(ARGS)

serve: setup  ## serve the shipped model with GLANCE (PORT=30000)
	@BIN=$(BIN) DEVICE=$(DEVICE) PORT=$(PORT) scripts/serve.sh $(ARGS)

bench: setup  ## time plain decoding and GLANCE; split a round into its phases
	@$(BIN)/python -m sglang_glance bench $(ARGS)

audit: setup  ## compare GLANCE's tokens with plain decoding's; ARGS as in `... audit --help`
	@$(BIN)/python -m sglang_glance audit $(ARGS)

doctor: setup  ## what is installed, and whether GLANCE can start
	@$(BIN)/python -m sglang_glance doctor $(ARGS)

check: setup $(STAMP)-dev  ## lint, formatting, layers, sizes, Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/layers.py
	$(BIN)/python scripts/sizes.py
	$(BIN)/hadolint Dockerfile

format: $(STAMP)-dev  ## put the sources in ruff's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Triton's interpreter stands in for a GPU; it must be chosen before any kernel is defined.
test: setup $(STAMP)-dev  ## unit tests, then a real server on this machine
	TRITON_INTERPRET=$(if $(filter cpu,$(DEVICE)),1,0) OMP_NUM_THREADS=1 \
	    $(BIN)/python -m pytest test/unit -m "not slow" -n 2 --dist loadscope $(ARGS)
	$(BIN)/python -m pytest test/engine -m "not slow" $(ARGS)

test-slow: setup $(STAMP)-dev  ## the tests marked slow, and every shape of GLANCE on every prompt
	$(BIN)/python -m pytest test/unit -m slow $(ARGS)
	$(BIN)/python -m pytest test/engine -m slow --whole $(ARGS)
	$(BIN)/python -m pytest test/engine/test_lossless.py test/engine/test_bf16.py \
	    test/engine/test_qwen25vl.py -m "not slow" --whole $(ARGS)

soak: setup $(STAMP)-dev  ## mixed random traffic with aborts, checked (MINUTES=5, SEED=n replays)
	@PYTHONPATH=test:test/engine $(BIN)/python -m soak --minutes $(MINUTES) \
	    $(if $(SEED),--seed $(SEED)) $(ARGS)

test-gpu: setup  ## one script of checks on an NVIDIA GPU
	PYTHONPATH=test $(BIN)/python test/gpu/check.py $(ARGS)

clean:  ## remove build output and caches, keep .venv
	rm -rf out .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	rm -rf sgl-kernel/build sgl-kernel/sgl_kernel/*.so sgl-kernel/*.egg-info
	rm -rf python/build python/*.egg-info $(STAMP)-kernel
	find python sgl-kernel test scripts -name __pycache__ -prune -exec rm -rf {} +

$(STAMP)-venv: scripts/preflight.py
	@$(PYTHON) scripts/preflight.py $(DEVICE)
	@echo "setup: $(VENV), for $(DEVICE)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet pip==26.3  # reads the indexes three times as fast as the one in Python 3.11
	@touch $@

ifeq ($(DEVICE),cuda)
$(STAMP)-sglang: $(STAMP)-venv
	@echo "setup: $(SGLANG) with its device code, about 10 GB to download"
	@$(PIP) $(SGLANG) setuptools matplotlib rich scipy
	@touch $@
else
$(STAMP)-torch: requirements/torch.txt | $(STAMP)-venv
	@echo "setup: torch, about 3 GB to download"
	@$(PIP) -r $< -c requirements/cpu.txt
	@touch $@

$(STAMP)-kernel: $(KERNEL_SOURCES) | $(STAMP)-torch
	@echo "setup: compiling sgl-kernel/, a minute or two"
	@$(PIP) $(BUILD) ./sgl-kernel
	@touch $@

$(STAMP)-sglang: requirements/cpu.txt | $(STAMP)-torch
	@echo "setup: $(SGLANG) and what it imports on a CPU"
	@$(PIP) --quiet -r $<
	@$(PIP) --quiet --no-deps $(SGLANG)
	@touch $@
endif

$(STAMP)-glance: python/pyproject.toml python/sglang_glance.py | $(STAMP)-sglang
	@echo "setup: python/"
	@$(PIP) $(BUILD) ./python
	@touch $@

$(STAMP)-dev: requirements/dev.txt | $(STAMP)-glance
	@echo "setup: what checks and tests need"
	@$(PIP) --quiet -r $<
	@touch $@
