//! Asynchronous events: what hosts are told unasked (NVMe Base 2.0 5.2).

use std::collections::VecDeque;
use std::task::Waker;

/// Asynchronous event requests that wait at most: AERL, and one more. One for each kind of event there is.
pub const REQUESTS_MAX: usize = 4;

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its type.
    pub kind: u8,
    /// What happened.
    pub information: u8,
    /// The log page that tells more.
    pub page: u8,
}

impl Event {
    /// A namespace came or went.
    pub const NAMESPACES: Self = Self { kind: 2, information: 0, page: 0x04 };
    /// A namespace is reached in another way.
    pub const ACCESS: Self = Self { kind: 2, information: 3, page: 0x0c };
    /// What discovery tells is another.
    pub const DISCOVERY: Self = Self { kind: 2, information: 0xf0, page: 0x70 };
    /// The log page of reservation notifications has one.
    pub const RESERVATION: Self = Self { kind: 6, information: 0, page: 0x80 };

    /// All of them.
    pub const KNOWN: [Self; 4] = [Self::NAMESPACES, Self::ACCESS, Self::DISCOVERY, Self::RESERVATION];

    /// Dword 0 of the completion.
    #[must_use]
    pub fn result(self) -> u32 {
        u32::from_le_bytes([self.kind, self.information, self.page, 0])
    }

    /// The bit of the feature Asynchronous Event Configuration that asks for it; `None`: it always comes.
    #[must_use]
    pub fn configured(self) -> Option<u32> {
        match self {
            Self::NAMESPACES => Some(NAMESPACE_NOTICES),
            Self::ACCESS => Some(ACCESS_NOTICES),
            Self::DISCOVERY => Some(DISCOVERY_NOTICES),
            _ => None,
        }
    }
}

/// Feature 0Bh: namespace attribute notices.
pub const NAMESPACE_NOTICES: u32 = 1 << 8;
/// Feature 0Bh: asymmetric namespace access change notices.
pub const ACCESS_NOTICES: u32 = 1 << 11;
/// Feature 0Bh: discovery log page change notices.
pub const DISCOVERY_NOTICES: u32 = 1 << 31;

/// The events of one controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Requests that wait, by their identifiers.
    waiting: VecDeque<u16>,
    /// Requests that were aborted.
    aborted: Vec<u16>,
    pending: VecDeque<Event>,
    /// Log pages whose event was told: the next one waits until they were read.
    masked: Vec<u8>,
    /// Nothing is told: the controller stands still.
    is_held: bool,
    waker: Option<Waker>,
}

/// The events of a controller that moves to another process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedEvents {
    /// Requests that wait, by their identifiers, in their order.
    pub waiting: Vec<u16>,
    /// Requests that were aborted, and have not been answered.
    pub aborted: Vec<u16>,
    /// What is told next.
    pub pending: Vec<Event>,
    /// Log pages whose event was told, and which were not read since.
    pub masked: Vec<u8>,
}

