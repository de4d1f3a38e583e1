//! One dump of a table of sockets by SOCK_DIAG, message by message.
use std::io;

use parshall_core::sock_diag::{DumpRequest, Message, Messages, Table, push_dump, tables};
use parshall_evidence::socket::Selection;
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_sys::sock_diag::{DiagSocket, Plain, Reader};

use crate::diag_module;

/// The errno of a table that the kernel does not know, for lack of its module.
const ENOENT: i32 = 2;

/// Whether the kernel dumps all tables of a selection, which takes its modules. It is asked for the listeners of each, the
/// cheapest dump. Kernels without UDP-Lite have no sockets of it.
pub fn can_dump(selection: &Selection) -> bool {
    let listeners = Selection { states: 1 << LISTEN, ..selection.clone() };
    let asked = tables(selection).into_iter().filter(|asked| asked.table != Table::UdpLite);
    Dumper::open()
        .is_ok_and(|mut dumper| asked.into_iter().all(|asked| dumper.dump(asked, &listeners, &mut |_| ()).is_ok()))
}

/// An open SOCK_DIAG socket with the buffers of its requests and answers.
#[derive(Debug)]
pub(crate) struct Dumper {
    pub(crate) reader: Plain,
    pub(crate) sequence: u32,
    pub(crate) request: Vec<u8>,
}

impl Dumper {
    /// Opens a socket in the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        let mut reader = Plain::default();
        reader.attach(DiagSocket::open()?);
        Ok(Self { reader, sequence: 0, request: Vec::with_capacity(4096) })
    }

    /// Gives each socket of one table to `take`, still encoded. Loads the kernel's module for the table where that is needed and
    /// this process may. Returns whether the table changed during the walk in a way that may
    /// have skipped sockets.
    pub(crate) fn dump(
        &mut self,
        asked: DumpRequest,
        selection: &Selection,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        let unknown = |done: &io::Result<bool>| done.as_ref().is_err_and(|e| e.raw_os_error() == Some(ENOENT));
        let mut done = self.try_dump(asked, selection, take);
        if unknown(&done) && diag_module::load(asked.table) {
            done = self.try_dump(asked, selection, take);
        }
        if unknown(&done) {
            return Err(io::Error::new(io::ErrorKind::NotFound, diag_module::remedy(asked.table)));
        }
        done
    }

    fn try_dump(&mut self, asked: DumpRequest, selection: &Selection, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.request.clear();
        push_dump(&mut self.request, self.sequence, asked, selection, true);
        self.reader.ask(&self.request)?;
        let (sequence, mut ended, mut interrupted) = (self.sequence, None, false);
        while ended.is_none() {
            self.reader.receive(&mut |part| {
                let mut messages = Messages::new(part, sequence);
                for message in messages.by_ref() {
                    match message {
                        Message::Socket(payload) => take(payload),
                        Message::Done(errno) | Message::Refused(errno) => ended = Some(errno),
                    }
                }
                interrupted |= messages.interrupted();
            })?;
        }
        match ended.filter(|errno| *errno != 0) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(interrupted),
        }
    }
}
