# Two commands for a newcomer: `make run` and `make test`. `make check` is what CI runs.
PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
# Engines whose packages do not fit beside those: one environment each.
ENGINES := $(foreach each,genai openvino llama-cpp whisper-cpp,$(PEERS)-$(each))
HF := .venv-hf
HF4 := .venv-hf4
DOCS := .venv-docs
BULK := .venv-bulk
SERVE := .venv-serve
JS := tests/transformers_js
PACKAGE := txport/runtimes/js
HEADERS := build/headers
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORDS := transformer attention onnx pronunciation

# Tests start hundreds of processes, and each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test serve-test outside-test bulk-test quick check docs dist format agreement bench bench-peers peers examples hostile exhaustive gpu clean no-npm

run: $(INSTALLED)
	$(BIN)/txport run g2p-en $(WORDS)
	$(BIN)/txport verify g2p-en

# The second run compares search and tokenizers with Hugging Face's, in an environment without ONNX Runtime. Bundles also
# run in Optimum, in an environment of its own, in transformers.js and the package for JavaScript, where there is npm,
# and in the examples in C and C++.
NPM := $(if $(shell command -v npm),$(foreach each,$(JS) $(PACKAGE) examples/node,$(each)/node_modules/.installed),no-npm)

test: $(INSTALLED) $(HF)/.installed $(PEERS)/.installed $(HEADERS)/.installed $(NPM)
	$(BIN)/pytest --numprocesses logical --dist worksteal
	PYTHONPATH=. OMP_NUM_THREADS=1 $(HF)/bin/python -m pytest --numprocesses logical --dist worksteal --confcutdir tests/hugging_face tests/hugging_face

# The live engine and the HTTP service on loopback: public clients, faults, signals, and the examples of the page.
serve-test: $(INSTALLED) outside-test
	$(BIN)/pytest --numprocesses logical --dist worksteal tests/serving

# The service as other programs see it: Schemathesis, Triton's client, Ray Serve, and linters of examples/serving.
outside-test: $(SERVE)/.installed
	$(SERVE)/bin/python -m pytest $(addprefix tests/serving/service/test_,clients.py examples.py ray.py)

# Bulk work on Ray and Daft, whose processes are killed meanwhile.
bulk-test: $(BULK)/.installed
	$(BULK)/bin/python -m pytest tests/bulk/test_engines.py

# What one runs before a commit, in under a minute: the checks without tests, and the tests of files that are fast.
quick: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.house
	$(BIN)/pytest --numprocesses logical --dist worksteal $(addprefix --ignore=,$(file < tests/slow.txt))

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.house
	$(MAKE) docs
	$(MAKE) dist
	$(MAKE) test
	$(MAKE) bulk-test
	$(MAKE) outside-test

# The site of the documents, in build/site; a broken link is an error.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

# The package as an index gets it, in build/dist; a description that an index can't show is an error.
dist: $(DOCS)/.installed
	rm -rf build/dist
	$(DOCS)/bin/python -m build --no-isolation --outdir build/dist . >/dev/null
	$(DOCS)/bin/twine check --strict build/dist/*

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What the graphs of every family say, beside two versions of transformers: a few minutes on two cores.
agreement: $(INSTALLED) $(HF)/.installed $(HF4)/.installed
	$(BIN)/python -m tests.agreement

bench: $(INSTALLED)
	$(BIN)/txport bench g2p-en

# Beside other engines, which live in environments of their own.
bench-peers: $(INSTALLED) peers
	$(BIN)/python -m benchmarks.peers

peers: $(foreach each,$(PEERS) $(ENGINES),$(each)/.installed)

hostile: $(INSTALLED)
	$(BIN)/python -m tests.hostile

# All pairs of models and precisions, of which `make test` takes those that cover both: before a release.
exhaustive: $(INSTALLED)
	TXPORT_EVERY_PAIR=1 $(BIN)/pytest --numprocesses logical --dist worksteal

# Those for which this machine has what they need; it says which it passes over.
examples: $(INSTALLED) $(HEADERS)/.installed
	$(BIN)/python -m examples.run

# Uses the packages of the Python that runs it, so that it works on a machine without network:
# make gpu PYTHON=python3
gpu:
	$(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu

clean:
	rm -rf $(VENV) $(PEERS) $(ENGINES) $(HF) $(HF4) $(DOCS) $(BULK) $(SERVE) $(JS)/node_modules $(PACKAGE)/node_modules examples/node/node_modules build examples/build examples/browser/build *.egg-info

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "txport needs Python 3.11 or newer, found " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[export,dev]'
	touch $@

$(HF)/.installed: tests/hugging_face/requirements.txt
	test -x $(HF)/bin/python || $(PYTHON) -m venv $(HF)
	$(HF)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(DOCS)/.installed: docs/requirements.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# Beside the packages of the main environment, which they see.
$(BULK)/.installed: tests/bulk/requirements.txt
$(SERVE)/.installed: tests/serving/service/requirements.txt
$(BULK)/.installed $(SERVE)/.installed: $(INSTALLED)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' >$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/main.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement $(filter %requirements.txt,$^)
	touch $@

$(HF4)/.installed: tests/agreement/requirements.txt
	test -x $(HF4)/bin/python || $(PYTHON) -m venv $(HF4)
	$(HF4)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# ONNX Runtime's headers for C and C++: its own packages bring none, this one has those of an older release, which serve.
# It names the versions of Python that its own code runs on; the headers are for any.
$(HEADERS)/.installed: examples/headers.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --ignore-requires-python --target $(HEADERS) --requirement $<
	touch $@

# No install scripts: that of onnxruntime-node fetches CUDA's libraries, which nothing here needs.
%/node_modules/.installed: %/package-lock.json
	npm ci --prefix $* --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

no-npm:
	@echo 'there is no npm here: what is tested in JavaScript is skipped'

$(PEERS)/.installed: benchmarks/peers/requirements/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# Optimum Intel requires torchvision, which these exports do not use, and whose build may not fit that of PyTorch.
$(PEERS)-%/.installed: benchmarks/peers/requirements/%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@
