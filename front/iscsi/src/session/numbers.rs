//! Numbers of commands and statuses (RFC 7143 4.2.2): serial arithmetic of RFC 1982 over 32 bits.

use lunar_core::wire::be::U32;

/// What a command's number says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// It is the next.
    Next,
    /// It is within the window, but others come first.
    Later,
    /// It was taken already, or lies beyond the window: silently ignored (4.2.2.1).
    Outside,
}

/// The numbers of one session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    stat_sn: u32,
}

/// What every PDU of the target repeats: (StatSN, ExpCmdSN, MaxCmdSN).
pub(super) type Stamp = (U32, U32, U32);

impl Numbers {
    /// At the end of the login.
    pub(super) fn new(cmd_sn: u32, stat_sn: u32, window: u32) -> Self {
        Self { exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn.wrapping_add(window - 1), stat_sn }
    }

    /// Where a number stands. Only [`Arrival::Next`] is taken by it.
    pub(super) fn arrive(&mut self, cmd_sn: u32) -> Arrival {
        if cmd_sn == self.exp_cmd_sn && self.contains(cmd_sn) {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            return Arrival::Next;
        }
        if self.contains(cmd_sn) { Arrival::Later } else { Arrival::Outside }
    }

    /// Whether the number is the next.
    pub(super) fn is_next(&self, cmd_sn: u32) -> bool {
        cmd_sn == self.exp_cmd_sn
    }

    /// Whether the number is one of the window: ExpCmdSN to MaxCmdSN.
    pub(super) fn contains(&self, cmd_sn: u32) -> bool {
        // Zero when the window is closed: MaxCmdSN is then ExpCmdSN - 1.
        let open = self.max_cmd_sn.wrapping_add(1).wrapping_sub(self.exp_cmd_sn);
        cmd_sn.wrapping_sub(self.exp_cmd_sn) < open
    }

    /// Whether `cmd_sn` is one of the window that comes before `other`.
    pub(super) fn contains_before(&self, cmd_sn: u32, other: u32) -> bool {
        self.contains(cmd_sn) && cmd_sn.wrapping_sub(self.exp_cmd_sn) < other.wrapping_sub(self.exp_cmd_sn)
    }

    /// A command that took a number is done: there is room for one more.
    pub(super) fn done(&mut self) {
        self.max_cmd_sn = self.max_cmd_sn.wrapping_add(1);
    }

    /// For a PDU with status: takes a status number.
    pub(super) fn with_status(&mut self) -> Stamp {
        let stamp = self.without_status();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        stamp
    }

    /// For a PDU without status: tells the next status number.
    pub(super) fn without_status(&self) -> Stamp {
        (U32::new(self.stat_sn), U32::new(self.exp_cmd_sn), U32::new(self.max_cmd_sn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_with_what_is_done() {
        let mut numbers = Numbers::new(u32::MAX, 7, 2);
        assert_eq!(numbers.arrive(1), Arrival::Outside);
        assert_eq!(numbers.arrive(0), Arrival::Later);
        assert_eq!(numbers.arrive(u32::MAX), Arrival::Next);
        assert_eq!(numbers.arrive(u32::MAX), Arrival::Outside);
        assert_eq!(numbers.arrive(0), Arrival::Next);
        assert_eq!(numbers.arrive(1), Arrival::Outside);
        numbers.done();
        assert_eq!(numbers.arrive(2), Arrival::Outside);
        assert_eq!(numbers.arrive(1), Arrival::Next);
    }

    #[test]
    fn statuses_are_numbered() {
        let mut numbers = Numbers::new(1, u32::MAX, 4);
        assert_eq!(numbers.without_status().0.get(), u32::MAX);
        assert_eq!(numbers.with_status().0.get(), u32::MAX);
        let (stat, exp, max) = numbers.with_status();
        assert_eq!((stat.get(), exp.get(), max.get()), (0, 1, 4));
    }

    #[test]
    fn a_number_comes_before_another_in_the_window() {
        let numbers = Numbers::new(u32::MAX - 1, 0, 8);
        assert!(numbers.contains_before(u32::MAX, 1));
        assert!(!numbers.contains_before(1, u32::MAX));
        assert!(!numbers.contains_before(u32::MAX - 2, 1));
    }
}
