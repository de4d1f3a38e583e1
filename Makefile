# The README names `make demo` and `make test`. Each installs what it needs first.

.PHONY: help demo test licences build bench bless fmt clean

help:
	@echo "make demo      build, and diagnose a known fault"
	@echo "make test      all checks and tests"
	@echo "make licences  licences and known vulnerabilities of the dependencies, by cargo-deny (CI runs this after make test)"
	@echo "make build     an optimised binary: target/release/parshall"
	@echo "make bench     the side-by-side measurements"
	@echo "make bless     rewrite the golden files and the drawing of imports from the code"

demo:
	@scripts/setup build
	@scripts/demo

test:
	@scripts/setup test
	@scripts/check

licences:
	@scripts/setup build
	@scripts/licences

build:
	@scripts/setup build
	cargo build --locked --release

bench:
	@scripts/setup bench
	@scripts/bench

bless:
	cargo xtask tidy --bless
	BLESS=1 cargo test --locked --workspace --quiet

fmt:
	cargo fmt --all

clean:
	cargo clean
