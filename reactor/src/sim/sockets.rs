//! Connections between the ends that live on cores and those that test code holds.

use super::core_state::Kind;
use super::job::handle_of;
use super::link::{End, Link, Listener, Ready, Receive, Send, Side};
use super::pipe::{Ending, Found, Pipe};
use super::state::{Event, State};
use super::trace::Sum;
use crate::op::Op;
use lunar_core::io::{Data, Done, Fault, Outcome};
use std::net::SocketAddr;
use std::task::Waker;

/// EPIPE: sending after the own side was closed.
const BROKEN_PIPE: Fault = Fault::Os(32);
/// ECONNRESET.
const RESET: Fault = Fault::Os(104);
/// EMFILE.
const NO_DESCRIPTOR: Fault = Fault::Os(24);

impl State {
    /// Handles a change at one side of a connection.
    pub(super) fn stir(&mut self, link: u32, side: Side) {
        let now = self.now;
        let Some(state) = self.links.get_mut(&link) else { return };
        state.to(side).land(now);
        if !state.end(side).open && matches!(state.to(side).found(now), Found::Bytes(_)) {
            // The receiver has closed: the answer is a reset.
            return self.end_pipe(link, side.other(), Ending::Reset);
        }
        let wakers = std::mem::take(&mut state.end(side).wakers);
        self.left.wakers.extend(wakers);
        self.serve_receives(link, side);
        self.pump(link, side);
        self.serve_readies(link, side);
    }

    fn stir_later(&mut self, link: u32, side: Side) {
        let wait = self.chance.time(&self.faults.latency.clone());
        self.schedule(self.now + wait, Event::Stir(link, side));
    }

    /// Takes received bytes of a side, at most `max`: `Ok(None)` if there are none.
    pub(super) fn take(&mut self, link: u32, side: Side, max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let now = self.now;
        let Some(state) = self.links.get_mut(&link) else { return Err(RESET) };
        match state.to(side).found(now) {
            Found::Nothing => Ok(None),
            Found::Ended(Ending::Closed) => Ok(Some(Vec::new())),
            Found::Ended(Ending::Reset) => Err(RESET),
            Found::Bytes(there) => {
                let most = state.to(side).most(there.min(max));
                let partial = most > 1 && self.chance.odds(self.faults.partial_receive);
                let count = if partial { 1 + self.chance.index(most) } else { most };
                let bytes = state.to(side).take(count);
                self.stir_later(link, side.other());
                Ok(Some(bytes))
            }
        }
    }

    fn serve_receives(&mut self, link: u32, side: Side) {
        loop {
            let Some(state) = self.links.get_mut(&link) else { return };
            let end = state.end(side);
            let (Some(core), Some(receive)) = (end.core, end.receives.pop_front()) else { return };
            let Receive { mut into, done, handle } = receive;
            let result = match self.take(link, side, into.len()) {
                Ok(None) => {
                    if let Some(state) = self.links.get_mut(&link) {
                        state.end(side).receives.push_front(Receive { into, done, handle });
                    }
                    return;
                }
                Ok(Some(bytes)) => {
                    into.copy_from(0, &bytes);
                    self.note(format_args!("core {core} link {link}: receive {} {}", bytes.len(), Sum::of(&bytes)));
                    Ok(u32::try_from(bytes.len()).unwrap_or(u32::MAX))
                }
                Err(fault) => {
                    self.note(format_args!("core {core} link {link}: receive {fault:?}"));
                    Err(fault)
                }
            };
            self.answer(core, done, Outcome::with(result, Data::In(into)), Some(handle));
        }
    }

    /// Why nothing more can be sent from a side.
    pub(super) fn cannot_send(&mut self, link: u32, side: Side) -> Option<Fault> {
        let now = self.now;
        let Some(state) = self.links.get_mut(&link) else { return Some(RESET) };
        if state.to(side).reset_by(now) || state.to(side.other()).ending() == Some(Ending::Reset) {
            return Some(RESET);
        }
        state.to(side.other()).ending().map(|_| BROKEN_PIPE)
    }

