//! Compiles the probes into `OUT_DIR` and generates their skeleton; a plain `cargo build` is all it takes.
use std::env;
use std::path::PathBuf;
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=src");
    if Command::new("clang").arg("--version").output().is_err() {
        println!("cargo:error=clang is needed to build the BPF probes; on Debian: apt-get install clang");
        std::process::exit(1);
    }
    let mut args: Vec<std::ffi::OsString> = vec!["-Wall".into(), "-Werror".into(), "-Wno-unused-function".into()];
    for dir in [root.join("include"), root.join("src")] {
        args.push("-I".into());
        args.push(dir.into());
    }
    // clang for BPF does not search the host's multiarch directory, where asm/types.h lives.
    if let Ok(target) = env::var("CARGO_CFG_TARGET_ARCH") {
        args.push("-I".into());
        args.push(format!("/usr/include/{target}-linux-gnu").into());
    }
    for (source, skeleton) in [("src/probes.bpf.c", "probes.skel.rs"), ("src/classic/classic.bpf.c", "classic.skel.rs")]
    {
        SkeletonBuilder::new()
            .source(root.join(source))
            .clang_args(&args)
            .build_and_generate(out.join(skeleton))
            .unwrap_or_else(|e| {
                println!("cargo:error=the BPF probes of {source} do not compile: {e:#}");
                std::process::exit(1);
            });
    }
}
