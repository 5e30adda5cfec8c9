# One command a task; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
RUN := $(BIN)/hessfig
FIGURES := 3a 3b 5a 5b 8 eq5 1 4 temperature heads single_matrix post_layernorm blocks 7 6
STUDIES := scalar bounds
# Exact norms where they are cheaper than probing; `entries` and `eq5` name their own estimator. The longest sweep
# takes float32 products, whose rounding (1e-7) is far below the sampling error; only Figure 7 needs float64's range.
DENSE := entries eq5
SINGLE := depth

# The sweep a figure draws (read from its configuration), and the command that measures it.
sweep_of = $(shell sed -n 's/^sweep: //p' conf/figure/$(1).yaml)
measure = $(RUN) run sweep=$(1) $(if $(filter $(1),$(DENSE)),,estimator=auto) $(if $(filter $(1),$(SINGLE)),dtype=float32)

.DEFAULT_GOAL := help
.PHONY: help figures test test-slow lint slopes check verify bench clean

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

figures: $(STUDIES:%=figure-%) $(FIGURES:%=figure-%) ## measure every sweep of the paper and draw every figure (resumes where it stopped)

figure-%: $(READY) ## measure the sweep of one figure and draw it, e.g. make figure-3a
	$(if $(filter $*,$(STUDIES)),,$(call measure,$(call sweep_of,$*)))
	$(RUN) plot figure=$*

test: $(READY) ## run the fast test suite
	$(BIN)/python -m pytest

test-slow: $(READY) ## run the paper-scale witnesses too (minutes each)
	$(BIN)/python -m pytest -m "slow or not slow"

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

bench: $(READY) ## time one cell by every engine, and how its cost grows (on an idle machine)
	$(BIN)/python scripts/bench_norms.py
	$(BIN)/python scripts/bench_scaling.py

clean: ## remove caches and build products (never results)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find hessfig tests scripts conf data -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
