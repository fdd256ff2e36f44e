# memlock: `make help` lists the targets. Those of the examples, and test, set up everything on a fresh machine.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What is installed and tested is what was built here.
unexport CARGO_TARGET_DIR

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
DESTDIR ?=
MINUTES ?= 5
comma := ,
CARGO ?= cargo

# One version for all: that of Cargo.toml. The soname's number is that of memlock-ffi/build.rs.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
SONAME := libmemlock.so.0
RELEASE := target/release
VENV := target/venv
PYTHON := $(abspath $(VENV))/bin/python
CBINDGEN_VERSION := 0.29.4
CBINDGEN := target/tools/bin/cbindgen
CARGO_FUZZ_VERSION := 0.13.2
CARGO_FUZZ := target/tools/bin/cargo-fuzz
SECONDS ?= 20
RUFF := $(VENV)/bin/ruff
STUB := memlock-py/python/memlock/_memlock.pyi
# Python without a suffix, which ruff does not find by itself.
SCRIPTS := benches/run benches/run-contended examples/asynchronous/run examples/dedupe/run examples/demo/run examples/failover/run \
  examples/payments/run examples/rate_limit/run fuzz/run packaging/stub-docs \
  tests/circles tests/docs/links tests/docs/samples tests/repeat

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | sort | while IFS=$$'\t' read -r name text; do printf '  %-15s %s\n' "$$name" "$$text"; done

# With BUILT=1 these are what they are: for targets that run side by side.
.PHONY: build command python built-tests
ifeq ($(origin BUILT),command line)
build command python built-tests: ;
else
build: ## build the C library (release)
	@packaging/need cc
	$(CARGO) build --release -p memlock-ffi
	ln -sf libmemlock.so $(RELEASE)/$(SONAME)
	packaging/hide-symbols $(RELEASE)/libmemlock.a $(RELEASE)/libmemlock.so

command: ## build the command `memlock` (release)
	@packaging/need cc
	$(CARGO) build --release -p memlock-cli

# What is installed for the tests: the sources, or the wheel that MODULE names.
ifdef MODULE
INSTALLED := $(VENV)/.module-$(notdir $(MODULE))
python: $(INSTALLED)
else
python: $(VENV)/bin/python
	rm -f $(VENV)/.module-*
	$(PYTHON) -m pip install -q --disable-pip-version-check ./memlock-py
endif

built-tests:
	@packaging/need cc
	$(TEST_RUST) --no-run
endif

.PHONY: demo
demo: build python ## show four languages at one job on a real memcached (FILES=… for files of your own)
	@packaging/need cc c++ memcached
	$(CARGO) build --release -p memlock-examples
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/demo/run $(FILES)

.PHONY: rate-limit
rate-limit: build python ## show 20 workers of whom at most 3 are in a section, one of them killed inside, in each language
	@packaging/need cc c++ memcached
	$(CARGO) build --release -p memlock-examples
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/rate_limit/run

.PHONY: payments
payments: python ## show that a worker which overslept its lock cannot pay twice: a fence check at a SQLite table
	@packaging/need memcached
	PYTHON=$(PYTHON) examples/payments/run

.PHONY: dedupe
dedupe: build ## show jobs that are handed in many times and done once, with producers and consumers that are killed
	@packaging/need c++ memcached
	MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/dedupe/run

.PHONY: failover
failover: build python command ## show locks that survive memcacheds which are killed and restarted under their holders, one with a guard and a quorum of three, in C, Python and the shell
	@packaging/need cc memcached
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/failover/run

.PHONY: asynchronous
asynchronous: build ## show many acquisitions in flight on one thread: on epoll, libevent, Asio and in C++20 coroutines
	@packaging/need cc c++ libevent asio memcached
	MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/asynchronous/run

# The builds side by side, in folders of their own; then what computes, the native tests, beside what mostly waits. A test
# that fails does not end the others.
.PHONY: test
test: ## run all tests
	@packaging/need cc c++ venv $(TEST_RUST_NEEDS) $(TEST_NATIVE_NEEDS) $(TEST_INSTALL_NEEDS) $(TEST_PYTHON_NEEDS)
	packaging/beside '$(MAKE) built-release' $(MAKE) built-tests
	packaging/beside 'nice $(MAKE) -k test-native test-install BUILT=1' $(MAKE) -k test-rust test-python BUILT=1

