//! Unwinds user stacks of programs that were built without frame pointers, by the call frame information (`.eh_frame`) of the files
//! that they have mapped.
//!
//! The kernel follows frame pointers only. Most distributions build their programs and libraries without them, so that its user
//! stacks end in libc. The probes therefore copy registers and the top of the stack, from which the callers can be found.
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;

use framehop::{CacheNative, FrameAddress, MayAllocateDuringUnwind, Unwinder, UnwinderNative};

use super::frame::FRAMES_MAX;
use super::maps::{self, Budget, Mapping};
use super::names::{MountTables, open_mapped};
use super::unwind_info::{Data, UnwindInfo};

/// Bytes of call frame information that are read at most, of all files together. Stacks end at files beyond that.
const READ_MAX: u64 = 32 << 20;
/// Processes whose mappings are kept at most.
const PROCESSES_MAX: usize = 512;
/// Bytes that the mappings of all processes may take.
const MAPS_MAX: u64 = 32 << 20;

/// Registers of a thread in user mode, and what its stack holds from `sp` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserStack {
    /// The process.
    pub tgid: u32,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer register, whatever the program uses it for.
    pub fp: u64,
    /// The link register; 0 where the machine has none.
    pub lr: u64,
    /// The stack's contents.
    pub memory: Vec<u8>,
}

struct Process {
    maps: Vec<Mapping>,
    unwinder: UnwinderNative<Data, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// Begins of the mappings that were added to the unwinder, or cannot be.
    tried: HashSet<u64>,
}

/// Unwind information of mapped files.
struct Files {
    /// By device and inode; None for a file without call frame information.
    known: HashMap<(u64, u64), Option<UnwindInfo>>,
    /// The rest of `READ_MAX`.
    bytes_left: u64,
    mount_tables: MountTables,
}

/// Unwinds stacks, and keeps what it has read of processes and files.
pub struct Unwinders {
    processes: HashMap<u32, Process>,
    files: Files,
    /// The rest of `MAPS_MAX`.
    maps_left: Budget,
}

impl Unwinders {
    /// Reads nothing yet.
    pub fn new() -> Self {
        let files = Files { known: HashMap::new(), bytes_left: READ_MAX, mount_tables: MountTables::new() };
        Self { processes: HashMap::new(), files, maps_left: Budget(MAPS_MAX) }
    }

    /// The addresses of a stack, innermost first: the instruction pointer and as many return addresses as can be found.
    pub fn unwind(&mut self, stack: &UserStack) -> Vec<u64> {
        let mut addresses = vec![stack.ip];
        if !self.processes.contains_key(&stack.tgid) {
            if self.processes.len() >= PROCESSES_MAX {
                return addresses;
            }
            self.processes.insert(stack.tgid, Process::new(stack.tgid, &mut self.maps_left));
        }
        let Some(process) = self.processes.get_mut(&stack.tgid) else { return addresses };
        let mut read = |address: u64| word(stack, address).ok_or(());
        let highest = process.maps.iter().map(|mapping| mapping.range.end).max().unwrap_or(0);
        let mut registers = registers(stack, highest);
        let mut at = FrameAddress::from_instruction_pointer(stack.ip);
        while addresses.len() < FRAMES_MAX {
            process.add_module(stack.tgid, at.address_for_lookup(), &mut self.files);
            let caller = process.unwinder.unwind_frame(at, &mut registers, &mut process.cache, &mut read);
            let Some(caller) = caller.ok().flatten() else { break };
            // Without information about a function the frame pointer is taken for one, which may lead anywhere.
            if maps::find(&process.maps, caller).is_none_or(|mapping| !mapping.executable) {
                break;
            }
            let Some(next) = FrameAddress::from_return_address(caller) else { break };
            addresses.push(caller);
            at = next;
        }
        addresses
    }
}

impl Process {
    fn new(tgid: u32, budget: &mut Budget) -> Self {
        let (unwinder, cache) = (UnwinderNative::new(), CacheNative::new_in());
        let maps = maps::read(tgid, budget, |_, executable| executable);
        Self { maps, unwinder, cache, tried: HashSet::new() }
    }

    /// Adds the file that holds an address.
    fn add_module(&mut self, tgid: u32, address: u64, files: &mut Files) {
        let Some(mapping) = maps::find(&self.maps, address) else { return };
        if mapping.inode == 0 || !mapping.executable || !self.tried.insert(mapping.range.start) {
            return;
        }
        let Some(module) = files.of(tgid, mapping).and_then(|info| info.module(mapping)) else { return };
        self.unwinder.add_module(module);
    }
}

impl Files {
    fn of(&mut self, tgid: u32, mapping: &Mapping) -> Option<&UnwindInfo> {
        let file = open_mapped(tgid, mapping, &mut self.mount_tables).ok()?;
        let metadata = file.metadata().ok()?;
        let id = (metadata.dev(), metadata.ino());
        let left = &mut self.bytes_left;
        self.known.entry(id).or_insert_with(|| UnwindInfo::read(&file, left)).as_ref()
    }
}

