//! Owners from a BPF iterator over all descriptors, which takes about 0.3 us for each.
use anyhow::{Context, Result};
use parshall_bpf::sockets::owners::{self, ForeignSocket, Table};
use parshall_core::sockets::Owner;
use parshall_evidence::socket::SocketRecord;

use super::provider::{self, Account, DESCRIPTORS_MAX, Owners};

#[derive(Debug)]
pub struct Kernel {
    program: owners::Owners,
    table: Table,
}

impl Kernel {
    /// Loads the program. Needs CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// It is not permitted, or the kernel has no such iterator.
    pub fn load() -> Result<Self> {
        let program = owners::Owners::load().context("the iterator over descriptors could not be loaded")?;
        Ok(Self { program, table: Table::new(DESCRIPTORS_MAX) })
    }

    fn account(&self) -> Account {
        Account { descriptors: self.table.len() as u64, dropped: self.table.dropped(), hidden: 0 }
    }
}

impl Owners for Kernel {
    fn scan(&mut self) -> Result<Account> {
        self.program.read(&mut self.table).context("descriptors could not be read")?;
        Ok(self.account())
    }

    fn scan_with_foreign_sockets(&mut self) -> Result<(Account, Vec<ForeignSocket>)> {
        let foreign_sockets =
            self.program.read_with_foreign_sockets(&mut self.table).context("descriptors could not be read")?;
        Ok((self.account(), foreign_sockets))
    }

    fn of(&self, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>) {
        provider::of(&self.table, records, owners, ends);
    }
}
