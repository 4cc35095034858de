//! A connection whose bytes go through a secure channel, or not: its first byte says so.

use crate::tls::{Broken, Channel, Channels, FIRST_BYTE};
use lunar_core::mem::{Arena, PAGE, Sg, Slice};
use std::cell::RefCell;
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
