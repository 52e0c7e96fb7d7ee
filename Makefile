# Needs python3 (3.11 or newer) with venv; everything else comes into .venv.
PYTHON ?= python3
BIN := .venv/bin
EXAMPLE := allreduce --topo dgx-a100 --group 0,2,4,6

.PHONY: demo test docs results torch gpu lock release clean
.DELETE_ON_ERROR:

demo: .venv/.installed
	$(BIN)/synth $(EXAMPLE)
	@for file in out/mscclpp/allreduce-dgx-a100-0.2.4.6-*.json; do $(BIN)/synth verify "$$file" || exit; done
	$(BIN)/synth bench out --collective allreduce --group 0,2,4,6 -b 1K -e 16M -f 128
	$(BIN)/synth warm-up

# while lint and types take one core, the other compiles the loops that all processes of tests will want
# what is compiled of Python is kept, also where the environment says that it is not: hundreds of commands are started
# one process collects the tests first: in a fresh clone each of the three would compile all modules at the same time
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.installed-dev
	@$(BIN)/python -m tests.synth.app.report.get_browser .venv/browser || echo "the tests of the report in a browser are skipped" >&2
	@$(BIN)/synth warm-up > /dev/null 2>&1 & \
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports || exit; \
	$(BIN)/python -m pytest --collect-only > /dev/null 2>&1; wait
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=15
	@test -x .venv/browser/browser || echo "Skipped without a browser: tests/synth/app/report/test_in_browser.py (SYNTH_BROWSER=… make test)"

results: .venv/.installed
	@for table in $$(LC_ALL=C ls results/scripts); do case $$table in [a-z]*.py) echo "== $$table"; $(BIN)/python -m results.scripts.$${table%.py} || exit;; esac; done

# all that needs PyTorch, which `make test` leaves out: the README's commands, every mode, training, every way to lose a
# rank. By default a release that is at hand without gigabytes for GPUs; the newest by TORCH=2.15.0.
TORCH ?= 2.13.0
torch: .venv/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH)
	$(BIN)/python -m pytest -m "slow or not slow" tests/runtime tests/synth/app/cli/test_tune.py tests/synth/app/cli/test_bench.py tests/readme

# The site, in docs/site: no network is needed once its packages are installed. A broken link is an error.
docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml
	@echo "docs/site/index.html"

# where a GPU is at hand, with the extra cuda12 or cuda13 installed
gpu: .venv/.installed-dev
	$(BIN)/python -m pytest tests/runtime/gpu/test_gpu.py
	$(BIN)/python -m results.scripts.gpu
	$(BIN)/python -m results.scripts.emulated

# Tools of the lock file and of a release have an environment of their own: their dependencies must not reach the tests.
TOOLS := .venv/tools/bin

# Every package that `make test` installs, at one version and with the hashes of its files, for every system and Python
# that pyproject.toml allows. It names no index: pip takes the files from the one that it is set up for.
LOCK := .ci/requirements-dev.lock
UV ?= uv==0.13.9
lock: | $(TOOLS)/python
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check '$(UV)'
	@{ echo "# The runtime and dev dependencies of pyproject.toml, and setuptools for the test of the wheel, with hashes."; \
	echo "# It covers CPython 3.11 and newer on Linux (x86_64 first of all), macOS and Windows, where packages have wheels."; \
	echo "# Install it: python -m pip install --require-hashes -r $(LOCK)"; \
	echo "# Make it anew, with the newest releases: make lock"; \
	echo 'setuptools>=77' | $(TOOLS)/uv pip compile --quiet --no-config --no-header --universal --python-version 3.11 \
	--generate-hashes --extra dev pyproject.toml -; } > $(LOCK).new && mv $(LOCK).new $(LOCK) || { rm -f $(LOCK).new; exit 1; }

# The sdist and the wheel in dist/, and beside them the SBOM (CycloneDX) of the wheel: it is installed into an empty
# environment, at the releases of the lock file, and what is there then is listed. The times in the files are those of
# the last commit, so that the same commit makes the same SBOM.
CYCLONEDX ?= cyclonedx-bom==7.5.0
release: | $(TOOLS)/python
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check 'build>=1' '$(UV)' '$(CYCLONEDX)'
	rm -rf dist .venv/release
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct || date +%s) && \
	$(TOOLS)/python -m build --outdir dist && \
	$(BIN)/python -m venv --without-pip .venv/release && \
	$(TOOLS)/uv pip install --quiet --no-config --python .venv/release/bin/python --constraint $(LOCK) dist/*.whl && \
	wheel=$$(basename dist/*.whl) && \
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	--output-file "dist/$${wheel%-py3-none-any.whl}.cdx.json" .venv/release/bin/python
	@ls -l dist

clean:
	rm -rf .venv out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer (make PYTHON=python3.11 …)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

$(TOOLS)/python: | .venv/bin/python
	$(BIN)/python -m venv .venv/tools

# the stamps: a second run installs nothing unless pyproject.toml changed
# Modules are compiled when they are first imported, most of them never: compiling all takes as long as installing them.
.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e .
	@touch $@

# setuptools: the test of the wheel builds one without a network
.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]' 'setuptools>=77'
	@touch $@ .venv/.installed
