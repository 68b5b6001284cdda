# The front door. `make demo` and `make test` do everything, set-up included; what is done already is not done again.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# One job per core, and 1.5 GB of memory for each.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { jobs = int($$2 / 1500000); if (jobs > cores) jobs = cores; \
                if (jobs < 1) jobs = 1; print jobs }' /proc/meminfo)
TEST_JOBS ?= 2
CTEST := ctest --output-on-failure -j $(TEST_JOBS)
# Fixed versions, so that everybody gets the same formatting and the same findings.
CLANG_FORMAT := clang-format==21.1.6
CLANG_TIDY := clang-tidy==21.1.6
MKDOCS := mkdocs==1.6.1
FUZZ_CXX ?= clang++-16
OUR_SOURCES = $(shell git ls-files '*.cpp' '*.h')

# configure(preset, folder): only when there is no build file, or set-up ran since it was written.
configure = if [ ! -f $(2)/build.ninja ] || [ .venv/gramian-setup -nt $(2)/build.ninja ]; then cmake --preset $(1); fi

.PHONY: help
help: ## this list
	@echo 'make TARGET, where TARGET is one of'
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12
	@echo 'Variables: ARGS="..." for demo, quality, interop and bench, JOBS and TEST_JOBS, GRAMIAN_GOLDEN=folder for golden and test,'
	@echo 'GRAMIAN_CPU_LEVEL, GRAMIAN_TORCH_VERSION and GRAMIAN_TORCH_INDEX (see tools/setup.sh).'

.PHONY: demo
demo: build ## quantize the bundled model, compare the results, make report.html
	@build/gramian demo $(ARGS)

.PHONY: quality
quality: build ## quantize MODEL=folder several ways and compare (TEXT=calibration HELDOUT=text; goes on where it stopped)
	@[ -n "$(MODEL)" ] || { echo 'make quality MODEL=folder [TEXT=file] [HELDOUT=file] [ARGS="..."]' >&2; exit 2; }
	@.venv/bin/python tools/quality.py "$(MODEL)" $(if $(TEXT),--calibration "$(TEXT)") $(if $(HELDOUT),--heldout "$(HELDOUT)") $(ARGS)

.PHONY: test
test: all ## all tests: unit, golden, end to end, tree check
	@$(CTEST) --test-dir build

.PHONY: fast
fast: all ## the fast tests only
	@$(CTEST) --test-dir build -L fast

.PHONY: interop
interop: build python ## other programs read what we write (makes interop-venv/; ARGS="--python VENV/bin/python" for one that is there)
	@.venv/bin/python tools/interop.py $(ARGS)

.PHONY: docs
docs: build ## the documentation as a site, build/site; docs/options.md is made from the program
	@build/gramian options > docs/options.md
	@.venv/bin/python -c 'import mkdocs' 2>/dev/null || .venv/bin/python -m pip install -q $(MKDOCS)
	@.venv/bin/python -m mkdocs build --strict --quiet

.PHONY: soak
soak: build python ## kill a job KILLS=500 times, and one of four ranks RANK_KILLS=20 times, at random moments, and go on; compare bytes
	@cd tests/e2e && GRAMIAN_BINARY=$(CURDIR)/build/gramian GRAMIAN_SOAK=$(or $(KILLS),500) \
	  $(CURDIR)/.venv/bin/python -m unittest -v test_resume.Interrupted.test_killed_at_random_moments
	@cd tests/python && GRAMIAN_BINARY=$(CURDIR)/build/gramian PYTHONPATH=$(CURDIR)/build/python GOMP_SPINCOUNT=1000 \
	  GRAMIAN_SOAK=$(or $(RANK_KILLS),20) $(CURDIR)/.venv/bin/python -m unittest -v test_ranks.Ranks.test_killed_ranks_at_random_moments

.PHONY: golden
golden: all ## compare with files that other implementations made ($GRAMIAN_GOLDEN or tests/golden)
	@$(CTEST) --test-dir build -L golden

.PHONY: build
build: configured ## build/gramian
	@cmake --build build -j $(JOBS) --target gramian

.PHONY: python
python: configured ## the Python package, into build/python
	@cmake --build build -j $(JOBS) --target gramian_package

.PHONY: all
all: configured ## build/gramian, tests and benchmarks
	@cmake --build build -j $(JOBS)

.PHONY: bench
bench: configured ## build and run the benchmarks
	@cmake --build build -j $(JOBS) --target benchmarks
	@set -e; for program in build/*_bench; do [ ! -x "$$program" ] || "$$program" $(ARGS); done

.PHONY: setup
setup: ## system packages and .venv with torch
	@tools/setup.sh

.PHONY: configured
configured: setup
	@$(call configure,release,build)

.PHONY: asan
asan: setup ## all tests with address and undefined-behaviour checks (build-debug)
	@$(call configure,debug,build-debug)
	@cmake --build build-debug -j $(JOBS)
	@$(CTEST) --test-dir build-debug

# LibTorch's OpenMP runtime is not instrumented, so only the lowest layers and the statistics are checked for races.
.PHONY: tsan
tsan: setup ## the tests of base, kernels and stats with data race checks (build-tsan)
	@$(call configure,tsan,build-tsan)
	@cmake --build build-tsan -j $(JOBS) --target race_tests
	@$(CTEST) --test-dir build-tsan -R '^unit\.(base|kernels|stats)$$' --no-tests=error

.PHONY: fuzz
fuzz: setup ## fuzz every reader with clang's libFuzzer, SECONDS=600 each (build-fuzz; FUZZ="gguf recipe" for some, FUZZ_CXX=compiler)
	@printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
	  $(FUZZ_CXX) -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null || { echo 'make fuzz needs clang 16 or newer with'\
	  'libFuzzer: apt-get install clang-16 libclang-rt-16-dev llvm-16 (Debian), or name another one with FUZZ_CXX' >&2; exit 2; }
	@if [ ! -f build-fuzz/build.ninja ] || [ .venv/gramian-setup -nt build-fuzz/build.ninja ]; then \
	  cmake --preset fuzz -DCMAKE_CXX_COMPILER=$(FUZZ_CXX); fi
	@cmake --build build-fuzz -j $(JOBS) --target fuzz_targets
	@.venv/bin/python tools/fuzz.py --seconds $(or $(SECONDS),600) $(FUZZ)

.PHONY: format
format: setup ## format our sources in place
	@.venv/bin/clang-format --version >/dev/null 2>&1 || .venv/bin/python -m pip install -q $(CLANG_FORMAT)
	@.venv/bin/clang-format -i $(OUR_SOURCES)

.PHONY: tidy
tidy: configured ## static analysis of our sources
	@.venv/bin/clang-tidy --version >/dev/null 2>&1 || .venv/bin/python -m pip install -q $(CLANG_TIDY)
	@printf '%s\n' $(filter %.cpp,$(OUR_SOURCES)) | xargs -P $(JOBS) -n 1 .venv/bin/clang-tidy -p build --quiet --extra-arg=-Wno-unknown-warning-option

.PHONY: clean
clean: ## remove what was built (.venv stays)
	rm -rf build build-debug build-tsan build-fuzz demo-out report.html
