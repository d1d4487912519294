# A front end over CMake's presets (docs/decisions/0007). `make help` lists what there is.
#
#   PRESET=release   release, debug, asan, tsan, fuzz, clang, ci, library, aarch64; each builds in build/$(PRESET)
#   PREFIX=/usr/local  where `make install` puts things; DESTDIR is honoured
#   FUZZ_SECONDS=60  how long `make fuzz` runs each target
#   JOBS=...         how many compilers at once; default: the processors there are

PRESET ?= release
PREFIX ?= /usr/local
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
FUZZ_SECONDS ?= 60
BUILD := build/$(PRESET)

.PHONY: all deps demo check check-asan check-tsan check-aarch64 check-install check-interop fuzz fuzz-merge \
  install format format-check clean help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

all: $(BUILD)/Makefile
	@cmake --build $(BUILD) --parallel $(JOBS)

$(BUILD)/Makefile: CMakePresets.json
	@cmake --preset $(PRESET)
	@touch $@

# Everything that a build needs, on Debian and Ubuntu; says nothing when nothing is missing.
deps:
	@sh tools/install_deps.sh

demo: deps all
	@sh tools/demo.sh $(BUILD)

check: deps all
	@python3 tools/run_tests.py $(BUILD) --jobs $(JOBS) $(TESTS)

# The sanitizers slow everything down several times, so not every test; ThreadSanitizer does not understand OpenMP, on which
# the trainer runs.
check-asan: deps
	@$(MAKE) all PRESET=asan
	@python3 tools/run_tests.py build/asan --jobs $(JOBS) --label 'quick|train'

check-tsan: deps
	@$(MAKE) all PRESET=tsan
	@python3 tools/run_tests.py build/tsan --jobs $(JOBS) --label threads

# Cross-compiled and emulated. The harness needs nothing that would have to be there for the other processor too, neither
# oneDNN nor cmocka, and with the suite as its program it checks every kernel that the library has there.
AARCH64_CC := aarch64-linux-gnu-gcc -std=gnu11 -O3 -DNDEBUG -Wall -Wextra -Werror -static -pthread

check-aarch64:
	@sh tools/install_deps.sh --ci
	@$(MAKE) all PRESET=aarch64
	@$(AARCH64_CC) -I. -Iinclude -Iharness -o build/aarch64/kernels_suite tests/kernels/suite.c harness/*.c \
	  gpu/memory_none.c build/aarch64/src/libfattn.a -lm
	@qemu-aarch64 build/aarch64/kernels_suite quick

# Any bytes, for the readers of files and for the public interface, by Clang's libFuzzer; see tests/fuzz/run.sh.
fuzz:
	@sh tools/install_deps.sh
	@sh tools/install_deps.sh --ci
	@$(MAKE) build/fuzz/Makefile PRESET=fuzz
	@cmake --build --preset fuzz --parallel $(JOBS)
	@sh tests/fuzz/run.sh build/fuzz $(FUZZ_SECONDS)

# Puts what `make fuzz` found into the corpora, and keeps of those what is needed.
fuzz-merge:
	@sh tests/fuzz/run.sh build/fuzz merge

# Exports continued by transformers and llama.cpp, and models of theirs read here: several GB of Python packages, which are
# installed into build/interop unless python3 has them. INTEROP='xllamacpp' is llama.cpp alone, 30 MB.
INTEROP ?= xllamacpp tokenizers torch transformers
INTEROP_SECONDS ?= 1200
check-interop: all
	@sh tests/interop/run.sh $(BUILD)/cli/fattn build/interop $(INTEROP_SECONDS) $(INTEROP)

# Clients of an installed tree: the trainer and the program, a C program by pkg-config, README's example.
check-install: deps all
	@sh tests/install/run.sh $(BUILD)

# Configured anew, because the package files name the prefix.
install: all
	@cmake -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX)) >/dev/null
	@cmake --install $(BUILD)

format:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

format-check:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror

clean:
	@cmake -E rm -rf build out

help:
	@echo 'make                build everything into $(BUILD)'
	@echo 'make demo           install what is missing, build, train a small model with --flash, evaluate it, generate'
	@echo 'make check          install what is missing, build, run every test; TESTS="--label quick" or "--match NAME" narrows'
	@echo 'make check-asan     the quick tests and those of the trainer with AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make check-tsan     the tests of threads with ThreadSanitizer'
	@echo 'make check-aarch64  the quick suite of the kernels on 64-bit ARM: cross-compiled, run by qemu-aarch64'
	@echo 'make fuzz           fuzzes the readers of files and the public interface, each for FUZZ_SECONDS=60; needs Clang'
	@echo 'make check-interop  exports beside transformers and llama.cpp, which are installed into build/interop'
	@echo 'make check-install  build the trainer and other clients against an installed tree'
	@echo 'make install        library, header, package files and program into PREFIX=$(PREFIX)'
	@echo 'make format         clang-format, in place; format-check only looks'
	@echo 'make clean          remove build/ and out/'
	@echo 'PRESET=NAME chooses a preset (release, debug, asan, tsan, fuzz, clang, ci, library, aarch64),'
	@echo 'JOBS=N the parallel compilers.'
