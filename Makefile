# The two commands of the README are `make demo` and `make test`. Each sets up what it needs by itself.

.PHONY: help demo test build bench bless fmt clean

help:
	@echo "make demo    build, and diagnose a known fault"
	@echo "make test    all checks and tests (what CI runs)"
	@echo "make build   an optimised binary: target/release/parshall"
	@echo "make bench   the side-by-side measurements"
	@echo "make bless   rewrite the golden files from what the code prints now"

demo:
	@scripts/setup build
	@scripts/demo

test:
	@scripts/setup test
	@scripts/check

build:
	@scripts/setup build
	cargo build --locked --release

bench:
	@scripts/setup bench
	@scripts/bench

bless:
	BLESS=1 cargo test --locked --workspace --quiet

fmt:
	cargo fmt --all

clean:
	cargo clean
