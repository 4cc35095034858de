# What there is to do: `make help`.

# Seconds for each fuzz target in `make test`: what any initiator reaches gets them whole, the others a sixth of them;
# `make fuzz FUZZ_SECONDS=3600` for as long as one likes.
FUZZ_SECONDS ?= 60
# Twice as many as there are processors: what is wanted is that each has its time.
FUZZ_AT_ONCE ?= $(shell echo $$(($$(nproc) * 2)))
# `make test` has the fuzzers built in a hurry, while the unit tests run, which mostly wait. If that fails, the fuzz step
# says so.
FUZZ_BUILD ?=
MEANWHILE ?= :
FUZZ_WHOLE = login full_feature cdb
FUZZ_SIXTH = api guest_memory lists nvme nvme_auth nvme_connect nvme_tcp_start nvme_tcp_queue raw_cdb \
	text pdu initiator initiator_commands isns nvme_host nvme_tcp_host vfio_host vfio_messages vfio_pointers vfio_registers
# Parts and options of the conformance run: `make conform CONFORM="hostile --driver epoll"`.
CONFORM ?= all
CARGO ?= cargo
# Whole targets that `make unit` and `make test` simulate; `cargo test` alone simulates fewer.
SEEDS ?= 1000
# Seconds that the unit tests may take once they are built (they take about 150): a test that hangs ends with a sentence.
UNIT_SECONDS ?= 900

.NOTPARALLEL:
.PHONY: help run release test needs deps format lint unit conform fuzz bench

## help: this list
help:
	@sed -n 's/^## /  make /p' Makefile

## run: build it and serve a demo disk until Ctrl-C
run: needs
	$(CARGO) run --profile demo -p lunar -- demo

## release: the fastest build, which learns from loads of its own what is hot: target/trained/release/lunar
release: needs
	check/bench/release

## test: everything, from format to crashes, with what it needs installed first
test: CONFORM = all --checked
test: FUZZ_BUILD = --quick
# cargo lets go of the folder once it has seen that all is built.
test: MEANWHILE = sleep 2; check/fuzz/run $(FUZZ_BUILD) --build
# One build is compiled, tested and linted, instead of two; the odd word is what clippy parts arguments with.
test: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test: export CLIPPY_ARGS = -Dwarnings__CLIPPY_HACKERY__
test: deps format unit fuzz conform

## needs: install what a build needs and this machine lacks
needs:
	@pkg-config --exists openssl 2>/dev/null || check/conform/deps.sh build

## deps: install what the tests need and this machine lacks
deps:
	@echo "== deps"
	@check/conform/deps.sh

## format: is the source formatted?
format:
	@echo "== format"
	$(CARGO) fmt --all --check

## lint: clippy, every warning an error
lint:
	@echo "== lint"
	$(CARGO) clippy --all-targets --locked -- -D warnings

## unit: unit tests, conversations, properties, simulated lives
unit:
	@echo "== unit"
	$(CARGO) test --locked --no-run
	@{ $(MEANWHILE); } >/dev/null 2>&1 & beside=$$!; \
	LUNAR_SEEDS=$(SEEDS) timeout $(UNIT_SECONDS) $(CARGO) test --locked; status=$$?; \
	[ $$status -ne 124 ] || echo "a test hangs: the last named above" >&2; \
	wait $$beside; exit $$status

## fuzz: every fuzz target, for FUZZ_SECONDS (60) seconds or a sixth of that
fuzz:
	@echo "== fuzz, $(FUZZ_SECONDS) s for each target or a sixth of that, $(FUZZ_AT_ONCE) at a time"
	@[ "$$(echo $(FUZZ_WHOLE) $(FUZZ_SIXTH) | tr ' ' '\n' | sort)" = "$$(ls check/fuzz/src/bin | sed 's/\.rs$$//' | sort)" ] \
		|| { echo "the Makefile does not name every target of check/fuzz/src/bin" >&2; exit 1; }
	@{ printf '$(FUZZ_SECONDS) %s\n' $(FUZZ_WHOLE); printf "$$(($(FUZZ_SECONDS) / 6)) %s\n" $(FUZZ_SIXTH); } \
		| xargs -P $(FUZZ_AT_ONCE) -L 1 check/fuzz/run $(FUZZ_BUILD)

## conform: real initiators, hostile clients and crashes; CONFORM="libiscsi --driver epoll" for a part
conform:
	@echo "== conform"
	$(CARGO) build --bins --locked
	$${CARGO_TARGET_DIR:-target}/debug/lunar-conform $(CONFORM)

## bench: benchmarks with plots, into check/bench/results/
bench:
	check/bench/run
	check/bench/run --no-build --protocol nvme-tcp
