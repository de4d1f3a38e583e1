//! The owners of sockets: the processes that have them open. Each provider is a file.
mod kernel;
mod procfs;
mod provider;

pub use kernel::Kernel;
pub use procfs::Procfs;
pub use provider::Owners;

/// The cheapest provider that works here. The text says why it is not the iterator.
pub fn best() -> (Box<dyn Owners>, Option<String>) {
    match Kernel::load() {
        Ok(kernel) => (Box::new(kernel), None),
        Err(error) => (Box::new(Procfs::default()), Some(format!("owners are read from /proc: {error:#}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use parshall_evidence::socket::SocketRecord;

    use super::*;
    use parshall_testkit::root;

    /// The descriptors of this process for a socket. A child forked by another test holds copies until it calls exec.
    fn ours(provider: &mut dyn Owners, listener: &TcpListener) -> Vec<u32> {
        let account = provider.scan().expect("descriptors can be seen");
        assert!(account.descriptors > 0 && account.dropped == 0);
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino() as u32;
        let (mut owners, mut ends) = (Vec::new(), Vec::new());
        provider.of(&[SocketRecord { inode, ..Default::default() }], &mut owners, &mut ends);
        assert_eq!(ends, [owners.len()]);
        assert!(owners.iter().all(|owner| !owner.command.is_empty()));
        owners.iter().filter(|owner| owner.pid == std::process::id()).map(|owner| owner.fd).collect()
    }

    #[test]
    fn both_providers_find_the_same_owners() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let copy = listener.try_clone().unwrap();
        let found = ours(&mut Procfs::default(), &listener);
        // The copy has a lower number where another test closed a descriptor in between.
        let mut both = [listener.as_raw_fd() as u32, copy.as_raw_fd() as u32];
        both.sort_unstable();
        assert_eq!(found, both);
        if !root("owners from the kernel") {
            return;
        }
        assert_eq!(ours(&mut Kernel::load().expect("root may load programs"), &listener), found);
    }

    #[test]
    fn a_socket_without_descriptors_has_no_owner() {
        let mut procfs = Procfs::default();
        procfs.scan().unwrap();
        let (mut owners, mut ends) = (Vec::new(), Vec::new());
        let unheld = SocketRecord { address: 7, inode: u32::MAX, ..Default::default() };
        procfs.of(&[SocketRecord::default(), unheld], &mut owners, &mut ends);
        assert_eq!((owners, ends), (vec![], vec![0, 0]));
    }
}
