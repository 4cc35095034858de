//! Asynchronous events (NVMe Base 2.0 5.2).

use std::collections::VecDeque;
use std::task::Waker;

/// Asynchronous event requests that wait at most: AERL, and one more. One for each kind of event.
pub const REQUESTS_MAX: usize = 4;

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its type.
    pub kind: u8,
    /// The event information.
    pub information: u8,
    /// The log page with more information.
    pub page: u8,
}

impl Event {
    /// The available spare fell below its threshold (SMART / Health).
    pub const SPARE: Self = Self { kind: 1, information: 2, page: 0x02 };
    /// A namespace was added or removed.
    pub const NAMESPACES: Self = Self { kind: 2, information: 0, page: 0x04 };
    /// The asymmetric access state of a namespace changed.
    pub const ACCESS: Self = Self { kind: 2, information: 3, page: 0x0c };
    /// The discovery log page has changed.
    pub const DISCOVERY: Self = Self { kind: 2, information: 0xf0, page: 0x70 };
    /// A reservation notification is available.
    pub const RESERVATION: Self = Self { kind: 6, information: 0, page: 0x80 };

    /// The host wrote the doorbell of a queue that does not exist (NVMe Base 2.0 figure 146).
    pub const DOORBELL_REGISTER: Self = Self { kind: 0, information: 0, page: 0x01 };
    /// The host wrote an invalid value to a doorbell.
    pub const DOORBELL_VALUE: Self = Self { kind: 0, information: 1, page: 0x01 };

    /// All of them.
    pub const KNOWN: [Self; 7] = [
        Self::SPARE,
        Self::NAMESPACES,
        Self::ACCESS,
        Self::DISCOVERY,
        Self::RESERVATION,
        Self::DOORBELL_REGISTER,
        Self::DOORBELL_VALUE,
    ];

    /// Dword 0 of the completion.
    #[must_use]
    pub fn result(self) -> u32 {
        u32::from_le_bytes([self.kind, self.information, self.page, 0])
    }

    /// The bit of the feature Asynchronous Event Configuration that asks for it; `None`: it always comes.
    #[must_use]
    pub fn configured(self) -> Option<u32> {
        match self {
            Self::SPARE => Some(SPARE_WARNINGS),
            Self::NAMESPACES => Some(NAMESPACE_NOTICES),
            Self::ACCESS => Some(ACCESS_NOTICES),
            Self::DISCOVERY => Some(DISCOVERY_NOTICES),
            _ => None,
        }
    }
}

/// Feature 0Bh: SMART / Health critical warnings of the available spare. Its bit in the critical warning is the same.
pub const SPARE_WARNINGS: u32 = 1 << 0;
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
    /// Log pages with a reported event: the next event waits until the page is read.
    masked: Vec<u8>,
    /// Whether events are suspended: the controller is being moved.
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
    /// Events that are to be reported.
    pub pending: Vec<Event>,
    /// Log pages with a reported event that were not read since.
    pub masked: Vec<u8>,
}

impl Events {
    /// Suspends or resumes the events.
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

    /// Restores the saved state; `false` if it is impossible.
    pub(crate) fn restore(&mut self, saved: &SavedEvents) -> bool {
        let SavedEvents { waiting, aborted, pending, masked } = saved;
        let known = |event: &Event| Event::KNOWN.contains(event);
        let is_known =
            pending.iter().all(known) && masked.iter().all(|page| Event::KNOWN.iter().any(|event| event.page == *page));
        // Aborted requests may have been replaced by new ones, once.
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

    /// Queues a request; `false` if too many wait.
    pub(crate) fn park(&mut self, cid: u16) -> bool {
        let fits = self.waiting.len() < REQUESTS_MAX;
        if fits {
            self.waiting.push_back(cid);
            self.wake();
        }
        fits
    }

    /// Aborts a request; returns whether it was waiting.
    pub(crate) fn abort(&mut self, cid: u16) -> bool {
        let at = self.waiting.iter().position(|waiting| *waiting == cid);
        let found = at.and_then(|at| self.waiting.remove(at));
        self.aborted.extend(found);
        self.wake();
        found.is_some()
    }

    /// Drops a request: its host uses the command identifier again.
    pub(crate) fn withdraw(&mut self, cid: u16) {
        self.waiting.retain(|waiting| *waiting != cid);
    }

    /// Raises an event. An event that waits already is reported once.
    pub(crate) fn raise(&mut self, event: Event) {
        if !self.masked.contains(&event.page) && !self.pending.contains(&event) {
            self.pending.push_back(event);
            self.wake();
        }
    }

    /// The host has read a log page.
    pub(crate) fn was_read(&mut self, page: u8) {
        self.masked.retain(|masked| *masked != page);
        self.pending.retain(|event| event.page != page);
    }

    /// A request and its event; `None`: it was aborted.
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

    /// Sets the task to wake when there may be another event.
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
    fn an_event_is_reported_once_until_its_page_is_read() {
        let mut events = Events::default();
        events.raise(Event::NAMESPACES);
        events.raise(Event::NAMESPACES);
        assert_eq!(events.next(), None, "no request waits");
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
    fn saved_events_are_reported_after_the_restore() {
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
        assert!(!others.restore(&SavedEvents { masked: vec![3], ..saved }));
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
