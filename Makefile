# Every target runs through one virtual environment; people, hooks and CI run the same things.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := OMP_NUM_THREADS=1 $(BIN)
FLIGHTS := examples/flights
API := $(addprefix perennial.,notebook engine.task engine.metrics.catalogue contract contracts.data \
  engine.config.training gate.config contracts.errors)
CONTAINERS ?= podman
TORCH ?= cpu
# Files of tests, not single tests, are shared out: what a file's tests share is made once. One more
# than the cores it was measured on, because many tests wait for processes and servers.
WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder
# Where the time goes: the slowest tests on the screen, all of them in a file.
TIMES ?= --durations=20 --durations-min=1 --junitxml=.pytest_cache/junit.xml
# A folder of its own: pytest's shared one keeps the files of the last three runs.
PYTEST := files=$$(mktemp -d) && $(RUN)/python -m pytest --basetemp "$$files/t"
TIDY := && rm -rf "$$files" || { echo "The tests' files are in $$files"; false; }
# One line for each package and a bar for each download: silence looks like a hang.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
# pip would compile with one process. Like pip, go on after a file that is written for another Python.
COMPILE := $(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
SIZE := about 2.5 GB with PyTorch for CPUs, several GB more with CUDA
READY := Ready. To have `perennial` on the PATH: source $(abspath $(BIN))/activate
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-data test full serving lint format types bench replay golden picture docs images clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## virtual environment with everything a developer needs

$(VENV)/.demo: pyproject.toml constraints.txt
	@echo 'Set-up, once: $(SIZE) in $(VENV), measured at 190 s on two cores.'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[demo]'
	@$(COMPILE)
	@touch $@
	@echo '$(READY)'

$(VENV)/.dev: pyproject.toml constraints.txt
	@echo 'Set-up, once: $(SIZE) in $(VENV), measured at 190 s on two cores.'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.demo
	@echo '$(READY)'

demo-data: $(VENV)/.demo
	$(BIN)/python $(FLIGHTS)/prepare.py $(FLIGHTS)/data --months 1-12

demo: demo-data ## set up, then let five months of real flights arrive: train, monitor, retrain or not
	@printf '%s\n' '' 'Three months of flights train a first model. Then April and May arrive one by one: each is' \
	  'checked for drift, and a model trained again must beat the champion. Measured: 135 s on two cores.' ''
	$(RUN)/perennial run $(FLIGHTS)/contract.toml --replay --first 3 --until 5
	$(RUN)/perennial status
	$(RUN)/perennial runs
	@printf '\nWhat next:\n'
	@printf '  %-48s%s\n' \
	  'source $(BIN)/activate' 'puts `perennial` on the PATH' \
	  'perennial report' 'why the newest run promoted or not; --all lists every run' \
	  'perennial explain flights-late@champion' 'data, training and verdict of the model in production' \
	  'perennial init table YOUR.csv --label COLUMN' 'your own data: a contract, then check, sanity, run'

test: setup ## set up and pass the tests
	$(PYTEST) $(WORKERS) $(TIMES) $(TIDY)

full: setup ## the tests with their long matrices
	$(PYTEST) $(WORKERS) $(TIMES) -m 'full or not full' $(TIDY)

serving: setup ## the examples' champions in virtual environments of their own, asked by their aliases
	$(RUN)/python -m pytest -m full -s tests/serving

lint: setup ## style, formatting, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: setup ## rewrite files in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## mypy, strict
	$(BIN)/mypy

bench: demo-data ## measure the overhead of a local run; studies whose answers are planted
	$(RUN)/python -m benchmarks.overhead
	$(BIN)/python examples/digits/prepare.py examples/digits/data
	$(RUN)/python -m benchmarks.study_questions

replay: demo-data ## all months of flights: static champion, always newest, Perennial, baselines
	$(RUN)/python -m benchmarks.replay

golden: setup ## rewrite the golden pipelines and show what changed
	$(BIN)/perennial compile --out tests/pipelines/golden
	git diff --stat tests/pipelines/golden

picture: $(VENV)/.demo ## the README's picture of a report, from the newest promotion
	$(BIN)/python -m benchmarks.report_picture images/report.png

docs: setup ## API reference from docstrings, in docs/api
	$(BIN)/python -m pdoc --docformat google --output-directory docs/api $(API)

images: ## build the images: BASE=python@sha256:..., TORCH=cpu|cuda, CONTAINERS=podman|docker, BUILD_OPTIONS=
	for name in data trainer control; do \
	  $(CONTAINERS) build --file images/Dockerfile --target $$name --tag perennial-$$name \
	    --build-arg BASE='$(BASE)' --build-arg TORCH='$(TORCH)' --build-arg VERSION='$(VERSION)' \
	    --build-arg COMMIT="$$(git rev-parse HEAD)" $(BUILD_OPTIONS) . || exit 1; \
	done
	$(CONTAINERS) image ls --format '{{.Repository}} {{.Size}}' --filter reference='*perennial-*'

clean: ## remove the virtual environment and everything a demo left
	rm -rf $(VENV) .perennial docs/api $(FLIGHTS)/data
