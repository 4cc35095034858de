//! The MAC addresses of neighbours (RFC 1122 2.3.2, RFC 4861 section 7), which are those that datagrams are sent to:
//! stations that only ask are not remembered.

use super::limits::{
    NEIGHBOURS_MAX, QUESTION_INTERVAL, QUESTIONS, REACHABLE, UNRESOLVED_MAX, UNUSED, WAITING_MAX, WAITING_TOTAL_MAX,
};
use lunar_core::time::Instant;
use lunar_link::{MacAddress, Wrapped};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// A datagram that waits, and its receiver, which may be behind a gateway.
pub type Waiting = (IpAddr, Wrapped);

#[derive(Debug)]
struct Neighbour {
    /// `None`: it has not answered yet.
    mac: Option<MacAddress>,
    waiting: VecDeque<Waiting>,
    /// When something was sent to it last.
    used: Instant,
    /// When it has told its MAC address last.
    confirmed: Instant,
    /// Questions since then, and the time of the next one.
    asked: u32,
    ask_at: Option<Instant>,
}

/// The MAC address of a neighbour, as it has told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The neighbour.
    pub address: IpAddr,
    /// Its MAC address; `None`: that which is known.
    pub mac: Option<MacAddress>,
    /// Whether it is the answer to a question.
    pub is_solicited: bool,
    /// Whether it replaces another MAC address.
    pub overrides: bool,
}

/// A question to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// The neighbour.
    pub address: IpAddr,
    /// Its MAC address as it is known; `None`: the question is for all stations.
    pub mac: Option<MacAddress>,
}

/// The neighbours of a station.
#[derive(Debug, Default)]
pub struct Neighbours {
    all: BTreeMap<IpAddr, Neighbour>,
    unresolved: usize,
    waiting: usize,
    /// Not later than the first time at which something is due.
    next: Option<Instant>,
    /// Datagrams that were dropped, because their receiver has not answered, or too many waited.
    dropped: u64,
}

impl Neighbours {
    /// The MAC address of a neighbour, to which something is sent now; `None`: it is not known, and is asked for.
    pub fn find(&mut self, address: IpAddr, now: Instant) -> Option<MacAddress> {
        let Some(neighbour) = self.all.get_mut(&address) else {
            self.add(address, now);
            return None;
        };
        neighbour.used = now;
        let mac = neighbour.mac?;
        if neighbour.ask_at.is_none() && now.since(neighbour.confirmed) >= REACHABLE {
            // It is used until it is known to be wrong.
            (neighbour.asked, neighbour.ask_at) = (0, Some(now));
            self.look_at(now);
        }
        Some(mac)
    }

    /// Keeps a datagram until the MAC address of its neighbour is known.
    pub fn wait(&mut self, address: IpAddr, datagram: Waiting) {
        let room = self.waiting < WAITING_TOTAL_MAX;
        match self.all.get_mut(&address).filter(|neighbour| room && neighbour.waiting.len() < WAITING_MAX) {
            Some(neighbour) => {
                neighbour.waiting.push_back(datagram);
                self.waiting += 1;
            }
            None => self.dropped += 1,
        }
    }

    fn add(&mut self, address: IpAddr, now: Instant) {
        if self.unresolved >= UNRESOLVED_MAX {
            self.remove_oldest(|_, neighbour| neighbour.mac.is_none(), |neighbour| neighbour.confirmed);
        }
        let neighbour = Neighbour {
            mac: None,
            waiting: VecDeque::new(),
            used: now,
            // When it was asked for: nothing is confirmed yet.
            confirmed: now,
            asked: 0,
            ask_at: Some(now),
        };
        self.all.insert(address, neighbour);
        self.unresolved += 1;
        self.look_at(now);
    }

    fn remove_oldest(&mut self, which: impl Fn(IpAddr, &Neighbour) -> bool, age: impl Fn(&Neighbour) -> Instant) {
        let candidates = self.all.iter().filter(|(address, neighbour)| which(**address, neighbour));
        let oldest = candidates.min_by_key(|(_, neighbour)| age(neighbour)).map(|(address, _)| *address);
        oldest.into_iter().for_each(|address| self.remove(address));
    }

    fn remove(&mut self, address: IpAddr) {
        let Some(neighbour) = self.all.remove(&address) else { return };
        self.unresolved -= usize::from(neighbour.mac.is_none());
        self.waiting -= neighbour.waiting.len();
        self.dropped += neighbour.waiting.len() as u64;
    }

    /// Something may be due at this time.
    fn look_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Takes the MAC address that a station has told, if it is a neighbour. Returns it, and the datagrams that have
    /// waited for it.
    pub fn learn(&mut self, binding: Binding, now: Instant) -> Option<(MacAddress, VecDeque<Waiting>)> {
        let neighbour = self.all.get_mut(&binding.address)?;
        let before = neighbour.mac;
        let mac = binding.mac.or(before)?;
        // RFC 4861 section 7.2.5: without the override flag another MAC address is not taken.
        if before.is_some_and(|before| before != mac) && !binding.overrides {
            return None;
        }
        neighbour.mac = Some(mac);
        if binding.is_solicited || before != Some(mac) {
            (neighbour.confirmed, neighbour.ask_at) = (now, None);
        }
        let waiting = std::mem::take(&mut neighbour.waiting);
        self.waiting -= waiting.len();
        if before.is_none() {
            self.unresolved -= 1;
            self.look_at(now + UNUSED);
            if self.all.len() - self.unresolved > NEIGHBOURS_MAX {
                let is_other = |address, neighbour: &Neighbour| neighbour.mac.is_some() && address != binding.address;
                self.remove_oldest(is_other, |neighbour| neighbour.used);
            }
        }
        Some((mac, waiting))
    }

    /// When [`Neighbours::expire`] is to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Forgets neighbours that do not answer, and those that are not used; `ask` sends a question, or returns that it
    /// cannot be sent now.
    pub fn expire(&mut self, now: Instant, mut ask: impl FnMut(Question) -> bool) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let mut gone = Vec::new();
        let mut next: Option<Instant> = None;
        for (address, neighbour) in &mut self.all {
            if neighbour.ask_at.is_some_and(|at| at <= now) {
                if neighbour.asked >= QUESTIONS {
                    gone.push(*address);
                    continue;
                }
                let is_sent = ask(Question { address: *address, mac: neighbour.mac });
                neighbour.asked += u32::from(is_sent);
                neighbour.ask_at = Some(now + QUESTION_INTERVAL);
            }
            let end = neighbour.used + UNUSED;
            if end <= now {
                gone.push(*address);
                continue;
            }
            let at = neighbour.ask_at.map_or(end, |at| at.min(end));
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        gone.into_iter().for_each(|address| self.remove(address));
        self.next = next;
    }

    /// Datagrams that were dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Neighbours with and without a MAC address, and datagrams that wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.all.len() - self.unresolved, self.unresolved, self.waiting)
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
