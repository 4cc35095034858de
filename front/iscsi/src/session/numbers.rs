//! CmdSN and StatSN (RFC 7143 4.2.2): serial number arithmetic of RFC 1982 over 32 bits.

use lunar_core::wire::be::U32;

/// The position of a CmdSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// It is ExpCmdSN: the request's turn.
    Next,
    /// It is within the window, and requests before it are missing.
    Later,
    /// It was used already, or is beyond the window: the request is silently ignored (RFC 7143 4.2.2.1).
    Outside,
}

/// The sequence numbers of one session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SequenceNumbers {
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    stat_sn: u32,
}

/// StatSN, ExpCmdSN and MaxCmdSN, which every PDU of the target carries.
pub(super) type Stamp = (U32, U32, U32);

impl SequenceNumbers {
    /// The numbers at the end of the login.
    pub(super) fn new(cmd_sn: u32, stat_sn: u32, window: u32) -> Self {
        Self { exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn.wrapping_add(window - 1), stat_sn }
    }

    /// The position of a number. Only [`Arrival::Next`] advances ExpCmdSN.
    pub(super) fn arrive(&mut self, cmd_sn: u32) -> Arrival {
        if cmd_sn == self.exp_cmd_sn && self.contains(cmd_sn) {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            return Arrival::Next;
        }
        if self.contains(cmd_sn) { Arrival::Later } else { Arrival::Outside }
    }

    /// Whether the number is ExpCmdSN.
    pub(super) fn is_next(&self, cmd_sn: u32) -> bool {
        cmd_sn == self.exp_cmd_sn
    }

    /// Whether the number is within the window, ExpCmdSN to MaxCmdSN.
    pub(super) fn contains(&self, cmd_sn: u32) -> bool {
        // Zero when the window is closed: MaxCmdSN is then ExpCmdSN - 1.
        let open = self.max_cmd_sn.wrapping_add(1).wrapping_sub(self.exp_cmd_sn);
        cmd_sn.wrapping_sub(self.exp_cmd_sn) < open
    }

    /// Whether `cmd_sn` is within the window and before `other`.
    pub(super) fn contains_before(&self, cmd_sn: u32, other: u32) -> bool {
        self.contains(cmd_sn) && cmd_sn.wrapping_sub(self.exp_cmd_sn) < other.wrapping_sub(self.exp_cmd_sn)
    }

    /// A request that took a number has ended: the window opens by one.
    pub(super) fn done(&mut self) {
        self.max_cmd_sn = self.max_cmd_sn.wrapping_add(1);
    }

    /// The numbers of a PDU with a status: uses a StatSN.
    pub(super) fn with_status(&mut self) -> Stamp {
        let stamp = self.without_status();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        stamp
    }

    /// The numbers of a PDU without a status: carries the next StatSN.
    pub(super) fn without_status(&self) -> Stamp {
        (U32::new(self.stat_sn), U32::new(self.exp_cmd_sn), U32::new(self.max_cmd_sn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_when_commands_end() {
        let mut numbers = SequenceNumbers::new(u32::MAX, 7, 2);
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
    fn each_status_has_the_next_number() {
        let mut numbers = SequenceNumbers::new(1, u32::MAX, 4);
        assert_eq!(numbers.without_status().0.get(), u32::MAX);
        assert_eq!(numbers.with_status().0.get(), u32::MAX);
        let (stat, exp, max) = numbers.with_status();
        assert_eq!((stat.get(), exp.get(), max.get()), (0, 1, 4));
    }

    #[test]
    fn a_number_comes_before_another_in_the_window() {
        let numbers = SequenceNumbers::new(u32::MAX - 1, 0, 8);
        assert!(numbers.contains_before(u32::MAX, 1));
        assert!(!numbers.contains_before(1, u32::MAX));
        assert!(!numbers.contains_before(u32::MAX - 2, 1));
    }
}
