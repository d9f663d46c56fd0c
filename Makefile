PYTHON ?= python3
ARGS ?=

# One environment for each Python, so that `make test PYTHON=python3.12` leaves the first alone.
VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv/py$(VERSION)
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run test tpu lab notebooks bench lint lock clean

help: ## list these targets
	@echo "usage: make TARGET [PYTHON=python3.12] [ARGS='...']"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' Makefile

run: $(READY) ## reproduce the bugs and verify the fixes
	@$(VENV)/bin/nnxlab run $(ARGS)

test: $(READY) ## run all tests, then check every notebook cell against its stored output
	@$(VENV)/bin/python -m pytest -n 2 --dist loadscope \
	  --nbval --nbval-current-env tests notebooks $(ARGS)

tpu: $(VENV)/.tpu ## add the TPU's compiler (0.6 GB): no TPU needed, make test then uses it

lab: $(READY) ## open the notebooks in JupyterLab
	@$(VENV)/bin/python -m jupyter lab --notebook-dir=notebooks $(ARGS)

notebooks: $(READY) ## run the notebooks anew and store their outputs
	@$(VENV)/bin/nnxlab run --store $(ARGS)

bench: $(READY) ## measure speed and memory, as ratios within one run
	@$(VENV)/bin/python tests/bench.py $(ARGS)

lint: $(READY) ## check style and format of source, tests and notebooks
	@$(VENV)/bin/python -m ruff check $(ARGS) .
	@$(VENV)/bin/python -m ruff format --check --quiet .

UV_COMPILE = .venv/lock/bin/python -m uv pip compile pyproject.toml -q --universal \
  --python-version 3.11 --fork-strategy requires-python --no-header --no-emit-index-url --no-annotate

lock: ## pin the newest versions in requirements.txt and requirements-tpu.txt
	@"$(PYTHON)" -m venv .venv/lock
	@.venv/lock/bin/python -m pip --disable-pip-version-check install -q --upgrade uv
	@{ echo "# Written by make lock. Python 3.11 gets the last jax and flax that support it."; \
	  $(UV_COMPILE) --extra notebook --extra test; } > .venv/lock/requirements.txt
	@{ echo "# Written by make lock: what make tpu adds to requirements.txt."; \
	  $(UV_COMPILE) --extra tpu-compile -c .venv/lock/requirements.txt; } > .venv/lock/tpu.txt
	@mv .venv/lock/requirements.txt requirements.txt
	@mv .venv/lock/tpu.txt requirements-tpu.txt

clean: ## remove the environments, caches and reports
	rm -rf .venv out dist .pytest_cache .ruff_cache .hypothesis
	find . -type d '(' -name __pycache__ -o -name .ipynb_checkpoints ')' -prune -exec rm -rf {} +

# Touched last: a set-up that failed half-way is done again.
$(READY): requirements.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "nnxlab needs Python 3.11, 3.12 or 3.13, but '$(PYTHON)' is $(or $(VERSION),not there)." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module" \
	    "(Debian, Ubuntu: apt install python$(VERSION)-venv)." >&2; exit 1; }
	@echo "setting up $(VENV): about 1.2 GB, one to three minutes"
	@rm -f $@
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install -q -r requirements.txt
	@$(PIP) install -q --no-deps -e .
	@touch $@

$(VENV)/.tpu: $(READY) requirements-tpu.txt
	@echo "adding the TPU's compiler to $(VENV): 0.6 GB"
	@$(PIP) install -q -r requirements-tpu.txt
	@touch $@