# Most tests wait most of the time, so more of them run at once than there are cores.
TEST_THREADS ?= 4
TEST_ENV := PYTHON=$(PYTHON) RUST_BACKTRACE=0 RUST_TEST_THREADS=$(TEST_THREADS)
TEST_RUST := $(CARGO) test --workspace --exclude memlock-py

TEST_RUST_NEEDS := cc c++ memcached redis-server postgresql pgbouncer mariadbd mariadb openssl ip nft
TEST_NATIVE_NEEDS := cc c++ valgrind memcached python3 libevent asio
TEST_INSTALL_NEEDS := cc c++ pkg-config cmake memcached
TEST_PYTHON_NEEDS := cc memcached redis-server postgresql mariadbd faketime python-testsuite

.PHONY: built-release
built-release: build command python $(VENV)/.test
	$(CARGO) build --release -p memlock-examples

# What takes a minute, and waits for most of it, runs beside the rest.
.PHONY: test-rust
test-rust: python $(VENV)/.test built-tests ## the Rust tests: units, the conformance suites in every language, faults, leases, processes
	@packaging/need $(TEST_RUST_NEEDS)
	export $(TEST_ENV); \
	  packaging/beside '$(TEST_RUST) --test renewal_many -- --ignored --nocapture' $(TEST_RUST) --no-fail-fast

.PHONY: test-native
test-native: build command ## the C and C++ programs, under valgrind and the sanitizers; the rate limit, the jobs, the event loops, the docs' samples
	@packaging/need $(TEST_NATIVE_NEEDS)
	MEMLOCK_LIB_DIR=$(RELEASE) tests/c/run
	$(CARGO) build --release -p memlock-examples
	MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/rate_limit/run c cpp rust
	MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/dedupe/run
	MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/asynchronous/run
	CARGO=$(CARGO) tests/docs/samples c cpp rust sh

.PHONY: test-install
test-install: build ## what `make install` puts in place: pkg-config, CMake, static and shared
	@packaging/need $(TEST_INSTALL_NEEDS)
	tests/install.sh

.PHONY: test-python
test-python: build python command $(VENV)/.test ## the Python tests, types included; the rate limit in Python; the payments; the failover; the docs' samples
	@packaging/need $(TEST_PYTHON_NEEDS)
	$(PYTHON) -m pytest -q tests/python
	PYTHON=$(PYTHON) examples/rate_limit/run python
	PYTHON=$(PYTHON) examples/payments/run
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(RELEASE) MEMLOCK_INCLUDE_DIR=include examples/failover/run
	PYTHON=$(PYTHON) tests/docs/samples python

# The simulation's hooks are in no other build: so it has a place of its own.
SIMULATE := RUSTFLAGS="--cfg memlock_sim" $(CARGO)
SIMULATION := target/simulation/release/simulation
SEEDS ?= 20000
FIRST ?= $(shell packaging/first-seed)

.PHONY: simulation
simulation:
	@packaging/need cc
	$(SIMULATE) build --release -q -p memlock-simulation --target-dir target/simulation

.PHONY: sim
sim: simulation ## run memlock in a simulated world (SEEDS=20000 FIRST=… ONLY=quorum; SEED=n replays one)
	$(SIMULATION) $(if $(SEED),seed $(SEED),seeds $(SEEDS) $(FIRST) $(ONLY))

.PHONY: sim-mutations
# A mutation is searched for until it is found; the rarest took 171,163 seeds.
sim-mutations: SEEDS := 600000
sim-mutations: simulation ## mutation tests: put faults into memlock, one after another; the simulation must find each
	$(SIMULATION) mutations $(SEEDS) $(ONLY)

.PHONY: sanitize
sanitize: ## watch the code run: model tests, Miri, thread and address sanitizers, leaks (PARTS=… for some; wants nightly)
	@packaging/need cc c++ valgrind memcached python3
	tests/sanitize/run $(PARTS)

FAULTS := target/debug/faults
FAULTS_C_CLIENT := target/debug/fault-client-c

.PHONY: faults
faults: $(FAULTS) ## cut, delay, kill, stop, fill and starve clients, wire and server, one after the other (ARGS=WORD for some; 2 minutes)
	PYTHON=$(PYTHON) FAULTS_C_CLIENT=$(abspath $(FAULTS_C_CLIENT)) $(FAULTS) $(ARGS)

.PHONY: soak
soak: $(FAULTS) ## the same faults at random, several at once, for MINUTES=n (also 0.3)
	PYTHON=$(PYTHON) FAULTS_C_CLIENT=$(abspath $(FAULTS_C_CLIENT)) $(FAULTS) soak $(MINUTES)

