//! Compiles the probes into `OUT_DIR` and generates their skeleton; a plain `cargo build` is all it takes.
use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::{Btf, BtfKind, BtfType};

#[path = "src/diagnose/counter.rs"]
mod counter;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=src");
    if Command::new("clang").arg("--version").output().is_err() {
        println!("cargo:error=clang is needed to build the BPF probes; on Debian: apt-get install clang");
        std::process::exit(1);
    }
    // The record that user space reads in place is defined once, in Rust.
    std::fs::write(out.join("socket_record.h"), parshall_evidence::socket::c_header()).expect("OUT_DIR is writable");
    std::fs::write(out.join("followed.h"), followed_header()).expect("OUT_DIR is writable");
    std::fs::write(out.join("counters.h"), counters_header()).expect("OUT_DIR is writable");
    let followed: Vec<&str> = FOLLOWED.iter().map(|name| without_flavor(name)).collect();
    std::fs::write(out.join("followed.rs"), format!("&{followed:?}")).expect("OUT_DIR is writable");
    let mut args: Vec<std::ffi::OsString> = vec!["-Wall".into(), "-Werror".into(), "-Wno-unused-function".into()];
    // The objects name their sources. Those names must not differ from one directory to the next, or the binaries of `make dist` do.
    for (dir, name) in [(&root, "crates/bpf"), (&out, "out")] {
        args.push(format!("-ffile-prefix-map={}={name}", dir.display()).into());
    }
    for dir in [root.join("include"), root.join("src"), out.clone()] {
        args.push("-I".into());
        args.push(dir.into());
    }
    // clang for BPF does not search the multiarch directory, where asm/types.h lives, nor that of Debian's packages for building for
    // another architecture.
    if let Ok(target) = env::var("CARGO_CFG_TARGET_ARCH") {
        for dir in [format!("/usr/include/{target}-linux-gnu"), format!("/usr/{target}-linux-gnu/include")] {
            args.push("-I".into());
            args.push(dir.into());
        }
    }
    let objects = [
        ("src/diagnose/probes.bpf.c", "probes"),
        ("src/diagnose/classic/classic.bpf.c", "classic"),
        ("src/diagnose/event/event.bpf.c", "event"),
        ("src/diagnose/log/log.bpf.c", "log"),
        ("src/diagnose/uring/uring.bpf.c", "uring"),
        ("src/kernel_names/names.bpf.c", "kernel_names"),
        ("src/lab/loss.bpf.c", "loss"),
        ("src/sockets/closes.bpf.c", "socket_closes"),
        ("src/sockets/owners.bpf.c", "socket_owners"),
        ("src/sockets/walk.bpf.c", "walk"),
        ("src/sockets/walk.bpf.c", "walk_copies"),
    ];
    for (source, name) in objects {
        let mut args = args.clone();
        if name == "loss" {
            // It counts with an instruction that returns the old value (Linux 5.12); TCX is younger still.
            args.push("-mcpu=v3".into());
        }
        if name == "walk_copies" {
            args.push("-DWALK_COPIES".into());
        }
        generate(&root.join(source), &out.join(name), &args);
    }
    build_older(&root, &out, &args);
    // The probes' decoder of frames (frame.h), as a function of user space too.
    cc::Build::new().file(root.join("src/diagnose/frame/native.c")).warnings_into_errors(true).compile("frame");
    let names = |objects: &[&str]| {
        let mut names: Vec<String> =
            objects.iter().flat_map(|name| type_names(&out.join(format!("{name}.bpf.o")))).collect();
        names.sort();
        names.dedup();
        format!("&{names:?}")
    };
    std::fs::write(out.join("type_names.rs"), names(&["probes", "older/probes"])).expect("OUT_DIR is writable");
    let of_sockets = names(&["socket_closes", "socket_owners", "walk", "walk_copies"]);
    std::fs::write(out.join("socket_type_names.rs"), of_sockets).expect("OUT_DIR is writable");
}

/// Compiles a source into `TO.bpf.o` and its skeleton `TO.skel.rs`, which opens the object by its [`pack`]ed form.
fn generate(source: &Path, to: &Path, args: &[std::ffi::OsString]) {
    SkeletonBuilder::new()
        .source(source)
        .obj(to.with_extension("bpf.o"))
        .clang_args(args)
        // No program has this name: the code stays as it is. Formatting the bytes of the objects takes longer than compiling this crate's
        // build script, and rustup's minimal profile has no rustfmt.
        .rustfmt("")
        .build_and_generate(to.with_extension("skel.rs"))
        .unwrap_or_else(|e| {
            println!("cargo:error=the BPF probes of {} do not compile: {e:#}", source.display());
            std::process::exit(1);
        });
    let packed = pack(to);
    let path = to.with_extension("skel.rs");
    let skeleton = std::fs::read_to_string(&path).expect("it was written");
    // The object is the last item of the skeleton's module.
    let (code, _) =
        skeleton.split_once("#[unsafe(link_section = \".bpf.objs\")]").expect("the skeleton has the object");
    assert_eq!(code.matches(OPENED).count(), 1, "the skeleton opens its object in one place");
    let code = code.replace(OPENED, "ObjectSkeletonConfigBuilder::new(DATA.bytes())");
    let data = format!("    static DATA: crate::packed::Packed = {packed};\n}}\n");
    std::fs::write(path, code + &data).expect("OUT_DIR is writable");
}

