//! Random loss at an interface's ingress: eight BPF instructions on the TCX hook, for hosts without netem.
//!
//! Loss must be made where packets arrive. It cannot be made at the sender's egress: the stack takes a drop there for
//! local congestion and does not wait for an ACK that will not come. The interface should receive single segments
//! (TSO and GRO off): a dropped super-packet is a burst of forty.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// linux/bpf.h.
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_FUNC_GET_PRANDOM_U32: i32 = 7;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
const MILLION: i32 = 1_000_000;

/// Loss on one interface; dropping it ends the loss.
#[derive(Debug)]
pub struct TcxLoss {
    _link: OwnedFd,
}

impl TcxLoss {
    /// Drops `ppm` packets in a million at the ingress of an interface of the calling thread's namespace.
    pub fn attach(interface_index: u32, ppm: u32) -> io::Result<Self> {
        let context = |error: io::Error| io::Error::new(error.kind(), format!("attaching BPF loss: {error}"));
        let program = load(ppm.min(MILLION as u32)).map_err(context)?;
        let mut attr = [0u8; 64];
        put(&mut attr, 0, &(program.as_raw_fd() as u32).to_ne_bytes());
        put(&mut attr, 4, &interface_index.to_ne_bytes());
        put(&mut attr, 8, &BPF_TCX_INGRESS.to_ne_bytes());
        // SAFETY: BPF_LINK_CREATE for TCX reads integers only; the program's descriptor is open.
        let link = unsafe { bpf(BPF_LINK_CREATE, &mut attr) }.map_err(context)?;
        Ok(Self { _link: link }) // The link holds the program.
    }
}

/// Instruction: opcode, destination register, offset, immediate.
fn instruction(opcode: u8, dst: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let mut bytes = [opcode, dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..8].copy_from_slice(&immediate.to_ne_bytes());
    bytes
}

fn program(ppm: u32) -> [u8; 64] {
    let code = [
        instruction(0x85, 0, 0, BPF_FUNC_GET_PRANDOM_U32), // r0 = random u32
        instruction(0xbc, 0, 0, 0),                        // w0 = w0: clear the upper half
        instruction(0x94, 0, 0, MILLION),                  // w0 %= 1000000
        instruction(0xa5, 0, 2, ppm as i32),               // if r0 < ppm goto drop
        instruction(0xb7, 0, 0, TCX_NEXT),
        instruction(0x95, 0, 0, 0),
        instruction(0xb7, 0, 0, TCX_DROP),
        instruction(0x95, 0, 0, 0),
    ];
    let mut bytes = [0; 64];
    for (to, from) in bytes.chunks_exact_mut(8).zip(code) {
        to.copy_from_slice(&from);
    }
    bytes
}

fn load(ppm: u32) -> io::Result<OwnedFd> {
    let code = program(ppm);
    let mut attr = [0u8; 128];
    put(&mut attr, 0, &BPF_PROG_TYPE_SCHED_CLS.to_ne_bytes());
    put(&mut attr, 4, &((code.len() / 8) as u32).to_ne_bytes());
    put(&mut attr, 8, &(code.as_ptr() as u64).to_ne_bytes());
    put(&mut attr, 16, &(c"GPL".as_ptr() as u64).to_ne_bytes());
    put(&mut attr, 48, b"parshall_loss"); // prog_name, 16 bytes
    // SAFETY: the instructions and the licence are pointed to by the attribute, have the length it says, and live
    // across the call; no log buffer is passed.
    unsafe { bpf(BPF_PROG_LOAD, &mut attr) }
}

fn put(attr: &mut [u8], at: usize, bytes: &[u8]) {
    attr[at..at + bytes.len()].copy_from_slice(bytes);
}

/// # Safety
/// Every pointer that `attr` holds for this command must be valid across the call. The command must return a descriptor.
unsafe fn bpf(command: libc::c_int, attr: &mut [u8]) -> io::Result<OwnedFd> {
    // SAFETY: attr lives across the call and has the length that is passed; the rest is the caller's promise.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), attr.len()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the command returned a new descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_compares_with_the_asked_rate() {
        let code = program(20_000);
        assert_eq!(code[24..32], [0xa5, 0, 2, 0, 0x20, 0x4e, 0, 0]);
    }
}