impl Events {
    /// Tells nothing from now on, or goes on telling.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        self.wake();
    }

    pub(crate) fn save(&self) -> SavedEvents {
        SavedEvents {
            waiting: self.waiting.iter().copied().collect(),
            aborted: self.aborted.clone(),
            pending: self.pending.iter().copied().collect(),
            masked: self.masked.clone(),
        }
    }

    /// Becomes what was saved. `false`: it cannot have been so.
    pub(crate) fn restore(&mut self, saved: &SavedEvents) -> bool {
        let SavedEvents { waiting, aborted, pending, masked } = saved;
        let known = |event: &Event| Event::KNOWN.contains(event);
        let is_known =
            pending.iter().all(known) && masked.iter().all(|page| Event::KNOWN.iter().any(|event| event.page == *page));
        // What was aborted made room for others, once.
        let fits = waiting.len() <= REQUESTS_MAX
            && aborted.len() <= REQUESTS_MAX
            && pending.len().max(masked.len()) <= Event::KNOWN.len();
        if is_known && fits {
            (self.waiting, self.aborted) = (waiting.iter().copied().collect(), aborted.clone());
            (self.pending, self.masked) = (pending.iter().copied().collect(), masked.clone());
            self.wake();
        }
        is_known && fits
    }

    /// A request waits; `false` if too many do.
    pub(crate) fn park(&mut self, cid: u16) -> bool {
        let fits = self.waiting.len() < REQUESTS_MAX;
        if fits {
            self.waiting.push_back(cid);
            self.wake();
        }
        fits
    }

    /// Aborts a request; tells whether it waited.
    pub(crate) fn abort(&mut self, cid: u16) -> bool {
        let at = self.waiting.iter().position(|waiting| *waiting == cid);
        let found = at.and_then(|at| self.waiting.remove(at));
        self.aborted.extend(found);
        self.wake();
        found.is_some()
    }

    /// Forgets a request: its host uses the identifier for something else.
    pub(crate) fn withdraw(&mut self, cid: u16) {
        self.waiting.retain(|waiting| *waiting != cid);
    }

    /// Something happened. What waits to be told already is told once.
    pub(crate) fn raise(&mut self, event: Event) {
        if !self.masked.contains(&event.page) && !self.pending.contains(&event) {
            self.pending.push_back(event);
            self.wake();
        }
    }

    /// A log page was read.
    pub(crate) fn was_read(&mut self, page: u8) {
        self.masked.retain(|masked| *masked != page);
        self.pending.retain(|event| event.page != page);
    }

    /// A request, and what it is answered with; `None`: it was aborted.
    pub(crate) fn next(&mut self) -> Option<(u16, Option<Event>)> {
        if self.is_held {
            return None;
        }
        if let Some(cid) = self.aborted.pop() {
            return Some((cid, None));
        }
        let event = *self.pending.front()?;
        let cid = self.waiting.pop_front()?;
        self.pending.pop_front();
        self.masked.push(event.page);
        Some((cid, Some(event)))
    }

    /// Who is woken when there may be a next one.
    pub(crate) fn wake_later(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_until_its_page_was_read() {
        let mut events = Events::default();
        events.raise(Event::NAMESPACES);
        events.raise(Event::NAMESPACES);
        assert_eq!(events.next(), None, "nobody asks");
        assert!(events.park(7) && events.park(8));
        assert_eq!(events.next(), Some((7, Some(Event::NAMESPACES))));
        events.raise(Event::NAMESPACES);
        assert_eq!(events.next(), None, "the page was not read");
        events.was_read(0x04);
        events.raise(Event::NAMESPACES);
        assert_eq!(events.next(), Some((8, Some(Event::NAMESPACES))));
        assert_eq!(Event::ACCESS.result(), 0x000c_0302);
    }

    #[test]
    fn what_is_saved_is_told_elsewhere() {
        let (mut events, mut others) = (Events::default(), Events::default());
        assert!(events.park(7) && events.park(8) && events.park(9) && events.abort(9));
        events.hold(true);
        events.raise(Event::ACCESS);
        assert_eq!(events.next(), None, "it stands still");
        let saved = events.save();
        assert!(others.restore(&saved));
        assert_eq!((others.next(), others.next()), (Some((9, None)), Some((7, Some(Event::ACCESS)))));
        assert_eq!(others.save().masked, [Event::ACCESS.page]);
        assert!(!others.restore(&SavedEvents { waiting: vec![0; 5], ..saved.clone() }));
        assert!(!others.restore(&SavedEvents { masked: vec![1], ..saved }));
        events.hold(false);
        assert_eq!(events.next(), Some((9, None)));
    }

    #[test]
    fn requests_are_counted_and_taken_back() {
        let mut events = Events::default();
        assert!((0..4).all(|cid| events.park(cid)) && !events.park(4));
        assert!(events.abort(2) && !events.abort(2) && events.park(4));
        assert_eq!((events.next(), events.next()), (Some((2, None)), None));
    }
}
