//! Unix sockets, with descriptors that travel with the bytes, and eventfds that cores signal.
//!
//! A connection of a Unix socket is one of the simulated network whose address no portal has. Descriptors are those of
//! the operating system: shared memory and eventfds. Bytes, descriptors and signals arrive in virtual time.

use super::core_state::Kind;
use super::driver::Core;
use super::job::{Signal, handle_of};
use super::link::{Listener, Ready, Side};
use super::pipe::{Ending, Found};
use super::state::{Event, State};
use super::trace::Sum;
use crate::eventfd;
use crate::op::{Handle, LocalSockets, Op};
use lunar_core::io::{Data, Done, Fault, Outcome};
use rustix::io::Errno;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::task::Waker;
use std::time::Duration;

/// From an [`Op::Signal`] to the signal, in nanoseconds: a system call takes some of them, another thread the most.
const SIGNAL_TIME_MAX: u64 = 20_000;

impl State {
    /// Starts to listen at a path. `None` when it is taken.
    fn listen_local(&mut self, core: usize, path: &Path) -> Option<SocketAddr> {
        if self.socket_paths.contains_key(path) {
            return None;
        }
        let address = SocketAddr::new(Ipv6Addr::from(u128::from(self.serial())).into(), 0);
        self.listeners.insert(address, Listener::new(core));
        self.socket_paths.insert(path.to_owned(), address);
        Some(address)
    }

    fn accept_local(&mut self, core: usize, address: SocketAddr) -> Result<u32, Errno> {
        let listener = self.listeners.get_mut(&address).ok_or(Errno::BADF)?;
        if listener.backlog.is_empty() {
            return Err(Errno::AGAIN);
        }
        if self.chance.odds(self.faults.accept_error) {
            return Err(Errno::MFILE);
        }
        let link = listener.backlog.pop_front().ok_or(Errno::AGAIN)?;
        self.note(format_args!("core {core} link {link}: accepted"));
        self.join(core, link).map(|_| link).ok_or(Errno::CONNABORTED)
    }

    /// Sends bytes with copies of descriptors; returns how many bytes there was room for.
    pub(super) fn put_local(
        &mut self,
        link: u32,
        side: Side,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<usize, Fault> {
        if let Some(fault) = self.cannot_send(link, side) {
            return Err(fault);
        }
        let copies: io::Result<Vec<_>> = descriptors.iter().map(|one| one.try_clone_to_owned()).collect();
        let copies = copies.map_err(|why| Fault::Os(why.raw_os_error().unwrap_or(0)))?;
        let Some(state) = self.links.get_mut(&link) else { return Ok(0) };
        if state.to(side.other()).room() == 0 || bytes.is_empty() {
            return Ok(0);
        }
        state.to(side.other()).attach(copies);
        self.put(link, side, bytes)
    }

    /// The descriptors that have come with the bytes that one side has received.
    pub(super) fn take_descriptors(&mut self, link: u32, side: Side) -> Vec<OwnedFd> {
        self.links.get_mut(&link).map_or_else(Vec::new, |state| state.to(side).take_descriptors())
    }

    /// Starts an operation on a Unix socket or an eventfd.
    pub(super) fn start_local(&mut self, core: usize, op: Op, done: Done) {
        let kind = handle_of(&op).and_then(|handle| self.cores[core].handles.get(&handle.id())).copied();
        match (op, kind) {
            (Op::Ready { file, to_write }, Some(Kind::Socket { link, side })) if self.links.contains_key(&link) => {
                if let Some(state) = self.links.get_mut(&link) {
                    state.end(side).readies.push(Ready { to_write, done, handle: file });
                }
                self.serve_readies(link, side);
            }
            (Op::Ready { file, .. }, Some(Kind::Socket { .. })) => {
                self.answer(core, done, Outcome::new(Ok(0)), Some(file));
            }
            (Op::Ready { file, .. }, Some(Kind::Listener(address))) if self.listeners.contains_key(&address) => {
                if let Some(listener) = self.listeners.get_mut(&address) {
                    listener.readies.push((done, file));
                }
                self.serve_listener_readies(address);
            }
            (Op::Signal { file }, Some(Kind::Eventfd)) => {
                let Some(eventfd) = self.eventfds.get(&(core, file.id())).cloned() else { return };
                let key = self.serial();
                self.signals.insert(key, Signal { core, eventfd, done, handle: file });
                if self.eager {
                    return self.signal_eventfd(key);
                }
                let wait = Duration::from_nanos(self.chance.within(0..=SIGNAL_TIME_MAX));
                self.schedule(self.now + wait, Event::Signal(key));
            }
            (op, _) => self.start_job(core, op, done),
        }
    }

    /// Answers those that wait until one side can receive or send.
    pub(super) fn serve_readies(&mut self, link: u32, side: Side) {
        let now = self.now;
        let can_fail = self.cannot_send(link, side).is_some();
        let Some(state) = self.links.get_mut(&link) else { return };
        let can_receive = state.to(side).found(now) != Found::Nothing;
        let can_send = can_fail || state.to(side.other()).room() > 0;
        let end = state.end(side);
        let Some(core) = end.core else { return };
        let waiting = std::mem::take(&mut end.readies).into_iter();
        let (ready, waiting) = waiting.partition(|ready| if ready.to_write { can_send } else { can_receive });
        end.readies = waiting;
        let ready: Vec<Ready> = ready;
        for Ready { done, handle, .. } in ready {
            self.answer(core, done, Outcome::new(Ok(0)), Some(handle));
        }
    }

    /// Answers those that wait for a connection, if there is one.
    pub(super) fn serve_listener_readies(&mut self, address: SocketAddr) {
        let Some(listener) = self.listeners.get_mut(&address).filter(|listener| !listener.backlog.is_empty()) else {
            return;
        };
        let core = listener.core;
        for (done, handle) in std::mem::take(&mut listener.readies) {
            self.answer(core, done, Outcome::new(Ok(0)), Some(handle));
        }
    }

    /// A signal reaches its eventfd.
    pub(super) fn signal_eventfd(&mut self, key: u64) {
        let Some(Signal { core, eventfd, done, handle }) = self.signals.remove(&key) else { return };
        self.note(format_args!("core {core} eventfd {}: signalled", handle.id()));
        eventfd::signal(&eventfd);
        self.left.wakers.append(&mut self.signal_wakers);
        self.answer(core, done, Outcome::new(Ok(0)), Some(handle));
    }

    pub(super) fn keep_signal_waker(&mut self, waker: &Waker) {
        if !self.signal_wakers.iter().any(|known| known.will_wake(waker)) {
            self.signal_wakers.push(waker.clone());
        }
    }

    /// Ends the signals of one handle of a core.
    pub(super) fn cancel_signals(&mut self, core: usize, id: u32) {
        let ours = |signal: &Signal| signal.core == core && signal.handle.id() == id;
        let keys: Vec<u64> = self.signals.iter().filter(|(_, signal)| ours(signal)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(Signal { done, handle, .. }) = self.signals.remove(&key) else { continue };
            self.refuse(core, done, Fault::Aborted, Data::None, Some(handle));
        }
    }

    /// The signals and eventfds of a core that is no more.
    pub(super) fn drop_signals(&mut self, core: usize) {
        self.eventfds.retain(|(owner, _), _| *owner != core);
        for (key, signal) in std::mem::take(&mut self.signals) {
            if signal.core == core {
                self.left.signals.push(signal);
            } else {
                self.signals.insert(key, signal);
            }
        }
    }
}

/// The error number of a fault of a connection.
fn errno(fault: Fault) -> Errno {
    match fault {
        Fault::Os(number) => Errno::from_raw_os_error(number),
        _ => Errno::IO,
    }
}

impl LocalSockets for Core {
    fn listen(&self, path: &Path) -> io::Result<Handle> {
        let address = self.world().enter(|state| state.listen_local(self.index(), path));
        let address = address.ok_or(io::ErrorKind::AddrInUse)?;
        Ok(self.open_kind(Kind::Listener(address)))
    }

