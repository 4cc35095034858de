# `make help` lists the targets.

# Seconds for each fuzz target in `make test`. The targets for input that every client can send run for the whole time,
# the others for a sixth of it. `make fuzz FUZZ_SECONDS=3600` fuzzes for longer.
FUZZ_SECONDS ?= 12
# Fuzz targets that run at the same time. More than the number of processors: the limit of a target is wall-clock time.
FUZZ_AT_ONCE ?= $(shell echo $$(($$(nproc) * 2)))
# `make test` builds the fuzzers without optimization, while the unit tests run, because the unit tests do not use all
# processors. If this build fails, the fuzz step repeats it and reports the error.
FUZZ_BUILD ?=
MEANWHILE ?= :
FUZZ_WHOLE = login full_feature cdb aoe fcoe rdma st sst
FUZZ_SIXTH = api tape_cdb tape_file guest_memory handler lists nvme nvme_auth nvme_connect nvme_tcp_start nvme_tcp_queue raw_cdb rdma_client \
	text ublk pdu initiator initiator_commands isns nvme_host nvme_tcp_host vfio_host vfio_messages vfio_pointers vfio_registers \
	vhost_client vhost_messages vhost_packed vhost_split
# Parts and options of the conformance run: `make conform CONFORM="hostile --driver epoll"`.
CONFORM ?= all
CARGO ?= cargo
# Whole targets that `make unit` and `make test` simulate; `cargo test` alone simulates fewer.
SEEDS ?= 300
# Features that the unit tests have: without them, the programs that `make conform` runs are a second build of 40 crates.
TESTING = lunar-api/testing,lunar-blk/testing,lunar-durable/testing,lunar-nvme-tcp/testing,lunar-vfio-user/testing
# Time limit of the built unit tests, in seconds (they take about 150): a test that hangs is ended and reported.
UNIT_SECONDS ?= 900

.NOTPARALLEL:
.PHONY: help run release test needs rust deps format lint unit conform fuzz bench

## help: this list
help:
	@sed -n 's/^## /  make /p' Makefile

## run: build Lunar and serve a demo disk until Ctrl-C
run: needs
	$(CARGO) run --profile demo -p lunar -- demo

## release: the fastest build, with profile-guided optimization: target/trained/release/lunar
release: needs
	check/bench/release

## test: all tests, from the format to crashes; installs the packages that they need first
test: CONFORM = all --checked --rounds 20 --applies 8 --cuts 10
test: FUZZ_BUILD = --quick
# cargo holds the lock of the target folder until it has checked that the build is complete: start the other build later.
test: MEANWHILE = sleep 2; check/fuzz/run $(FUZZ_BUILD) --build
# clippy runs as part of the build of the tests, instead of in a second build. clippy-driver splits CLIPPY_ARGS at
# `__CLIPPY_HACKERY__`.
test: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test: export CLIPPY_ARGS = -Dwarnings__CLIPPY_HACKERY__
test: deps format unit fuzz conform

## needs: install the missing packages for a build
needs: rust
	@pkg-config --exists openssl 2>/dev/null || check/conform/deps.sh build

# A build without Rust would fail after it had installed packages.
rust:
	@command -v $(CARGO) >/dev/null || { \
		echo "make: cargo is missing: install Rust 1.90 or later (https://rustup.rs), and run make again" >&2; exit 1; }

## deps: install the missing packages for the tests
deps: rust
	@echo "== deps"
	@check/conform/deps.sh

## format: check the format of the source
format:
	@echo "== format"
	$(CARGO) fmt --all --check

## lint: clippy, every warning an error
lint:
	@echo "== lint"
	$(CARGO) clippy --all-targets --locked -- -D warnings

## unit: unit tests, protocol conversations, properties, simulations
unit:
	@echo "== unit"
	$(CARGO) test --locked --no-run
	@{ $(MEANWHILE); } >/dev/null 2>&1 & beside=$$!; \
	LUNAR_SEEDS=$(SEEDS) timeout $(UNIT_SECONDS) $(CARGO) test --locked; status=$$?; \
	[ $$status -ne 124 ] || echo "a test hangs: the last one without a result above" >&2; \
	wait $$beside; exit $$status

## fuzz: all fuzz targets, for FUZZ_SECONDS (20) seconds or a sixth of it
fuzz:
	@echo "== fuzz, $(FUZZ_SECONDS) s for each target or a sixth of that, $(FUZZ_AT_ONCE) at a time"
	@[ "$$(echo $(FUZZ_WHOLE) $(FUZZ_SIXTH) | tr ' ' '\n' | sort)" = "$$(ls check/fuzz/src/bin | sed 's/\.rs$$//' | sort)" ] \
		|| { echo "the Makefile does not name every target of check/fuzz/src/bin" >&2; exit 1; }
	@{ printf '$(FUZZ_SECONDS) %s\n' $(FUZZ_WHOLE); printf "$$(($(FUZZ_SECONDS) / 6)) %s\n" $(FUZZ_SIXTH); } \
		| xargs -P $(FUZZ_AT_ONCE) -L 1 check/fuzz/run $(FUZZ_BUILD)

## conform: real clients, hostile clients and crashes; CONFORM="libiscsi --driver epoll" runs a part
conform:
	@echo "== conform"
	$(CARGO) build --bins --locked --features $(TESTING)
	LUNAR_FEATURES=$(TESTING) $${CARGO_TARGET_DIR:-target}/debug/lunar-conform $(CONFORM)

## bench: benchmarks with plots, into check/bench/results/, and the performance model
bench:
	check/bench/run
	check/bench/run --no-build --protocol nvme-tcp
	check/bench/model fit
