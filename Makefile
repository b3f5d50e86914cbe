# Entry points. demo, test, build and what follows from them first let scripts/bootstrap install what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PRESET ?= release
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
# DOSA_CUDA=ON: a build without the CUDA backend fails; OFF: it is left out; unset: as the tree was configured, else AUTO.
# Real traces and kernel vectors lie beside the checkout; tests that need them are skipped where there are none.
export DOSA_SHARED ?= $(abspath $(CURDIR)/../shared)

# A tree that was configured keeps its settings: a demo between two test runs must not drop the tests from it.
CONFIGURE_WITHOUT_TESTS = [[ -f $(BUILD)/CMakeCache.txt ]] || cmake --preset $(PRESET) -DDOSA_BUILD_TESTS=OFF
CPP_FILES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.h')

.PHONY: help demo build cuda test test-python install format format-check lint bench-numpy bench-cpu bench-hard clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1  \2/p' Makefile

demo: ## select a real indexer trace exactly, compare with the reference, draw what happened
	@scripts/bootstrap build
	@$(CONFIGURE_WITHOUT_TESTS)
	@cmake --build $(BUILD) --target dosa_cli -j $(JOBS)
	@scripts/demo $(BUILD)/bin/dosa

build: ## library, command line, tests
	@scripts/bootstrap build test
	cmake --preset $(PRESET) -DDOSA_BUILD_TESTS=ON $(if $(DOSA_CUDA),-DDOSA_CUDA=$(DOSA_CUDA))
	cmake --build $(BUILD) -j $(JOBS)

cuda: ## the same with the CUDA backend, in build/cuda; without an nvcc it installs one into .cuda (104 MB)
	@scripts/cuda_toolkit
	@$(MAKE) --no-print-directory build PRESET=cuda DOSA_CUDA=ON

test: build ## everything that must hold, on this machine's instruction sets
	ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error
	@$(MAKE) --no-print-directory test-python

test-python: ## `pip install .` into a fresh virtual environment, then the Python tests
	@scripts/bootstrap build python
	scripts/python_test

install: ## to PREFIX (default /usr/local): library, headers, command line, CMake package, pkg-config file
	@scripts/bootstrap build
	@$(CONFIGURE_WITHOUT_TESTS)
	cmake --build $(BUILD) -j $(JOBS)
	cmake --install $(BUILD) --prefix $(PREFIX)

format: ## lay out all C++ files (clang-format 14 is the reference)
	@scripts/bootstrap check
	@clang-format -i $(CPP_FILES)

format-check:
	@scripts/bootstrap check
	@scripts/format-check $(CPP_FILES)

lint: ## clang-tidy over library and command line
	@scripts/bootstrap build test check
	@scripts/lint

bench-numpy: ## dosa against NumPy float32 in one run (NumPy goes into .venv)
	@scripts/bootstrap build bench
	@$(CONFIGURE_WITHOUT_TESTS)
	@cmake --build $(BUILD) --target dosa_cli -j $(JOBS)
	@[[ -x .venv/bin/python ]] || python3 -m venv .venv
	@.venv/bin/python -c 'import numpy, threadpoolctl' 2>/dev/null || .venv/bin/pip install --quiet numpy threadpoolctl
	.venv/bin/python bench/numpy_baseline.py --dosa $(BUILD)/bin/dosa

bench-cpu: ## every 64K trace, K 2048, 2 threads: bench/results/cpu-<processor>-<date>.{json,md}
	@scripts/bootstrap build bench
	@$(CONFIGURE_WITHOUT_TESTS)
	@cmake --build $(BUILD) --target dosa_cli -j $(JOBS)
	bench/run_cpu_bench --dosa $(BUILD)/bin/dosa

bench-hard: ## auto over dense on every hard input: bench/results/hard-<processor>-<isa>-<date>.{json,md}
	@scripts/bootstrap build bench
	@$(CONFIGURE_WITHOUT_TESTS)
	@cmake --build $(BUILD) --target dosa_cli -j $(JOBS)
	bench/run_hard_inputs --dosa $(BUILD)/bin/dosa

clean: ## remove the build folders
	rm -rf build
