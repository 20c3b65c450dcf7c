# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
# The CPU build of torch; where pip does not know it already, PyTorch's own index has it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=

.PHONY: env build demo test lint bench accuracy clean

env: $(VENV)/.ready build

$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null \
	  || $(BIN)/pip install -q "torch==$(TORCH)+cpu" \
	  || $(BIN)/pip install -q "torch==$(TORCH)" --index-url $(TORCH_INDEX)
	$(BIN)/pip install -q -e ".[test]" "torch==$(TORCH)"
	touch $@

build: $(VENV)/.ready
	$(BIN)/python -m interpose.build -q

demo: env
	$(BIN)/phantom run --cluster h100-dgx -N 1 -G 8 examples/train_gpt.py --steps 5

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: env lint
	$(BIN)/pytest -n auto $(PYTEST_ARGS)

bench: env
	$(BIN)/python -m benchmarks

accuracy: env
	$(BIN)/python -m tests.accuracy

clean:
	rm -rf $(VENV) interpose/_build build *.egg-info phantom-run-*
