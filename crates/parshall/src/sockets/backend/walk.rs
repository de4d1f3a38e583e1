//! One pass over the kernel's tables, all namespaces at once (BPF).
use parshall_bpf::sockets::walk::{Prefix, Sides, Walk as Kernel, WalkError, WalkSelection};
use parshall_core::sockets::{Selection, Side};
use parshall_evidence::socket::{Batch, Completeness};

use super::Backend;

/// The walk, with the selection that it was last given.
#[derive(Debug)]
pub struct Walk {
    kernel: Kernel,
    /// Kept from dump to dump: it is the same nearly always.
    wanted: Option<(Selection, WalkSelection)>,
}

impl Walk {
    /// Loads the program.
    ///
    /// # Errors
    /// What the kernel or the process lacks.
    pub fn open() -> Result<Self, WalkError> {
        Ok(Self { kernel: Kernel::open()?, wanted: None })
    }
}

impl Backend for Walk {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        if self.wanted.as_ref().is_none_or(|(last, _)| last != selection) {
            self.wanted = Some((selection.clone(), lower(selection)));
        }
        let (_, wanted) = self.wanted.as_ref().expect("it was set just now");
        Ok(self.kernel.dump(wanted, take)?)
    }
}

fn sides(side: Side) -> Sides {
    match side {
        Side::Local => Sides::Local,
        Side::Remote => Sides::Remote,
        Side::Either => Sides::Either,
    }
}

fn lower(selection: &Selection) -> WalkSelection {
    WalkSelection {
        groups: selection.groups,
        kinds: selection.kinds.bits(),
        states: selection.states,
        namespaces: selection.namespaces.clone(),
        cgroups: selection.cgroups.clone(),
        ports: selection.ports.iter().map(|(side, port)| (sides(*side), *port)).collect(),
        prefixes: selection
            .prefixes
            .iter()
            .map(|p| Prefix { sides: sides(p.side), network: p.network, length: p.length })
            .collect(),
        changed: selection.changed,
    }
}
