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
# The tests are built with PROFILE=dev and all at once: see .cargo/config.toml.
PROFILE ?= release
BUILT = target/$(PROFILE:dev=debug)
BUILD = $(CARGO) $(if $(filter dev,$(PROFILE)),build-tests,build --profile $(PROFILE) -p $(1))
VENV := target/venv
PYTHON := $(abspath $(VENV))/bin/python
CARGO_FUZZ_VERSION := 0.13.2
CARGO_FUZZ := target/tools/bin/cargo-fuzz
SECONDS ?= 20
RUFF := $(VENV)/bin/ruff
# Python without a suffix, which ruff does not find by itself.
SCRIPTS := benches/run benches/run-contended examples/dedupe/run examples/demo/run examples/payments/run examples/rate_limit/run fuzz/run \
  packaging/third-party tests/circles tests/docs/links tests/docs/samples tests/prove tests/repeat tests/run

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | sort | while IFS=$$'\t' read -r name text; do printf '  %-15s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build the C library (PROFILE=release)
	@packaging/need cc
	$(call BUILD,memlock-ffi)
	ln -sf libmemlock.so $(BUILT)/$(SONAME)

.PHONY: command
command: ## build the command `memlock` (PROFILE=release)
	@packaging/need cc
	$(call BUILD,memlock-cli)

.PHONY: build-examples
build-examples:
	@packaging/need cc
	$(call BUILD,memlock-examples)

.PHONY: demo
demo: build build-examples python ## show four languages at one job on a real memcached (FILES=… for files of your own)
	@packaging/need cc c++ memcached
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(BUILT) MEMLOCK_INCLUDE_DIR=include examples/demo/run $(FILES)

.PHONY: rate-limit
rate-limit: build build-examples python ## show 20 workers of whom at most 3 are in a section, one of them killed inside, in each language
	@packaging/need cc c++ memcached
	PYTHON=$(PYTHON) MEMLOCK_LIB_DIR=$(BUILT) MEMLOCK_INCLUDE_DIR=include examples/rate_limit/run

.PHONY: payments
payments: python ## show that a worker which overslept its lock cannot pay twice: a fence check at a SQLite table
	@packaging/need memcached
	PYTHON=$(PYTHON) examples/payments/run

.PHONY: dedupe
dedupe: build ## show jobs that are handed in many times and done once, with producers and consumers that are killed
	@packaging/need c++ memcached
	MEMLOCK_LIB_DIR=$(BUILT) MEMLOCK_INCLUDE_DIR=include examples/dedupe/run

# Each suite installs and builds what it needs; tests/run runs it, with a time limit for each test, and lists what failed.
SUITES := rust native install python
TEST := CARGO=$(CARGO) PYTHON=$(PYTHON) tests/run
NEEDS_rust := cc c++ memcached redis-server postgresql pgbouncer mariadbd mariadb openssl ip nft
NEEDS_native := cc c++ memcached python3
NEEDS_install := cc c++ pkg-config cmake memcached
NEEDS_python := memcached postgresql mariadbd faketime python-testsuite

test test-rust test-native test-install test-python: export PROFILE := dev

.PHONY: test
test: ## run all tests
	@packaging/need python3 venv $(foreach suite,$(SUITES),$(NEEDS_$(suite)))
	+$(MAKE) -j2 --no-print-directory build $(VENV)/.test
	+$(MAKE) --no-print-directory python
	$(TEST) $(SUITES)

.PHONY: test-rust
test-rust: python $(VENV)/.test ## the Rust tests: units, the conformance suites in every language, faults, leases, processes
	@packaging/need $(NEEDS_rust)
	$(TEST) rust

.PHONY: test-native
test-native: build command build-examples ## the C and C++ programs, under the sanitizers; the rate limit, the jobs, the docs' samples
	@packaging/need $(NEEDS_native)
	$(TEST) native

.PHONY: test-install
test-install: build ## what `make install` puts in place: pkg-config, CMake, static and shared
	@packaging/need $(NEEDS_install)
	$(TEST) install

.PHONY: test-python
test-python: python $(VENV)/.test ## the Python tests, types included; the rate limit in Python; the payments; the docs' samples
	@packaging/need $(NEEDS_python)
	$(TEST) python

.PHONY: gate
gate: ## what decides about a change: .ci/run
	.ci/run

.PHONY: prove
prove: build command python $(VENV)/.test ## search for what no test has seen, and measure what takes real time (PARTS=… for some, SEED=… for the same again; an hour)
	@packaging/need valgrind $(foreach suite,$(SUITES),$(NEEDS_$(suite)))
	CARGO=$(CARGO) PYTHON=$(PYTHON) tests/prove $(PARTS) $(if $(SEED),--seed $(SEED))

