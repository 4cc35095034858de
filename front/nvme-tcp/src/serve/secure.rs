//! A connection whose bytes go through a secure channel, or not: its first byte says so.

use crate::session::{Action, Session, TaskKey};
use crate::tls::{Broken, Channel, Channels, FIRST_BYTE};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, PAGE, Sg, SgMut, Slice};
use lunar_core::time::Instant;
use lunar_stream::machine::{Machine, Pull, Transfers, Want};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What is opened, and what is sealed, at once.
const PIECE: usize = 64 << 10;

/// Whether the bytes of a connection are those of the wire.
pub(super) struct Security(RefCell<State>);

enum State {
    /// They are.
    Plain,
    /// Nothing came.
    Unknown(Channels),
    /// They are not.
    On(Box<Channel>),
}

impl Security {
    /// Of a connection of which nothing came.
    pub(super) fn new(channels: Option<&Channels>) -> Self {
        Self(RefCell::new(channels.map_or(State::Plain, |channels| State::Unknown(channels.clone()))))
    }

    /// Whether there is a channel.
    pub(super) fn is_on(&self) -> bool {
        matches!(*self.0.borrow(), State::On(_))
    }

    /// The host whose channel it is.
    pub(super) fn host(&self) -> Option<Arc<str>> {
        match &*self.0.borrow() {
            State::On(channel) => channel.host(),
            State::Plain | State::Unknown(_) => None,
        }
    }

    /// Takes what came by the wire, and hands on what it says. Tells whether the channel lives.
    pub(super) fn take_in(&self, part: Slice, arena: &Arena, mut hand_on: impl FnMut(Slice)) -> bool {
        let mut state = self.0.borrow_mut();
        if let State::Unknown(channels) = &*state {
            *state = match part.first() {
                Some(&FIRST_BYTE) => match Channel::new(channels) {
                    Ok(channel) => State::On(Box::new(channel)),
                    Err(_) => return false,
                },
                _ => State::Plain,
            };
        }
        let State::On(channel) = &mut *state else {
            drop(state);
            hand_on(part);
            return true;
        };
        channel.feed(&part);
        loop {
            let Some(mut memory) = arena.take(PIECE).or_else(|| arena.take_reserved(PAGE)) else { return false };
            match channel.open(&mut memory) {
                Ok(0) => return true,
                Ok(count) => hand_on(memory.split_to(count).share()),
                Err(Broken) => return false,
            }
        }
    }

    /// Bytes that are sealed and have still to go.
    pub(super) fn queued_bytes(&self) -> usize {
        match &*self.0.borrow() {
            State::On(channel) => channel.queued_bytes(),
            State::Plain | State::Unknown(_) => 0,
        }
    }

    /// What goes by the wire for `data`, or a part of it; `None` if the channel is broken, or there is no memory.
    pub(super) fn seal(&self, data: Sg, arena: &Arena) -> Option<Sg> {
        let mut state = self.0.borrow_mut();
        let State::On(channel) = &mut *state else { return Some(data) };
        for piece in data.pieces() {
            channel.seal(piece).ok()?;
        }
        let most = channel.queued_bytes().min(PIECE);
        if most == 0 {
            return Some(Sg::default());
        }
        let mut memory = match arena.take_sg(most) {
            Some(memory) => memory,
            None => arena.take_reserved(PAGE)?.into(),
        };
        let sealed = channel.take(most.min(memory.len()));
        let mut filled = memory.split_to(sealed.len());
        filled.copy_from(0, &sealed);
        Some(filled.share())
    }
}

/// A session whose bytes go through a secure channel, or not.
pub(super) struct Secured {
    session: Session,
    security: Security,
    arena: Arena,
    /// The channel is broken, or there was no memory for it.
    is_broken: bool,
}

impl Secured {
    pub(super) fn new(session: Session, arena: &Arena, channels: Option<&Channels>) -> Self {
        Self { session, security: Security::new(channels), arena: arena.clone(), is_broken: false }
    }

    /// The host whose channel it is.
    pub(super) fn host(&self) -> Option<Arc<str>> {
        self.security.host()
    }
}

impl Deref for Secured {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Secured {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Machine for Secured {
    type Action = Action;

    fn want(&mut self) -> Want {
        match Machine::want(&mut self.session) {
            // What comes is not what goes there: the memory goes back with nothing in it, for which nothing is done.
            Want::Into(memory) if self.security.is_on() => {
                Machine::placed(&mut self.session, memory, 0, Instant(0), &mut Vec::new());
                Want::Chunk
            }
            other => other,
        }
    }

    fn receive(&mut self, bytes: Slice, now: Instant, actions: &mut Vec<Action>) {
        let session = &mut self.session;
        if !self.security.take_in(bytes, &self.arena, |part| Machine::receive(session, part, now, actions)) {
            self.is_broken = true;
            self.session.break_off(actions);
        }
    }

    fn placed(&mut self, memory: SgMut, count: usize, now: Instant, actions: &mut Vec<Action>) {
        Machine::placed(&mut self.session, memory, count, now, actions);
    }

    fn resume(&mut self, actions: &mut Vec<Action>) {
        Machine::resume(&mut self.session, actions);
    }

    fn take_out(&mut self) -> Sg {
        let data = Machine::take_out(&mut self.session);
        self.security.seal(data, &self.arena).unwrap_or_else(|| {
            self.is_broken = true;
            Sg::default()
        })
    }

    fn queued_bytes(&self) -> usize {
        Machine::queued_bytes(&self.session) + self.security.queued_bytes()
    }

    fn is_out_of_memory(&self) -> bool {
        self.is_broken || Machine::is_out_of_memory(&self.session)
    }
}

impl Transfers for Secured {
    type Key = TaskKey;

    fn pull(&mut self, key: TaskKey, offset: usize, len: usize) -> Pull {
        Transfers::pull(&mut self.session, key, offset, len)
    }

    fn supply(&mut self, key: TaskKey, memory: SgMut) {
        Transfers::supply(&mut self.session, key, memory);
    }

    fn push(&mut self, key: TaskKey, offset: usize, data: Sg) -> Result<(), Fault> {
        Transfers::push(&mut self.session, key, offset, data)
    }
}
