# Two commands do everything on a fresh machine that has Python >= 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test faults hangs lint clean

# torch comes first and alone, in the tested version; what follows is held to it and pulls no other build.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -r constraints.txt
	$(PIP) -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(PIP) -c constraints.txt -e ".[test]"
	touch $@

demo: .venv/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

# 100 random kills and 50 corruptions after the selection that `make test` has too; SEED=N tries a seed again.
faults: .venv/installed-test
	$(BIN)/python -m pytest tests/faults
	PYTHONPATH=tests $(BIN)/python -m faults.campaign $(if $(SEED),--seed $(SEED))

# Stuck ranks under every launcher, with a table; needs scripts/install-system-deps. LAUNCHERS="samestep torchrun" tries some.
hangs: .venv/installed-test
	PYTHONPATH=tests $(BIN)/python -m faults.hangs $(if $(LAUNCHERS),--launchers $(LAUNCHERS))

clean:
	rm -rf .venv runs build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