# The simulation's hooks are in no other build: so it has a place of its own.
SIMULATE := RUSTFLAGS="--cfg memlock_sim" $(CARGO)
SIMULATION := target/simulation/simulation/simulation
SEEDS ?= 20000

.PHONY: simulation
simulation:
	@packaging/need cc
	$(SIMULATE) build --profile simulation -q -p memlock-simulation --target-dir target/simulation

.PHONY: sim
sim: simulation ## run memlock in a simulated world (SEEDS=20000 FIRST=1; SEED=n replays one)
	$(SIMULATION) $(if $(SEED),seed $(SEED),seeds $(SEEDS) $(FIRST))

.PHONY: sim-mutations
# A mutation is searched for until it is found; the rarest takes some 40,000 seeds.
sim-mutations sim-record: SEEDS := 200000
sim-mutations: simulation ## mutation tests: put faults into memlock, one after another; the simulation must find each (FIRST=n searches)
	$(SIMULATION) mutations $(SEEDS) $(FIRST)

.PHONY: sim-record
sim-record: simulation ## record in simulation/regressions by which seed each mutation is found
	$(SIMULATION) record $(SEEDS)

.PHONY: sanitize
sanitize: ## watch the code run: model tests, Miri, thread and address sanitizers, leaks (PARTS=… for some; wants nightly)
	@packaging/need cc c++ memcached python3
	tests/sanitize/run $(PARTS)

FAULTS := target/debug/examples/faults
FAULTS_C_CLIENT := target/debug/fault-client-c

.PHONY: faults
faults: $(FAULTS) ## cut, delay, kill, stop, fill and starve clients, wire and server, one after the other (ARGS=WORD for some, SEED=n; 2 minutes)
	$(if $(SEED),MEMLOCK_SEED=$(SEED)) PYTHON=$(PYTHON) FAULTS_C_CLIENT=$(abspath $(FAULTS_C_CLIENT)) $(FAULTS) $(ARGS)

.PHONY: soak
soak: $(FAULTS) ## the same faults at random, several at once, for MINUTES=n (also 0.3; SEED=n)
	$(if $(SEED),MEMLOCK_SEED=$(SEED)) PYTHON=$(PYTHON) FAULTS_C_CLIENT=$(abspath $(FAULTS_C_CLIENT)) $(FAULTS) soak $(MINUTES)

.PHONY: $(FAULTS)
$(FAULTS): build python
	@packaging/need cc memcached ip
	$(CARGO) test -q --workspace --example faults
	$(CARGO) build --workspace --examples
	$(CC) -std=gnu11 -O1 -g -Wall -Wextra -Wpedantic -Werror -Iinclude tests/faults/client.c -o $(FAULTS_C_CLIENT) \
	  -L$(BUILT) -lmemlock -Wl,-rpath,$(abspath $(BUILT))

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
check: $(VENV)/.test ## formatting, lints, import circles, links in the docs
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -q --no-deps --lib -p memlock-core
	tests/circles memlock-core memlock-py memlock-cli memlock-ffi simulation
	tests/docs/links
	$(RUFF) check . $(SCRIPTS)
	$(RUFF) format --check . $(SCRIPTS)

.PHONY: check-builds
check-builds: ## lints of other builds than that of the tests: the simulation, the models, the fuzzers' targets, each store alone; links in the comments of tests/support
	$(SIMULATE) clippy --profile simulation -q -p memlock-simulation --target-dir target/simulation -- -D warnings
	RUSTFLAGS="--cfg shuttle" $(CARGO) clippy -q -p memlock-core --lib --tests --target-dir target/sanitize/shuttle -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -q --no-deps --lib -p memlock-tests
	RUSTFLAGS="--cfg fuzzing" $(CARGO) clippy -q --manifest-path fuzz/Cargo.toml --target-dir target/fuzzing -- -D warnings
	for store in memcached mysql postgresql redis sqlite; do \
	  $(CARGO) clippy -q -p memlock-ffi --no-default-features --features $$store -- -D warnings || exit 1; \
	  echo "$$store alone: no warnings"; \
	done

.PHONY: header
header: ## write include/memlock.h anew from memlock-ffi/src
	MEMLOCK_WRITE_HEADER=1 $(CARGO) test -q --workspace --test header

.PHONY: fmt
fmt: $(VENV)/.test ## format Rust and Python
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	$(RUFF) format . $(SCRIPTS)

# The static library without the symbols that only it needs, and without debug information.
ARCHIVE = $(BUILT)/installed/libmemlock.a

.PHONY: install
install: build command ## install the command, libraries, headers, pkg-config and CMake files (PREFIX=, LIBDIR=, DESTDIR=)
	$(MAKE) --no-print-directory install-built

