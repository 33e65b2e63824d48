# `make` lists the targets. PYTHON chooses the interpreter, PIP_FLAGS what pip is told, PYTEST_FLAGS what pytest is.
PYTHON ?= python3
PIP_FLAGS ?=
# Each worker takes neighbouring tests, which share what their module makes, and then what the other has left.
PYTEST_FLAGS ?= -n 2 --dist worksteal
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv dev demo test test-isa test-all lint types docs pictures gallery bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# A stamp says that an installation is whole, and is older than what it was made from when that changes.
$(VENV)/stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: charact needs Python 3.11 to 3.13, $(PYTHON) is another: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make virtual environments: apt install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/stamp-run: $(VENV)/stamp-python pyproject.toml setup.py constraints.txt
	$(BIN)/python -m pip install$(if $(PIP_FLAGS), $(PIP_FLAGS)) -c constraints.txt -e .
	@touch $@

$(VENV)/stamp-dev: $(VENV)/stamp-run
	$(BIN)/python -m pip install$(if $(PIP_FLAGS), $(PIP_FLAGS)) -c constraints.txt -e '.[dev]'
	@touch $@

venv: $(VENV)/stamp-run ## install charact into .venv

dev: $(VENV)/stamp-dev ## install what tests and checks need, too

$(VENV)/stamp-docs: $(VENV)/stamp-run
	$(BIN)/python -m pip install$(if $(PIP_FLAGS), $(PIP_FLAGS)) -c constraints.txt -e '.[docs]'
	@touch $@

demo: venv ## characterize ResNet-50 at 32 and 224 pixels, and say where the report is
	$(BIN)/charact profile resnet --input-sizes 32,224
	@echo "Next, your own script: . $(CURDIR)/$(BIN)/activate, and in its directory: charact run your_script.py"

# Threads that spin while they wait slow each other down many times on a machine that does anything else.
test test-isa test-all bench: export OMP_WAIT_POLICY ?= PASSIVE
# Tests start many processes: each would compile charact anew where Python is told to keep nothing.
test test-isa test-all: export PYTHONDONTWRITEBYTECODE =

test: dev ## run the tests that are quick
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow"

# Kernels, the memory that they take and the precisions that they know depend on the instructions of the CPU.
ISA_TESTS := $(addprefix tests/unit/,execution ops measure/microbench \
  measure/memory_estimate measure/passes/test_operators.py measure/passes/test_memory_pass.py) \
  $(addprefix tests/integration/,test_every_workload.py test_memory_command.py)

test-isa: dev ## run quick tests of kernels with the instructions of an older x86 CPU
	if grep -qs avx512f /proc/cpuinfo; then export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2; \
	else export ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default; fi; \
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow" $(ISA_TESTS)

test-all: dev ## run all tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: dev ## check style
	$(BIN)/ruff check .

types: dev ## check types
	$(BIN)/mypy

docs: $(VENV)/stamp-docs ## build the documentation in docs/_build/html; a warning or a broken link is an error
	$(BIN)/python -m sphinx -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html

pictures: dev ## take the pictures of the documents anew from real runs; needs Chromium and idle cores
	$(BIN)/python docs/pictures.py

gallery: dev ## write the reports of this machine again, in half an hour on idle cores: make gallery MACHINE=name [DATA_DIR=data]
	$(BIN)/python reports/make_gallery.py $(MACHINE) $(if $(DATA_DIR),--data-dir $(DATA_DIR))

bench: dev ## what measuring costs: in the timing pass, in your own code, of memory, of counters, to read the operator table; how right `ops` is
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/own_code.py
	$(BIN)/python benchmarks/memory_cost.py
	$(BIN)/python benchmarks/counter_cost.py
	$(BIN)/python benchmarks/operator_table.py
	$(BIN)/python benchmarks/operations.py

clean: ## remove what was installed and cached; runs/ stays
	rm -rf $(VENV) build dist docs/_build docs/reference *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
