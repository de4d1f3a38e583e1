//! What `parshall sockets` asks of BPF: one file per object, its programs in C beside the loader of the same name.
pub mod owners;
