# Everything a clone needs, it makes itself: `make demo` and `make test` are the two commands to know.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export HF_HUB_OFFLINE ?= 1
# Workers are started by the dozen, and without compiled modules each start takes eight seconds more.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests share nothing (each process has a broker and topics of its own), so they run side by side.
JOBS ?= 2
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# --- set-up -----------------------------------------------------------------
$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

.PHONY: setup
setup: $(READY) ## Make the virtual environment

.PHONY: java
java: # before the set-up wherever both are needed: a missing Java is said at once, not after minutes
	@scripts/require-java.sh

# --- the two commands -------------------------------------------------------
.PHONY: demo
demo: java $(READY) ## Kafka, a worker, a batch flood and an urgent prompt, on this machine
	@$(BIN)/headrace demo

.PHONY: test
test: java $(READY) lint types unit integration ## All that CI runs (15 minutes on 2 cores)

# --- parts of test ----------------------------------------------------------
.PHONY: lint
lint: $(READY) ## Format, lint and import-direction check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo

.PHONY: types
types: $(READY) ## mypy --strict
	@$(BIN)/mypy

.PHONY: unit
unit: $(READY) ## Unit, property and simulation tests: no broker, no real model
	@$(PYTEST) tests -m "not broker and not model"

.PHONY: integration
integration: java $(READY) ## Tests on Apache Kafka and SmolLM2
	@$(PYTEST) tests -m "(broker or model) and not long"

# --- longer runs ------------------------------------------------------------
.PHONY: properties
properties: $(READY) ## Property tests with many examples
	@HYPOTHESIS_PROFILE=long $(BIN)/pytest tests/properties tests/kvcache tests/scheduling

.PHONY: preemption
preemption: $(READY) ## Not one token changes under preemption: all of SmolLM2, each mode (about 10 minutes)
	@$(BIN)/pytest -s tests/integration/models/test_preempted_model_tokens.py

.PHONY: chaos
chaos: java $(READY) ## Workers and brokers killed at full size (an hour; a case with a result in out/chaos is not run again)
	@$(BIN)/pytest -s -m "chaos and long" tests/chaos --ignore tests/chaos/test_soak.py

.PHONY: stories
stories: java $(READY) ## Jobs of 2,000 rows on SmolLM2: whole, killed, cancelled, expired (an hour; ROWS=N is fewer)
	@for story in whole killed cancelled expired; do \
		$(BIN)/python -m benchmarks.batch_stories $$story --rows $${ROWS:-2000} || exit 1; done

.PHONY: soak
soak: java $(READY) ## A hundred thousand small requests: memory and descriptors stay as they are (about 10 minutes)
	@$(BIN)/pytest -s -m long tests/chaos/test_soak.py

.PHONY: schemas
schemas: java $(READY) ## Two hundred JSON Schemas drawn at random through the real model (some minutes)
	@$(BIN)/pytest -s -m long tests/integration/worker/test_schemas.py

.PHONY: fuzz
fuzz: $(READY) ## A million hostile records through ingress and staging (about 10 minutes)
	@HOSTILE_RECORDS=$${HOSTILE_RECORDS:-1000000} $(BIN)/pytest -s tests/workers/intake/test_hostile_input.py -k many_hostile

.PHONY: volume
volume: java $(READY) ## A hundred thousand requests in one partition: look-ahead, bounds, one that waits (10 minutes)
	@$(BIN)/pytest -s -m long tests/integration/volume

.PHONY: bench-engine
bench-engine: $(READY) ## Engine throughput beside transformers
	@$(BIN)/headrace bench engine

.PHONY: bench-delivery
bench-delivery: java $(READY) ## First delta through Kafka beside a raw aiokafka echo
	@$(BIN)/headrace bench delivery

.PHONY: bench-scheduler
bench-scheduler: $(READY) ## What a queueing discipline costs a request, up to a million queued
	@$(BIN)/headrace bench scheduler

.PHONY: tokens
tokens: $(READY) ## Compare a whole workload's tokens with transformers' (WORKLOAD=FILE)
	@WORKLOAD="$(abspath $(WORKLOAD))" $(BIN)/pytest tests/integration/models/test_workload_tokens.py -s

.PHONY: memory
memory: $(READY) ## Memory stays as it is over 100,000 steps of a tiny model and 5,000 of SmolLM2 (about 6 minutes)
	@$(BIN)/pytest -s tests/integration/models/test_memory_growth.py

.PHONY: golden
golden: $(READY) ## Recompute the golden outputs of transformers' generate
	@$(BIN)/python -m tests.golden.make

.PHONY: clean
clean: ## Remove what make made (not the caches under ~/.cache/headrace)
	@rm -rf $(VENV) .state out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