    /// Puts a segment of `bytes` onto the wire; returns how many there was room for.
    pub(super) fn put(&mut self, link: u32, side: Side, bytes: &[u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.cannot_send(link, side) {
            return Err(fault);
        }
        let (now, other) = (self.now, side.other());
        let Some(state) = self.links.get_mut(&link) else { return Err(RESET) };
        let most = state.to(other).room().min(bytes.len());
        if most == 0 {
            return Ok(0);
        }
        let segmented = most > 1 && self.chance.odds(self.faults.segmented_send);
        let count = if segmented { 1 + self.chance.index(most) } else { most };
        let is_local = state.is_local;
        if !is_local && self.chance.odds(self.faults.reset) {
            self.note(format_args!("link {link}: reset by the network"));
            self.reset(link);
            return Ok(count);
        }
        let is_stalled = !is_local && self.chance.odds(self.faults.stall);
        let stalled = is_stalled.then(|| now + self.chance.time(&self.faults.stall_time));
        let Some(state) = self.links.get_mut(&link) else { return Err(RESET) };
        if let Some(until) = stalled {
            state.to(other).stall(until);
        }
        let at = state.to(other).send(now, bytes[..count].to_vec(), &mut self.chance, &self.faults);
        self.schedule(at, Event::Stir(link, other));
        Ok(count)
    }

    fn pump(&mut self, link: u32, side: Side) {
        loop {
            let Some(state) = self.links.get_mut(&link) else { return };
            let end = state.end(side);
            let (Some(core), Some(send)) = (end.core, end.sends.pop_front()) else { return };
            let room = state.to(side.other()).room();
            let mut part = vec![0; (send.data.len() - send.at).min(room)];
            send.data.copy_to(send.at, &mut part);
            let Send { data, at, done, handle } = send;
            let result = match self.put(link, side, &part) {
                Ok(0) | Err(_) if data.is_empty() => Ok(0),
                Ok(count) if at + count < data.len() => {
                    let Some(state) = self.links.get_mut(&link) else { return };
                    state.end(side).sends.push_front(Send { data, at: at + count, done, handle });
                    if count == 0 {
                        return;
                    }
                    continue;
                }
                Ok(_) => Ok(u32::try_from(data.len()).unwrap_or(u32::MAX)),
                Err(fault) => Err(fault),
            };
            self.note(format_args!("core {core} link {link}: send {result:?} {}", Sum::of_out(&data)));
            let wait = self.chance.time(&self.faults.latency.clone());
            self.answer_later(core, done, Outcome::with(result, Data::Out(data)), Some(handle), wait);
        }
    }

    /// Ends the pipe that leads to a side.
    pub(super) fn end_pipe(&mut self, link: u32, side: Side, how: Ending) {
        let now = self.now;
        let Some(state) = self.links.get_mut(&link) else { return };
        if let Some(at) = state.to(side).end(now, how, &mut self.chance, &self.faults) {
            self.schedule(at, Event::Stir(link, side));
        }
    }

    /// Resets a connection for both of its ends.
    pub(super) fn reset(&mut self, link: u32) {
        self.end_pipe(link, Side::Client, Ending::Reset);
        self.end_pipe(link, Side::Server, Ending::Reset);
    }

    /// A side sends nothing more.
    pub(super) fn shut(&mut self, link: u32, side: Side) {
        let Some(state) = self.links.get_mut(&link) else { return };
        if state.to(side.other()).ending().is_none() {
            self.note(format_args!("link {link}: {side:?} sends nothing more"));
            self.end_pipe(link, side.other(), Ending::Closed);
        }
    }

    /// Closes a side. Unread bytes turn the close into a reset, as in TCP.
    pub(super) fn close_end(&mut self, link: u32, side: Side) {
        let now = self.now;
        let Some(state) = self.links.get_mut(&link) else { return };
        self.trace.note(now, format_args!("link {link}: {side:?} closes"));
        state.to(side).land(now);
        let unread = matches!(state.to(side).found(now), Found::Bytes(_));
        let was_shut = state.to(side.other()).ending().is_some();
        state.end(side).open = false;
        let both = !state.end(side.other()).open;
        if unread {
            self.end_pipe(link, side.other(), Ending::Reset);
        } else if !was_shut {
            self.end_pipe(link, side.other(), Ending::Closed);
        }
        if both {
            self.left.links.extend(self.links.remove(&link));
        }
    }

    /// Starts an operation on a socket or listener.
    pub(super) fn start_socket(&mut self, core: usize, op: Op, done: Done) {
        let handle = handle_of(&op).cloned();
        let kind = handle.as_ref().and_then(|handle| self.cores[core].handles.get(&handle.id())).copied();
        match (op, kind) {
            (Op::Accept { listener }, Some(Kind::Listener(address))) => {
                if let Some(state) = self.listeners.get_mut(&address) {
                    state.accepts.push_back((done, listener));
                }
                self.serve_accepts(address);
            }
            (Op::Receive { socket, into, .. }, Some(Kind::Socket { link, side })) if self.links.contains_key(&link) => {
                if let Some(state) = self.links.get_mut(&link) {
                    state.end(side).receives.push_back(Receive { into, done, handle: socket });
                }
                self.serve_receives(link, side);
            }
            (Op::Send { socket, data }, Some(Kind::Socket { link, side })) if self.links.contains_key(&link) => {
                if let Some(state) = self.links.get_mut(&link) {
                    state.end(side).sends.push_back(Send { data, at: 0, done, handle: socket });
                }
                self.pump(link, side);
            }
            (op, Some(Kind::Socket { .. })) => self.refuse(core, done, RESET, op.into_data(), handle),
            (op, _) => self.refuse(core, done, Fault::Gone, op.into_data(), handle),
        }
    }

    /// Ends the operations on one handle of a core.
    pub(super) fn cancel_socket(&mut self, core: usize, kind: Kind) {
        match kind {
            Kind::Socket { link, side } => {
                let Some(state) = self.links.get_mut(&link) else { return };
                let end = state.end(side);
                let (receives, sends) = (std::mem::take(&mut end.receives), std::mem::take(&mut end.sends));
                let readies = std::mem::take(&mut end.readies);
                for Ready { done, handle, .. } in readies {
                    self.refuse(core, done, Fault::Aborted, Data::None, Some(handle));
                }
                for Receive { into, done, handle } in receives {
                    self.refuse(core, done, Fault::Aborted, Data::In(into), Some(handle));
                }
                for Send { data, done, handle, .. } in sends {
                    self.refuse(core, done, Fault::Aborted, Data::Out(data), Some(handle));
                }
            }
            Kind::Listener(address) => {
                let Some(state) = self.listeners.get_mut(&address) else { return };
                let readies = std::mem::take(&mut state.readies);
                for (done, handle) in std::mem::take(&mut state.accepts).into_iter().chain(readies) {
                    self.refuse(core, done, Fault::Aborted, Data::None, Some(handle));
                }
            }
            Kind::Carrier(id) => self.cancel_carrier(core, id),
            Kind::File { .. } | Kind::Device(_) | Kind::Eventfd => {}
        }
    }

    /// A connection request arrives.
    pub(super) fn arrive_at_listener(&mut self, link: u32) {
        let Some(address) = self.links.get(&link).map(|state| state.server) else { return };
        match self.listeners.get_mut(&address) {
            Some(listener) => {
                listener.backlog.push_back(link);
                self.serve_accepts(address);
                self.serve_listener_readies(address);
            }
            None => {
                self.note(format_args!("link {link}: refused, no listener"));
                self.reset(link);
            }
        }
    }

    fn serve_accepts(&mut self, address: SocketAddr) {
        loop {
            let Some(listener) = self.listeners.get_mut(&address) else { return };
            if listener.backlog.is_empty() {
                return;
            }
            let Some((done, handle)) = listener.accepts.pop_front() else { return };
            let core = listener.core;
            if self.chance.odds(self.faults.accept_error) {
                self.refuse(core, done, NO_DESCRIPTOR, Data::None, Some(handle));
                continue;
            }
            if let Some(link) = listener.backlog.pop_front() {
                listener.accepted.push_back(link);
                self.note(format_args!("core {core} link {link}: accepted"));
            }
            self.answer(core, done, Outcome::new(Ok(0)), Some(handle));
        }
    }

    pub(super) fn accepted(&mut self, address: SocketAddr) -> Option<u32> {
        self.listeners.get_mut(&address)?.accepted.pop_front()
    }

    /// A core accepts a connection; returns (local, peer).
    pub(super) fn join(&mut self, core: usize, link: u32) -> Option<(SocketAddr, SocketAddr)> {
        let state = self.links.get_mut(&link)?;
        state.server_end.core = Some(core);
        Some((state.server, state.client))
    }

    /// Closes a listener; waiting connections are refused.
    pub(super) fn close_listener(&mut self, address: SocketAddr) {
        self.socket_paths.retain(|_, known| *known != address);
        let Some(listener) = self.listeners.remove(&address) else { return };
        for link in listener.backlog.iter().chain(&listener.accepted) {
            self.reset(*link);
        }
        self.left.listeners.push(listener);
    }

    /// Resets the connections of a core that has ended.
    pub(super) fn drop_links(&mut self, core: usize) {
        let gone = |listener: &Listener| listener.core == core;
        let addresses: Vec<SocketAddr> =
            self.listeners.iter().filter(|(_, listener)| gone(listener)).map(|(address, _)| *address).collect();
        addresses.into_iter().for_each(|address| self.close_listener(address));
        let keys: Vec<u32> = self.links.keys().copied().collect();
        for link in keys {
            let Some(state) = self.links.get_mut(&link) else { continue };
            if state.server_end.core != Some(core) {
                continue;
            }
            let end = &mut state.server_end;
            end.core = None;
            end.open = false;
            let gone = Link {
                client: state.client,
                server: state.server,
                to_client: Pipe::new(0),
                to_server: Pipe::new(0),
                client_end: End::new(),
                server_end: std::mem::replace(end, End { open: false, ..End::new() }),
                is_local: state.is_local,
            };
            self.left.links.push(gone);
            self.end_pipe(link, Side::Client, Ending::Reset);
        }
    }

    /// Test code connects.
    pub(super) fn connect(&mut self, to: SocketAddr) -> u32 {
        self.connect_as(to, false)
    }

    /// Connects, over the network or to a Unix socket.
    pub(super) fn connect_as(&mut self, to: SocketAddr, is_local: bool) -> u32 {
        let link = u32::try_from(self.serial()).unwrap_or(u32::MAX);
        let port = 20_000 + (link % 40_000) as u16;
        let client = SocketAddr::from(([10, 0, 0, 1], port));
        let faults = self.faults.clone();
        let new = Link { is_local, ..Link::new(client, to, &mut self.chance, &faults) };
        self.links.insert(link, new);
        self.note(format_args!("link {link}: connects to {to}"));
        let wait = self.chance.time(&faults.latency);
        self.schedule(self.now + wait, Event::Connect(link));
        link
    }

    /// Test code receives; else its waker is kept.
    pub(super) fn poll_take(&mut self, link: u32, max: usize, waker: &Waker) -> Result<Option<Vec<u8>>, Fault> {
        let taken = self.take(link, Side::Client, max);
        if let Ok(None) = &taken {
            self.keep_waker(link, waker);
        }
        taken
    }

    /// Test code sends as many bytes as there is room for; else its waker is kept.
    pub(super) fn poll_put(&mut self, link: u32, bytes: &[u8], waker: &Waker) -> Result<usize, Fault> {
        let put = self.put(link, Side::Client, bytes);
        if put == Ok(0) {
            self.keep_waker(link, waker);
        }
        put
    }

    pub(super) fn keep_waker(&mut self, link: u32, waker: &Waker) {
        if let Some(state) = self.links.get_mut(&link) {
            let wakers = &mut state.client_end.wakers;
            if !wakers.iter().any(|known| known.will_wake(waker)) {
                wakers.push(waker.clone());
            }
        }
    }

    /// Delays both directions.
    pub(super) fn stall(&mut self, link: u32, until: lunar_core::time::Instant) {
        if let Some(state) = self.links.get_mut(&link) {
            state.to_client.stall(until);
            state.to_server.stall(until);
        }
    }
}