.PHONY: $(FAULTS)
$(FAULTS): build python
	@packaging/need cc memcached ip
	$(CARGO) build -p memlock-tests --bins
	$(CC) -std=gnu11 -O1 -g -Wall -Wextra -Wpedantic -Werror -Iinclude -Itests/support tests/faults/client.c -o $(FAULTS_C_CLIENT) \
	  -L$(RELEASE) -lmemlock -Wl,-rpath,$(abspath $(RELEASE))

CHAOS := target/debug/chaos
CHAOS_C_CLIENT := target/debug/chaos-client-c

.PHONY: chaos
chaos: $(CHAOS) ## kill, stop and cut off the five servers of a quorum at random, under eight contenders, for MINUTES=n (also 0.5; SEED=n replays)
	PYTHON=$(PYTHON) CHAOS_C_CLIENT=$(abspath $(CHAOS_C_CLIENT)) SEED=$(SEED) $(CHAOS) $(MINUTES)

.PHONY: $(CHAOS)
$(CHAOS): build python
	@packaging/need cc memcached ip nft
	$(CARGO) build -p memlock-tests --bins
	$(CC) -std=gnu11 -O1 -g -Wall -Wextra -Wpedantic -Werror -Iinclude -Itests/support tests/chaos/client.c -o $(CHAOS_C_CLIENT) \
	  -L$(RELEASE) -lmemlock -Wl,-rpath,$(abspath $(RELEASE))

.PHONY: bench
bench: build python $(VENV)/.bench ## measure pairs (locks, semaphores) and inserts next to their floors (STORES=redis,sqlite for some; ARGS=--quick for a glance)
	@packaging/need cc memcached redis-server postgresql mariadbd mariadb strace taskset readelf
	PYTHON=$(PYTHON) benches/run $(if $(STORES),--only $(subst $(comma), ,$(STORES))) $(ARGS)

.PHONY: bench-contended
bench-contended: build python $(VENV)/.bench ## measure processes that contend for one lock or semaphore, next to what people use (18 minutes; STORES=… for some)
	@packaging/need cc memcached redis-server postgresql mariadbd mariadb
	PYTHON=$(PYTHON) benches/run-contended $(if $(STORES),--only $(subst $(comma), ,$(STORES))) $(ARGS)

.PHONY: fuzz
fuzz: $(CARGO_FUZZ) ## replay the fuzzers' corpora and fuzz each target for SECONDS=20 (TARGETS=… for some; needs Rust nightly)
	@packaging/need c++ python3
	CARGO=$(CARGO) fuzz/run --seconds $(SECONDS) $(TARGETS)

.PHONY: check
check: $(CBINDGEN) python $(VENV)/.test ## formatting, lints, import circles, links in the docs, and whether the C header and the Python stub are up to date
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	for store in memcached mysql postgresql redis sqlite; do \
	  $(CARGO) clippy -q -p memlock-ffi --no-default-features --features $$store -- -D warnings || exit 1; \
	done
	$(SIMULATE) clippy -q -p memlock-simulation --target-dir target/simulation -- -D warnings
	RUSTFLAGS="--cfg shuttle" $(CARGO) clippy -q -p memlock-core --lib --tests --target-dir target/sanitize/shuttle -- -D warnings
	RUSTFLAGS="--cfg fuzzing" $(CARGO) clippy -q --manifest-path fuzz/Cargo.toml --target-dir target/fuzzing -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -q --no-deps -p memlock-core -p memlock-tests
	tests/circles memlock-core memlock-py memlock-cli memlock-ffi simulation
	tests/docs/links
	$(PYTHON) packaging/stub-docs --check $(STUB)
	$(RUFF) check . $(SCRIPTS)
	$(RUFF) format --check . $(SCRIPTS)
	$(CBINDGEN) -q --config memlock-ffi/cbindgen.toml --crate memlock-ffi --verify --output include/memlock.h memlock-ffi \
	  || { echo "include/memlock.h is not what memlock-ffi/src says: run 'make header'."; exit 1; }

.PHONY: header
header: $(CBINDGEN) ## write include/memlock.h anew from memlock-ffi/src
	$(CBINDGEN) -q --config memlock-ffi/cbindgen.toml --crate memlock-ffi --output include/memlock.h memlock-ffi

.PHONY: stubs
stubs: python $(VENV)/.test ## write the docstrings of the Python module into its stub
	$(PYTHON) packaging/stub-docs $(STUB)
	$(RUFF) format -q $(STUB)

