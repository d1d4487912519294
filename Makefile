# A front end over CMake's presets (docs/decisions/0007). `make help` lists what there is.
#
#   PRESET=release   release, debug, asan, tsan, clang, ci, library; each builds in build/$(PRESET)
#   PREFIX=/usr/local  where `make install` puts things; DESTDIR is honoured
#   JOBS=...         how many compilers at once; default: the processors there are

PRESET ?= release
PREFIX ?= /usr/local
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
BUILD := build/$(PRESET)

.PHONY: all deps demo check check-asan check-tsan check-install install format format-check clean help
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

# Clients of an installed tree: the trainer and the program, a C program by pkg-config, README's example.
check-install: deps all
	@sh tests/install/run.sh $(BUILD)

# Configured anew, because the package files name the prefix.
install: all
	@cmake -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX)) >/dev/null
	@cmake --install $(BUILD)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

format-check:
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror

clean:
	@cmake -E rm -rf build out

help:
	@echo 'make                build everything into $(BUILD)'
	@echo 'make demo           install what is missing, build, train a small model with --flash, evaluate it, generate'
	@echo 'make check          install what is missing, build, run every test; TESTS="--label quick" or "--match NAME" narrows'
	@echo 'make check-asan     the quick and the trainer's tests with AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make check-tsan     the tests of threads with ThreadSanitizer'
	@echo 'make check-install  build the trainer and other clients against an installed tree'
	@echo 'make install        library, header, package files and program into PREFIX=$(PREFIX)'
	@echo 'make format         clang-format, in place; format-check only looks'
	@echo 'make clean          remove build/ and out/'
	@echo 'PRESET=NAME chooses a preset (release, debug, asan, tsan, clang, ci, library), JOBS=N the parallel compilers.'
