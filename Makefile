# Makefile: plain verbs in front of CMake. `make help` lists them.
#
# SPDX-License-Identifier: Apache-2.0
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
BUILD := build/release
PYTHON ?= python3
SEEDS ?= 200

.PHONY: build cubins help test test-torch test-jax test-embeddings test-pythons demo demo-all demo-recommend demo-seeds bench wheel lint format asan tsan alloc-fail fuzz emulate install clean

build: ## the library, the command and the examples (build/release)
	@mkdir -p build
	@cmake --preset release >build/release.log 2>&1 || { cat build/release.log; exit 1; }
	@cmake --build --preset release -j $(JOBS) -- --no-print-directory

cubins: build ## every GPU kernel; registers, spills, stack and shared memory of each in build/cubins.json
	@cp $(BUILD)/cubins.json build/cubins.json
	@$(PYTHON) -c "import json, sys; n = len(json.load(open('build/cubins.json'))); print(n, 'kernels, no spills, no stack: build/cubins.json'); sys.exit(0 if n else 'no nvcc: no kernels')"

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

test: build ## every test; ends with the line "N passed, N failed"
	@$(PYTHON) scripts/test $(BUILD) --jobs $(JOBS)

test-torch test-jax test-embeddings: build ## Python tests that need PyTorch, JAX or a sentence encoder, each in an environment
	@$(PYTHON) scripts/test_framework $(BUILD) $(@:test-%=%)

test-pythons: wheel ## the package's tests on every supported Python that is here (PATH, pyenv), over the wheel
	@$(PYTHON) scripts/test_pythons build/wheel/mxattn-*.whl

wheel: ## the Python wheel (build/wheel)
	@$(PYTHON) scripts/wheel

demo: build ## trains a small language model with float32 and with MXFP8 attention
	@examples/train_lm/demo.sh $(BUILD)

demo-all: build ## the same three times: float32, MXFP8 attention, every activation in MXFP8
	@examples/train_lm/demo.sh $(BUILD) float32,mxfp8,mxfp8-all

demo-recommend: build ## a sequence recommender, no causal mask, three times as demo-all
	@$(BUILD)/train_lm --task recommend --attention float32,mxfp8,mxfp8-all --out build/demo-recommend

demo-seeds: build ## demo-all for three seeds; TRAIN="--task recommend --width 256" for others; AT_ONCE trainings of THREADS each
	@AT_ONCE=$(AT_ONCE) THREADS=$(THREADS) examples/train_lm/seeds.sh $(BUILD) $(TRAIN)

emulate: build ## the Blackwell forward on the emulator under SEEDS schedules of each case (default 200)
	@$(BUILD)/tests/emu_test_sm100_forward $(SEEDS)

bench: build ## speed of every operation on a small shape; JSON to build/bench.json
	@$(BUILD)/mxattn bench all --batch 1 --seqlen 2048 --heads 8 --kv-heads 2 --head-dim 128 --causal --json build/bench.json

lint: ## dependency law, names, style
	@$(PYTHON) scripts/lint

format: ## clang-format 14 over our sources
	@$(PYTHON) scripts/lint --format

asan tsan alloc-fail: ## C tests under a sanitizer; alloc-fail: every allocation fails once
	@PYTHON=$(PYTHON) JOBS=$(JOBS) scripts/sanitize $@

fuzz: ## each fuzz target for FUZZ_SECONDS (default 20), with clang's libFuzzer
	@scripts/fuzz

install: build ## into PREFIX (default /usr/local); honours DESTDIR
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## removes build/
	@rm -rf build
