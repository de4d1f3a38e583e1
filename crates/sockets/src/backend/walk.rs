//! The backend `walk`: one pass over the kernel's tables, by a BPF program. The pass itself is in `parshall_bpf`; here the
//! selection is put in its terms.
use parshall_bpf::sockets::{Prefix, Sides, Walk, WalkError, WalkSelection};
use parshall_core::sockets::{Selection, Side};
use parshall_evidence::socket::{Batch, Completeness};

use super::Backend;

/// The walk, loaded.
#[derive(Debug)]
pub struct WalkBackend(Walk);

impl WalkBackend {
    /// Loads it.
    ///
    /// # Errors
    /// What the kernel or the process lacks: then another backend is the one to use.
    pub fn open() -> Result<Self, WalkError> {
        Walk::open().map(Self)
    }
}

impl Backend for WalkBackend {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn leaves_out_unchanged(&self) -> bool {
        true
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        Ok(self.0.dump(&walk_selection(selection), take)?)
    }
}

fn sides(side: Side) -> Sides {
    match side {
        Side::Local => Sides::Local,
        Side::Remote => Sides::Remote,
        Side::Either => Sides::Either,
    }
}

/// The selection as the kernel side takes it. It applies every rule, so nothing is left to be sorted out here.
fn walk_selection(selection: &Selection) -> WalkSelection {
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

#[cfg(test)]
mod tests {
    use parshall_core::sockets::{Kind, Kinds, Prefix as Network};

    use super::*;

    #[test]
    fn every_rule_reaches_the_kernel_side() {
        let selection = Selection {
            kinds: Kinds::of([Kind::Tcp, Kind::Unix]),
            states: 1 << 10,
            namespaces: vec![7],
            cgroups: vec![8],
            ports: vec![(Side::Remote, 443)],
            prefixes: vec![Network { side: Side::Local, network: [10, 0, 0, 0].into(), length: 8 }],
            changed: true,
            ..Default::default()
        };
        let told = walk_selection(&selection);
        assert_eq!((told.kinds, told.states, told.changed), (1 | 8, 1 << 10, true));
        assert_eq!((told.namespaces, told.cgroups), (vec![7], vec![8]));
        assert_eq!(told.ports, [(Sides::Remote, 443)]);
        assert_eq!(told.prefixes, [Prefix { sides: Sides::Local, network: [10, 0, 0, 0].into(), length: 8 }]);
    }
}