#[cfg(target_arch = "x86_64")]
fn registers(stack: &UserStack, _highest: u64) -> framehop::UnwindRegsNative {
    framehop::UnwindRegsNative::new(stack.ip, stack.sp, stack.fp)
}

#[cfg(target_arch = "aarch64")]
use arm64_registers as registers;

/// Programs with pointer authentication, as those of Debian 13, have a signature in the upper bits of return addresses. `highest` is an
/// address above which the process has no code.
#[cfg(any(target_arch = "aarch64", test))]
fn arm64_registers(stack: &UserStack, highest: u64) -> framehop::aarch64::UnwindRegsAarch64 {
    use framehop::aarch64::{PtrAuthMask, UnwindRegsAarch64};
    let mask = PtrAuthMask::from_max_known_address(highest.max(stack.ip).max(1));
    UnwindRegsAarch64::new_with_ptr_auth_mask(mask, stack.lr, stack.sp, stack.fp)
}

fn word(stack: &UserStack, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(stack.sp)?).ok()?;
    Some(u64::from_ne_bytes(stack.memory.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    /// The stack of a process that sleeps, whose frame pointer register is not known from outside.
    fn sleeping(pid: u32) -> Option<UserStack> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [.., sp, ip] = fields[..] else { return None };
        let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let (sp, ip) = (hex(sp)?, hex(ip)?);
        let end = maps::find(&maps::all(pid), sp)?.range.end;
        let mut memory = vec![0; usize::try_from((end - sp).min(16 << 10)).ok()?];
        File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut memory, sp).ok()?;
        Some(UserStack { tgid: pid, ip, sp, fp: 0, lr: 0, memory })
    }

    /// `sleep` waits in libc, which main() of the program called, which libc called.
    #[test]
    fn a_program_without_frame_pointers_has_its_whole_stack() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep runs");
        let pid = child.id();
        let asleep = || {
            let stack = sleeping(pid).filter(|stack| {
                let maps = maps::all(pid);
                maps::find(&maps, stack.ip).is_some_and(|mapping| mapping.module().starts_with("libc"))
            });
            (stack, std::thread::sleep(Duration::from_millis(20))).0
        };
        let stack = (0..250).find_map(|_| asleep());
        let maps = maps::all(pid);
        let addresses = stack.map(|stack| Unwinders::new().unwind(&stack)).unwrap_or_default();
        child.kill().and_then(|()| child.wait()).expect("our own child");
        let modules: Vec<String> = addresses.iter().filter_map(|a| Some(maps::find(&maps, *a)?.module())).collect();
        let program = modules.iter().position(|module| module == "sleep" || module == "coreutils");
        let program = program.unwrap_or_else(|| panic!("no frame of the program: {modules:?}"));
        assert!(program > 0 && modules[..program].iter().all(|module| module.starts_with("libc")), "{modules:?}");
        assert!(modules[program..].iter().any(|module| module.starts_with("libc")), "{modules:?}");
        assert_eq!(modules.last().map(String::as_str), Some(modules[program].as_str()), "{modules:?}");
    }

    #[test]
    fn signatures_of_return_addresses_are_cut_off_on_arm64() {
        let stack =
            UserStack { tgid: 1, ip: 0xaaaa_b54f_7000, sp: 0, fp: 0, lr: 0x002d_aaaa_b54f_7010, memory: Vec::new() };
        let registers = arm64_registers(&stack, 0xffff_a320_6000);
        assert_eq!(registers.lr(), 0xaaaa_b54f_7010);
        assert_eq!(registers.lr_mask().strip_ptr_auth(0xffb7_ffff_a320_5ffc), 0xffff_a320_5ffc);
        let gone = UserStack { ip: 0, lr: 0, ..stack };
        assert_eq!(arm64_registers(&gone, 0).lr(), 0);
    }

    #[test]
    fn random_stacks_end_and_never_panic() {
        let own = std::process::id();
        let code: Vec<Mapping> = maps::all(own).into_iter().filter(|mapping| mapping.executable).collect();
        let mut seed = 7_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 16
        };
        let mut unwinders = Unwinders::new();
        for _ in 0..500 {
            let inside = |next: &mut dyn FnMut() -> u64| {
                let mapping = &code[next() as usize % code.len()];
                mapping.range.start + next() % (mapping.range.end - mapping.range.start)
            };
            let sp = 0x7fff_0000_0000 + next() % 4096;
            let memory = (0..512).flat_map(|_| inside(&mut next).to_ne_bytes()).collect();
            let stack = UserStack { tgid: own, ip: inside(&mut next), sp, fp: next(), lr: 0, memory };
            let addresses = unwinders.unwind(&stack);
            assert!((1..=FRAMES_MAX).contains(&addresses.len()));
        }
    }

    #[test]
    fn a_process_that_is_gone_has_its_innermost_frame() {
        let stack = UserStack { tgid: u32::MAX, ip: 0x1234, sp: 0, fp: 0, lr: 0, memory: Vec::new() };
        assert_eq!(Unwinders::new().unwind(&stack), [0x1234]);
    }
}
