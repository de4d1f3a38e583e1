# The README names `make demo` and `make test`. Each installs what it needs first.

.PHONY: help demo test test-all licences build dist release bench book screenshots bless fmt clean

help:
	@echo "make demo      build a parshall that diagnoses, and let it diagnose a known fault"
	@echo "make build     an optimised binary with everything: target/release/parshall (DEBUG=1: with line numbers for debuggers)"
	@echo "make dist      what is released: a static binary, packages, an image, in target/dist (ARCH=aarch64: for arm64)"
	@echo "make release   VERSION=x.y.z: prepares a release, and prints what is left to do"
	@echo "make test      the checks and tests that CI runs"
	@echo "make test-all  every check and test; before a release"
	@echo "make licences  licences and known vulnerabilities of the dependencies, by cargo-deny"
	@echo "make bench     the side-by-side measurements"
	@echo "make book      the documentation as a site: target/book (fetches mdBook once)"
	@echo "make screenshots  the pictures of the README and the book, from saved cases"
	@echo "make bless     rewrite the golden files and the drawing of imports from the code"

demo:
	@scripts/setup build
	@scripts/demo

test:
	@scripts/setup test
	@scripts/check

test-all:
	@scripts/setup test-all
	@scripts/check --all

licences:
	@scripts/setup build
	@scripts/licences

build:
	@scripts/setup build
	$(if $(DEBUG),CARGO_PROFILE_RELEASE_DEBUG=line-tables-only )cargo build --locked --release

dist:
	@scripts/setup dist
	@scripts/dist $(if $(ARCH),--arch $(ARCH))

release:
	@scripts/setup dist
	@scripts/release "$(VERSION)" $(if $(TAG),--tag)

bench:
	@scripts/setup bench
	@scripts/bench

book:
	@scripts/setup book
	PATH="$$PATH:$$HOME/.cargo/bin" mdbook build

screenshots:
	@scripts/screenshots

bless:
	cargo xtask tidy --bless
	BLESS=1 cargo test --locked --workspace --quiet

fmt:
	cargo fmt --all

clean:
	cargo clean
