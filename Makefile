# Two commands matter: `make demo` and `make test`. Both need Python 3.11 and make, nothing else.

PYTHON ?= python3.11
VENV ?= .venv
# Where CPU builds of torch come from; empty: from wherever pip is configured to look.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WHEELS := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# The cpu stack's lock without its hashes and without build labels like +cpu: other machines than the image's, with
# other files of the same versions, are welcome here. Without typer: in the image a dependency of transformers may have
# any, here the tool says which.
LOCK := images/locks/cpu.txt
PINS := $(VENV)/constraints.txt

.PHONY: demo test lint format bench compile clean

## demo: train a real model on real sentences, here and now, beside the published row
demo: $(VENV)/.cases
	$(BIN)/flagbench run distilbert:cpu --preset tiny --gpus 2 --via native

## test: everything that this machine can test; PYTEST holds more options of pytest
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not alone" -n 2 --dist worksteal -q --durations=5 $(PYTEST)
	$(BIN)/python -m pytest -m alone -q --durations=5 $(PYTEST)

## lint: style, types, layers, generated files
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/flagbench manifests compile --check
	$(BIN)/flagbench manifests docs --check
	$(BIN)/flagbench claims lint
	$(BIN)/flagbench render --all --check
	$(BIN)/flagbench lint

## format: what `lint` would complain of and a tool can mend
format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## bench: what the harness costs, as ratios
bench: $(VENV)/.dev
	$(BIN)/python tests/bench/harness.py
	$(BIN)/python tests/bench/trainer.py
	$(BIN)/python tests/bench/startup.py

## compile: the image side's copy of the manifests, and the reference page
compile: $(VENV)/.cases
	$(BIN)/flagbench manifests compile
	$(BIN)/flagbench manifests docs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(PINS): $(LOCK) | $(BIN)/python
	@sed -nE '/^typer==/d; s/^(# unresolved: )?([a-z0-9-]+==[^ +]+).*/\2/p' $(LOCK) >$@

$(VENV)/.cases: $(PINS) pyproject.toml
	$(PIP) $(WHEELS) -c $(PINS) -e ".[cases]"
	@touch $@

$(VENV)/.dev: $(VENV)/.cases tests/locks/oracles.txt tests/locks/deepspeed.txt
	$(PIP) $(WHEELS) -c $(PINS) -e ".[cases,dev]" -r tests/locks/oracles.txt
	DS_BUILD_OPS=0 $(PIP) -c $(PINS) --no-build-isolation -r tests/locks/deepspeed.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