.PHONY: wheel
wheel: $(VENV)/.wheel ## build the Python wheel and source distribution into target/wheels, and try them (TARGET=x86_64-unknown-linux-musl for another; then it is not tried)
	@packaging/need memcached
	packaging/wheel $(TARGET)
	$(if $(TARGET),,tests/wheel.sh)

.PHONY: fmt
fmt: $(VENV)/.test ## format Rust and Python
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	$(RUFF) format . $(SCRIPTS)

.PHONY: install
install: build command ## install the command, libraries, headers, pkg-config and CMake files (PREFIX=, LIBDIR=, DESTDIR=)
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(DATADIR)/man/man1 $(DESTDIR)$(DATADIR)/bash-completion/completions \
	  $(DESTDIR)$(DATADIR)/zsh/site-functions $(DESTDIR)$(DATADIR)/fish/vendor_completions.d
	install -m 755 $(RELEASE)/memlock $(DESTDIR)$(BINDIR)/memlock
	rm -rf $(RELEASE)/pages && mkdir $(RELEASE)/pages && $(RELEASE)/memlock pages $(RELEASE)/pages
	install -m 644 $(RELEASE)/pages/*.1 $(DESTDIR)$(DATADIR)/man/man1
	for shell in bash:bash-completion/completions/memlock zsh:zsh/site-functions/_memlock fish:fish/vendor_completions.d/memlock.fish; do \
	  $(RELEASE)/memlock completions $${shell%%:*} > $(RELEASE)/pages/completions; \
	  install -m 644 $(RELEASE)/pages/completions $(DESTDIR)$(DATADIR)/$${shell#*:}; \
	done
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/memlock $(DESTDIR)$(INCLUDEDIR)
	install -m 755 $(RELEASE)/libmemlock.so $(DESTDIR)$(LIBDIR)/libmemlock.so.$(VERSION)
	ln -sf libmemlock.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libmemlock.so
	install -m 644 $(RELEASE)/libmemlock.a $(DESTDIR)$(LIBDIR)/libmemlock.a
	strip --strip-debug $(DESTDIR)$(LIBDIR)/libmemlock.a
	install -m 644 include/memlock.h include/memlock.hpp $(DESTDIR)$(INCLUDEDIR)
	for file in memlock.pc memlock-config.cmake memlock-config-version.cmake; do \
	  case $$file in *.pc) to=pkgconfig ;; *) to=cmake/memlock ;; esac; \
	  sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|; s|@SONAME@|$(SONAME)|' \
	    -e 's|@RPATH@|$(if $(filter /usr/lib%,$(LIBDIR)),,-Wl,-rpath,$${libdir})|' \
	    -e "s|@LIB_TO_INCLUDE@|$$(realpath -m --relative-to=$(LIBDIR) $(INCLUDEDIR))|" \
	    packaging/$$file.in > $(DESTDIR)$(LIBDIR)/$$to/$$file; \
	  chmod 644 $(DESTDIR)$(LIBDIR)/$$to/$$file; \
	done

.PHONY: clean
clean: ## remove everything that was built
	$(CARGO) clean

ifdef INSTALLED
$(INSTALLED): $(VENV)/bin/python $(MODULE)
	rm -f $(VENV)/.module-*
	$(PYTHON) -m pip install -q --disable-pip-version-check --force-reinstall --no-deps $(MODULE)
	touch $@
endif

$(VENV)/bin/python:
	@packaging/need python3 venv cc
	python3 -m venv $(VENV)

$(VENV)/.test: $(VENV)/bin/python packaging/test-requirements.txt
	$(PYTHON) -m pip install -q --disable-pip-version-check -r packaging/test-requirements.txt
	touch $@

$(VENV)/.wheel: $(VENV)/bin/python packaging/wheel-requirements.txt
	$(PYTHON) -m pip install -q --disable-pip-version-check -r packaging/wheel-requirements.txt
	touch $@

$(VENV)/.bench: $(VENV)/bin/python packaging/bench-requirements.txt
	@packaging/need cc pkg-config libmemcached libpq libmariadb zlib python-headers
	$(PYTHON) -m pip install -q --disable-pip-version-check -r packaging/bench-requirements.txt
	touch $@

$(CBINDGEN):
	@packaging/need cc
	$(CARGO) install -q cbindgen --version =$(CBINDGEN_VERSION) --locked --root target/tools

$(CARGO_FUZZ):
	@packaging/need cc
	$(CARGO) install -q cargo-fuzz --version =$(CARGO_FUZZ_VERSION) --locked --root target/tools
