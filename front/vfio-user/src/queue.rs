//! Submission and completion queues in guest memory (NVMe Base 2.0 3.3.1): what both kinds have in common.
//!
//! * [`submission`]: queues from which commands are taken
//! * [`completion`]: queues to which completions are written
//! * here: their doorbells

pub mod completion;
pub mod submission;

use lunar_guest::window::Window;

/// The place `count` entries after `at` in a ring. Neither is more than the number of entries.
#[inline]
fn advanced(at: u16, count: u16, entries: u16) -> u16 {
    let (sum, entries) = (u32::from(at) + u32::from(count), u32::from(entries));
    // Less than the number of entries, which is a u16.
    (if sum < entries { sum } else { sum - entries }) as u16
}

/// Entries from one place in a ring to another.
#[inline]
pub(crate) fn distance(from: u16, to: u16, entries: u16) -> u16 {
    if to >= from { to - from } else { entries - (from - to) }
}

/// The shadow doorbell of a queue and its event index (NVMe Base 2.0 5.8): a word that the host writes in place of a
/// register, and a word that tells the host when to write the register as well.
#[derive(Clone, Debug)]
pub struct ShadowDoorbell {
    doorbells: Window,
    events: Window,
    at: usize,
}

impl ShadowDoorbell {
    /// The words of doorbell `number` in both pages of Doorbell Buffer Config.
    #[must_use]
    pub fn new(doorbells: &Window, events: &Window, number: usize) -> Self {
        Self { doorbells: doorbells.clone(), events: events.clone(), at: number * size_of::<u32>() }
    }

    #[inline]
    fn value(&self) -> Option<u16> {
        // The upper half of the word is reserved.
        self.doorbells.load(self.at).map(|value| value as u16)
    }

    /// Has the host write its register when it passes `value`.
    #[inline]
    fn set_event(&self, value: u16) {
        // A host whose page cannot be written reads its own value there: it writes the register too often or too
        // seldom, and only its own commands wait.
        let _ = self.events.store(self.at, value.into());
    }
}

/// Where the device reads how far a host has come in a queue.
#[derive(Clone, Debug)]
pub enum Doorbell {
    /// In writes to the register.
    Register,
    /// In the shadow doorbell; the register may be written as well.
    Shadow(ShadowDoorbell),
    /// In a page that the client has mapped in place of the registers, at this offset. Nothing is written to the
    /// register.
    Mapped(Window, usize),
}

impl Doorbell {
    /// How far the host has come. `register` is the last value that was written to the register.
    #[inline]
    fn value(&self, register: u16) -> u16 {
        match self {
            Self::Register => register,
            Self::Shadow(shadow) => shadow.value().unwrap_or(register),
            Self::Mapped(page, at) => page.load(*at).map_or(register, |value| value as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_wrap_at_the_end_of_a_ring() {
        assert_eq!([advanced(0, 3, 4), advanced(3, 1, 4), advanced(2, 4, 4)], [3, 0, 2]);
        assert_eq!(advanced(u16::MAX - 1, u16::MAX, u16::MAX), u16::MAX - 1);
        assert_eq!([distance(1, 3, 4), distance(3, 1, 4), distance(2, 2, 4)], [2, 2, 0]);
    }
}
