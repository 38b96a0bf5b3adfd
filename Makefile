# Two commands matter: `make demo` and `make test`. Both need a Python from 3.10 to 3.13 and make, nothing else.

# A Python of one's own choice; empty: 3.11 where there is one, else the newest.
PYTHON ?=
VENV ?= .venv
# Where CPU builds of torch come from, if it answers; empty: from wherever pip is configured to look.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# More options of tests.reenact, for `make bench`, and of pytest, for `make test`.
REENACT ?=
PYTEST ?=
BIN := $(VENV)/bin
INSTALL := PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" tools/install "$(VENV)"

.PHONY: demo test lint format bench compile clean

## demo: train a real model on real sentences, here and now, beside the published row
demo: $(VENV)/.cases
	$(BIN)/flagbench run distilbert:cpu --preset tiny --gpus 2 --via native

## test: everything that this machine can test; PYTEST holds more options of pytest
test: $(VENV)/.dev
	$(BIN)/python -m pytest --random-order -m "not alone" -n 2 --dist worksteal -q --durations=5 $(PYTEST)
	$(BIN)/python -m pytest --random-order -m alone -q --durations=5 $(PYTEST)

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

## format: what `lint` reports and a tool can fix
format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## bench: what the harness costs, and each case beside the publisher's loop, as ratios
bench: $(VENV)/.dev $(VENV)/.publishers
	$(BIN)/python -m tests.reenact --small $(REENACT)
	$(BIN)/python tests/bench/harness.py
	$(BIN)/python tests/bench/trainer.py
	$(BIN)/python tests/bench/startup.py

## compile: the image side's copy of the manifests, and the reference page
compile: $(VENV)/.cases
	$(BIN)/flagbench manifests compile
	$(BIN)/flagbench manifests docs

$(VENV)/.cases: images/rendered/cpu/requirements.txt pyproject.toml tools/install.py
	@$(INSTALL) cases
	@touch $@

$(VENV)/.dev: $(VENV)/.cases tests/locks/oracles.txt tests/locks/deepspeed.txt
	@$(INSTALL) dev
	@touch $@

# The publishers' library versions, each in a folder that its loop alone has on its path. Where they do not install,
# their loops run on the versions of the tests, and `tests.reenact` says so.
PUBLISHERS := $(patsubst tests/locks/publisher-%.txt,%,$(wildcard tests/locks/publisher-*.txt))

$(VENV)/.publishers: $(VENV)/.dev $(PUBLISHERS:%=tests/locks/publisher-%.txt)
	@rm -rf $(VENV)/publishers
	@installed=yes; for case in $(PUBLISHERS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--retries 1 --timeout 10 --target $(VENV)/publishers/$$case -r tests/locks/publisher-$$case.txt || { \
			rm -rf $(VENV)/publishers/$$case; installed=no; \
			echo "tests/locks/publisher-$$case.txt cannot be installed here" >&2; }; \
	done; if [ $$installed = yes ]; then touch $@; else [ -z "$$CI" ]; fi

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