    fn unlink(&self, listener: &Handle) {
        self.world().enter(|state| {
            if let Some(Kind::Listener(address)) = self.kind(state, listener.id()) {
                state.socket_paths.retain(|_, known| *known != address);
            }
        });
    }

    fn accept(&self, listener: &Handle) -> Result<Handle, Errno> {
        let link = self.world().enter(|state| match self.kind(state, listener.id()) {
            Some(Kind::Listener(address)) => state.accept_local(self.index(), address),
            _ => Err(Errno::BADF),
        })?;
        Ok(self.open_kind(Kind::Socket { link, side: Side::Server }))
    }

    fn receive(&self, socket: &Handle, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, Errno> {
        self.world().enter(|state| {
            let Some(Kind::Socket { link, side }) = self.kind(state, socket.id()) else { return Err(Errno::BADF) };
            let bytes = state.take(link, side, into.len()).map_err(errno)?.ok_or(Errno::AGAIN)?;
            let come = state.take_descriptors(link, side);
            state.note(format_args!(
                "core {} link {link}: receive {} {} with {} descriptors",
                self.index(),
                bytes.len(),
                Sum::of(&bytes),
                come.len()
            ));
            into[..bytes.len()].copy_from_slice(&bytes);
            descriptors.extend(come);
            Ok(bytes.len())
        })
    }

    fn send(&self, socket: &Handle, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        self.world().enter(|state| {
            let Some(Kind::Socket { link, side }) = self.kind(state, socket.id()) else { return Err(Errno::BADF) };
            let count = state.put_local(link, side, bytes, descriptors).map_err(errno)?;
            if count == 0 && !bytes.is_empty() {
                return Err(Errno::AGAIN);
            }
            state.note(format_args!("core {} link {link}: send {count} {}", self.index(), Sum::of(&bytes[..count])));
            Ok(count)
        })
    }

    fn shutdown(&self, socket: &Handle) {
        self.world().enter(|state| {
            let Some(Kind::Socket { link, side }) = self.kind(state, socket.id()) else { return };
            state.note(format_args!("core {} link {link}: shuts down", self.index()));
            state.end_pipe(link, side, Ending::Closed);
            state.end_pipe(link, side.other(), Ending::Closed);
        });
    }
}