# As `install`, of what is built already.
.PHONY: install-built
install-built:
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(DATADIR)/man/man1 $(DESTDIR)$(DATADIR)/bash-completion/completions \
	  $(DESTDIR)$(DATADIR)/zsh/site-functions $(DESTDIR)$(DATADIR)/fish/vendor_completions.d
	install -m 755 $(BUILT)/memlock $(DESTDIR)$(BINDIR)/memlock
	rm -rf $(BUILT)/pages && mkdir $(BUILT)/pages && $(BUILT)/memlock pages $(BUILT)/pages
	install -m 644 $(BUILT)/pages/*.1 $(DESTDIR)$(DATADIR)/man/man1
	for shell in bash:bash-completion/completions/memlock zsh:zsh/site-functions/_memlock fish:fish/vendor_completions.d/memlock.fish; do \
	  $(BUILT)/memlock completions $${shell%%:*} > $(BUILT)/pages/completions; \
	  install -m 644 $(BUILT)/pages/completions $(DESTDIR)$(DATADIR)/$${shell#*:}; \
	done
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/memlock $(DESTDIR)$(INCLUDEDIR)
	install -m 755 $(BUILT)/libmemlock.so $(DESTDIR)$(LIBDIR)/libmemlock.so.$(VERSION)
	ln -sf libmemlock.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libmemlock.so
	if ! [ $(ARCHIVE) -nt $(BUILT)/libmemlock.a ]; then \
	  install -D -m 644 $(BUILT)/libmemlock.a $(ARCHIVE).new && strip --strip-debug $(ARCHIVE).new && \
	  packaging/hide-symbols $(ARCHIVE).new $(BUILT)/libmemlock.so && mv $(ARCHIVE).new $(ARCHIVE); \
	fi
	install -m 644 $(ARCHIVE) $(DESTDIR)$(LIBDIR)/libmemlock.a
	install -m 644 include/memlock.h include/memlock.hpp $(DESTDIR)$(INCLUDEDIR)
	for file in memlock.pc memlock-config.cmake memlock-config-version.cmake; do \
	  case $$file in *.pc) to=pkgconfig ;; *) to=cmake/memlock ;; esac; \
	  sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|; s|@SONAME@|$(SONAME)|' \
	    -e 's|@RPATH@|$(if $(filter /usr/lib%,$(LIBDIR)),,-Wl,-rpath,$${libdir})|' \
	    -e "s|@LIB_TO_INCLUDE@|$$(realpath -ms --relative-to=$(LIBDIR) $(INCLUDEDIR))|" \
	    packaging/$$file.in > $(DESTDIR)$(LIBDIR)/$$to/$$file; \
	  chmod 644 $(DESTDIR)$(LIBDIR)/$$to/$$file; \
	done

.PHONY: dist
dist: ## build what is published into target/dist: wheel, sdist, Debian packages, the command as a static file, the C library
	@packaging/need cc c++ python3 venv dh dh_python3
	CARGO=$(CARGO) VERSION=$(VERSION) packaging/dist

.PHONY: test-dist
test-dist: ## use each file of target/dist in a minimal Debian without Rust or a compiler (as root; SUITE=bookworm)
	@packaging/need debootstrap lintian memcached pkill readelf venv
	tests/dist/run

.PHONY: clean
clean: ## remove everything that was built
	$(CARGO) clean

INSTALL_MODULE_release = $(PYTHON) -m pip install -q --disable-pip-version-check ./memlock-py
# What maturin would build anew, with features of its own.
define INSTALL_MODULE_dev
$(call BUILD)
folder=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/memlock && rm -rf $$folder && \
  cp -r memlock-py/python/memlock $$folder && cp $(BUILT)/lib_memlock.so $$folder/_memlock.abi3.so && \
  $(PYTHON) -m compileall -q $$folder
endef

.PHONY: python
python: $(VENV)/bin/python
	$(INSTALL_MODULE_$(PROFILE))

$(VENV)/bin/python:
	@packaging/need python3 venv cc
	python3 -m venv $(VENV)

$(VENV)/.test: $(VENV)/bin/python packaging/test-requirements.txt
	$(PYTHON) -m pip install -q --disable-pip-version-check -r packaging/test-requirements.txt
	touch $@

$(VENV)/.bench: $(VENV)/bin/python packaging/bench-requirements.txt
	@packaging/need cc pkg-config libmemcached libpq libmariadb zlib python-headers
	$(PYTHON) -m pip install -q --disable-pip-version-check -r packaging/bench-requirements.txt
	touch $@

$(CARGO_FUZZ):
	@packaging/need cc
	$(CARGO) install -q cargo-fuzz --version =$(CARGO_FUZZ_VERSION) --locked --root target/tools
