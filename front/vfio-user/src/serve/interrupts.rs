//! The interrupts that a client has set up.

use lunar_reactor::unix::Signal;

/// INTx. Once it was raised it is masked, until the client unmasks it.
#[derive(Default)]
enum Line {
    #[default]
    Unset,
    Unmasked(Signal),
    Masked(Signal),
}

/// The eventfds through which interrupts are raised.
#[derive(Default)]
pub(super) struct Interrupts {
    line: Line,
    /// MSI-X, by vector. It is in use if there is any.
    vectors: Vec<Option<Signal>>,
}

impl Interrupts {
    /// Raises interrupts: those of these MSI-X vectors, or INTx in their place unless the guest `masks_intx`. Returns
    /// whether all were raised: an eventfd whose counter is full delays the next raise.
    pub(super) fn raise(&mut self, vectors: &[u16], masks_intx: bool) -> bool {
        if self.vectors.is_empty() {
            return masks_intx || self.raise_line();
        }
        let signals = vectors.iter().filter_map(|vector| self.vectors.get(usize::from(*vector))?.as_ref());
        // All of them, also after one that failed.
        signals.filter(|signal| !signal.ring()).count() == 0
    }

    fn raise_line(&mut self) -> bool {
        match std::mem::take(&mut self.line) {
            Line::Unmasked(signal) if signal.ring() => self.line = Line::Masked(signal),
            Line::Unmasked(signal) => {
                self.line = Line::Unmasked(signal);
                return false;
            }
            other => self.line = other,
        }
        true
    }

    /// Raises INTx whether it is masked or not, and leaves it as it is: the client tests its eventfd.
    pub(super) fn trigger_line(&self) {
        if let Line::Unmasked(signal) | Line::Masked(signal) = &self.line {
            // With a full counter the client is woken anyway.
            let _ = signal.ring();
        }
    }

    /// Raises one MSI-X vector: the client tests its eventfd.
    pub(super) fn trigger_vector(&self, vector: u32) {
        if let Some(Some(signal)) = self.vectors.get(vector as usize) {
            let _ = signal.ring();
        }
    }

    /// Sets or removes the eventfd of INTx, which is not masked then.
    pub(super) fn set_line(&mut self, signal: Option<Signal>) {
        self.line = signal.map_or(Line::Unset, Line::Unmasked);
    }

    /// Masks or unmasks INTx.
    pub(super) fn set_masked(&mut self, is_masked: bool) {
        self.line = match std::mem::take(&mut self.line) {
            Line::Unset => Line::Unset,
            Line::Unmasked(signal) | Line::Masked(signal) if is_masked => Line::Masked(signal),
            Line::Unmasked(signal) | Line::Masked(signal) => Line::Unmasked(signal),
        };
    }

    /// Sets the eventfds of the vectors from `start` to `end`; those without a signal have none any more.
    pub(super) fn set_vectors(&mut self, start: u32, end: u32, signals: impl IntoIterator<Item = Signal>) {
        let (start, end) = (start as usize, end as usize);
        if self.vectors.len() < end {
            self.vectors.resize_with(end, || None);
        }
        let mut signals = signals.into_iter();
        self.vectors[start..end].iter_mut().for_each(|vector| *vector = signals.next());
        while self.vectors.pop_if(|last| last.is_none()).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_reactor::{Choice, Config, Reactor};
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::OwnedFd;

    /// A signal, and the descriptor by which its client sees how often it was raised.
    fn signal(reactor: &Reactor) -> (Signal, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let client = fd.try_clone().expect("a descriptor");
        (Signal::new(reactor, fd).expect("an eventfd"), client)
    }

    fn raised(client: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(client, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    fn reactor() -> Reactor {
        Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver")
    }

    #[test]
    fn intx_is_raised_once_until_it_is_unmasked() {
        let reactor = reactor();
        let (line, client) = signal(&reactor);
        let mut interrupts = Interrupts::default();
        assert!(interrupts.raise(&[0, 3], false), "without a signal nothing is raised");
        interrupts.set_masked(true);
        interrupts.set_line(Some(line));
        assert!(interrupts.raise(&[0, 3], true) && raised(&client) == 0, "the guest masks it");
        assert!(interrupts.raise(&[0, 3], false) && raised(&client) == 1);
        assert!(interrupts.raise(&[0], false) && raised(&client) == 0, "it is masked");
        interrupts.set_masked(false);
        assert!(interrupts.raise(&[0], false) && raised(&client) == 1);
        interrupts.set_masked(false);
        interrupts.set_masked(true);
        assert!(interrupts.raise(&[0], false) && raised(&client) == 0);
        interrupts.trigger_line();
        assert_eq!(raised(&client), 1, "a test of the client ignores the mask");
        interrupts.set_line(None);
        interrupts.trigger_line();
        assert!(interrupts.raise(&[0], false) && raised(&client) == 0);
    }

    #[test]
    fn msi_x_vectors_replace_intx_while_there_are_any() {
        let reactor = reactor();
        let [(line, of_line), (one, of_one), (three, of_three)] = [0; 3].map(|_| signal(&reactor));
        let mut interrupts = Interrupts::default();
        interrupts.set_line(Some(line));
        interrupts.set_vectors(1, 4, [one]);
        interrupts.set_vectors(3, 4, [three]);
        assert!(interrupts.raise(&[0, 1, 2, 3, 99], true));
        assert_eq!([&of_line, &of_one, &of_three].map(raised), [0, 1, 1], "INTx and its mask are not in use");
        interrupts.trigger_vector(3);
        interrupts.trigger_vector(9);
        assert_eq!([&of_one, &of_three].map(raised), [0, 1]);
        interrupts.set_vectors(0, 4, []);
        assert!(interrupts.raise(&[1], false));
        assert_eq!([&of_line, &of_one].map(raised), [1, 0], "INTx is in use again");
    }
}
