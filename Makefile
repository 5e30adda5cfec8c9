# One command a task; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
RUN := $(BIN)/hessfig
TEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# What conf/figures.yaml says: the figures of some groups in their order, and the sweep of one.
figures_of = $(shell sed -En 's/^"?([^":]+)"?: [{].*group: ($(1)),.*/\1/p' conf/figures.yaml)
sweep_of = $(shell sed -En 's/^"?$(1)"?: [{]sweep: "?([^",]*)"?,.*/\1/p; s/^"?$(1)"?: [{]group.*/$(1)/p' conf/figures.yaml)
# Status 1: some cells failed, such as trainings that diverge; the figure is drawn from the others and says so.
measure = $(if $(1),$(RUN) run sweep=$(1) || [ $$? -eq 1 ])

.DEFAULT_GOAL := help
.PHONY: help figures figures-paper figures-beyond figures-follow-up figures-all figures-study test test-long test-all test-slow test-attack test-slurm test-browser test-processors docs docs-test wheel lint slopes check verify bench clean

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-17s %s\n", $$1, $$2}'

figures: $(addprefix figure-,$(call figures_of,paper|beyond|study)) ## measure every sweep and draw every figure (resumes where it stopped)

figures-paper: $(addprefix figure-,$(call figures_of,paper)) ## the figures of the paper and of its claims

figures-beyond: $(addprefix figure-,$(call figures_of,beyond)) ## the figures beyond the paper

figures-follow-up: $(addprefix figure-,$(call figures_of,follow_up)) ## the figures of follow-ups: spectra, training, landscape

figures-all: figures figures-follow-up ## every figure there is

figures-study: $(addprefix figure-,$(call figures_of,study)) ## the figures of theory that need no sweep (seconds)

figure-%: $(READY) ## measure the sweep of one figure and draw it, e.g. make figure-3a
	$(call measure,$(call sweep_of,$*))
	$(RUN) plot figure=$*

test: $(READY) ## run the tests of every day, on up to four cores (README.md has the minutes)
	$(TEST) -m "not long and not slow and not browser"

test-long: $(READY) ## run the tests that `make test` leaves out: deep grids, nulls, many sizes (30 minutes on two cores)
	$(TEST) -m "long and not slow and not browser"

test-all: test test-long ## run all tests, as CI does

test-slow: $(READY) ## run the paper-scale witnesses too (minutes each)
	$(BIN)/python -m pytest -m "slow or not slow" --ignore tests/attack --ignore tests/slurm --ignore tests/browser

test-attack: $(READY) ## kills, bit flips, full disks, hostile files, bad inputs (20 minutes; ATTACK_SEED=7 for others)
	$(BIN)/python -m pytest -m slow tests/attack

test-slurm: $(READY) ## run sweeps as Slurm job arrays (needs sbatch here, and pip install '.[slurm]'; docs/cluster.md)
	$(BIN)/python -m pytest -m slow -rs tests/slurm

test-browser: $(READY) ## open the report in headless Chromium (needs chromium; a minute)
	$(BIN)/python -m pip install --quiet -e '.[dev,browser]' -c constraints.txt
	$(BIN)/python -m pytest -m browser -rs tests/browser

# What a processor lacks is imitated by a variable that forbids it; torch, oneDNN and MKL read it when they start.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=COMPATIBLE
test-processors: $(READY) ## the tests of numbers with fewer instructions, and with two threads (an hour; docs/accuracy.md)
	set -e; for lacking in $(PROCESSORS) HESSFIG_TEST_THREADS=2; do \
	echo "$$lacking"; env "$$lacking" $(BIN)/python -m pytest -m "not long and not slow" tests/curvature tests/models tests/measurements; done

docs: $(READY) ## build the documentation site, without warnings, and follow its links: build/site/index.html
	$(BIN)/python -c "import furo, myst_parser, sphinx" 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	$(BIN)/python -m sphinx -W --keep-going -q -d build/trees docs build/site
	$(BIN)/python scripts/check_site.py build/site

docs-test: $(READY) ## run the commands of the pages in docs, and follow their links
	$(TEST) tests/documents/test_documents.py tests/test_architecture.py tests/documents/test_examples.py tests/documents/test_site.py

wheel: $(READY) ## build sdist and wheel, install them into an empty environment with all they need, use them there
	$(BIN)/python scripts/check_wheel.py

lint: $(READY) ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slopes: $(READY) ## fit the growth rates of Figures 3a and 3b
	$(RUN) slopes sweep=sigma
	$(RUN) slopes sweep=layernorm

check: $(READY) ## regression gate: fail when a slope of Figure 3a leaves its tolerance
	$(RUN) check sweep=sigma

verify: $(READY) ## check every statement of the theory against automatic differentiation
	$(RUN) verify

bench: $(READY) ## time one cell by every engine, how its cost grows, eigenvalues and densities (on an idle machine)
	$(BIN)/python scripts/benchmarks/norms.py
	$(BIN)/python scripts/benchmarks/scaling.py
	$(BIN)/python scripts/benchmarks/spectra.py

clean: ## remove caches and build products (never results)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find hessfig tests scripts conf data -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