/// How a skeleton opens its object.
const OPENED: &str = "ObjectSkeletonConfigBuilder::new(&DATA)";

/// Compresses `TO.bpf.o`. Returns the expression that user space has it by, which is in `TO.packed.rs` too.
fn pack(to: &Path) -> String {
    let object = std::fs::read(to.with_extension("bpf.o")).expect("it was written");
    // Compressed by zstd they are a fourth smaller, 0.1 MB in all; but its C code would have to be built for the build script too.
    let mut compressor = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    compressor.write_all(&object).expect("it is written to memory");
    let compressed = compressor.finish().expect("it is written to memory");
    let path = to.with_extension("bpf.o.deflate");
    std::fs::write(&path, compressed).expect("OUT_DIR is writable");
    let packed = format!("crate::packed::Packed::new(include_bytes!({path:?}), {})", object.len());
    std::fs::write(to.with_extension("packed.rs"), &packed).expect("OUT_DIR is writable");
    packed
}

/// Builds the object for kernels before 5.12 (diagnose/older.bpf.h), and lets the skeleton of the other one open either: user space
/// names their maps, programs and variables once.
fn build_older(root: &Path, out: &Path, args: &[std::ffi::OsString]) {
    std::fs::create_dir_all(out.join("older")).expect("OUT_DIR is writable");
    let args: Vec<_> = args.iter().cloned().chain(["-DOLDER".into()]).collect();
    generate(&root.join("src/diagnose/probes.bpf.c"), &out.join("older/probes"), &args);
    let skeleton = |path: &str| std::fs::read_to_string(out.join(path)).expect("it was written");
    let newer = skeleton("probes.skel.rs");
    let older = skeleton("older/probes.skel.rs");
    for section in ["rodata", "bss"] {
        assert_eq!(layout(&newer, section), layout(&older, section), "both objects have the same variables");
    }
    let either = newer.replace("DATA.bytes()", "crate::diagnose::probes::object(&DATA)");
    // The older object has more programs, which are found by their names.
    let unknown = "_ => panic!(\"encountered unexpected prog: `{name}`\")";
    assert!(either.contains(unknown), "the skeleton refuses programs that it does not know");
    let either = either.replace(unknown, "_ => {}");
    std::fs::write(out.join("probes.skel.rs"), either).expect("OUT_DIR is writable");
}

/// The variables of a section, as a skeleton has them. Maps and programs it finds by their names.
fn layout<'a>(skeleton: &'a str, section: &str) -> &'a str {
    let start = skeleton.find(&format!("pub struct {section} {{")).expect("the object has the section");
    let end = skeleton[start..].find('}').expect("the structure has an end");
    &skeleton[start..start + end]
}

/// Structures that programs follow pointers to by bpf_rdonly_cast(), as the C code names them (cast.bpf.h, follow.bpf.h).
const FOLLOWED: &[&str] = &[
    "cgroup",
    "dentry",
    "fdtable",
    "file",
    "files_struct",
    "hlist_head",
    "hlist_node",
    "inet_hashinfo",
    "inet_request_sock",
    "inet_timewait_death_row",
    "inet_timewait_sock",
    "inode",
    "ipv6_pinfo",
    "kernfs_node",
    "mptcp_sock",
    "mptcp_subflow_context",
    "net",
    "netns_ipv4___row",
    "nsproxy",
    "numa_drop_counters",
    "proto",
    "sk_buff",
    "sock",
    "sock_common",
    "socket",
    "tcp_sock",
    "timespec64",
    "udp_sock",
    "udp_table",
    "unix_address",
    "unix_sock",
];

/// Their places in the list of the kernel's numbers of types, which user space fills in before it loads a program.
fn followed_header() -> String {
    let places: String = FOLLOWED.iter().map(|name| format!("\tFOLLOWED_{name},\n")).collect();
    let ids = "const volatile __u32 followed_ids[FOLLOWED_TYPES] = {};";
    format!("/* Written by the build. */\n#pragma once\n\nenum followed {{\n{places}\tFOLLOWED_TYPES\n}};\n\n{ids}\n")
}

/// The kernel's name of a structure: what follows `___` tells the C declarations of one structure apart.
fn without_flavor(name: &str) -> &str {
    name.split("___").next().unwrap_or(name)
}

/// `enum counter` of the diagnosis.
fn counters_header() -> String {
    let names: String = counter::Counter::ALL.iter().map(|(_, name)| format!("\t{name},\n")).collect();
    format!("/* Written by the build. */\n#pragma once\n\nenum counter {{\n{names}\tCNT_N\n}};\n")
}

/// The names of the structures in the object, which are those of the kernel but for what follows `___`.
fn type_names(object: &Path) -> Vec<String> {
    let btf = Btf::from_path(object).expect("clang -g writes type information");
    let composite = |kind| matches!(kind, BtfKind::Struct | BtfKind::Union | BtfKind::Enum | BtfKind::Enum64);
    let mut names: Vec<String> = btf
        .type_by_kind::<BtfType<'_>>()
        .filter(|t| composite(t.kind()))
        .filter_map(|t| t.name().and_then(|n| n.to_str()).map(|n| without_flavor(n).to_owned()))
        .collect();
    names.sort();
    names
}
