//! The time-outs that a device reports (REPORT SUPPORTED OPERATION CODES with RCTD, SPC-4 6.35.2).

use std::collections::BTreeMap;
use std::time::Duration;

/// Time-outs by operation code and service action.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Timeouts(BTreeMap<(u8, u16), Duration>);

/// The longest time-out that is believed.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Operation codes with a service action in byte 1.
const WITH_ACTIONS: [u8; 9] = [0x5e, 0x5f, 0x83, 0x84, 0x9e, 0x9f, 0xa3, 0xa4, 0x48];

impl Timeouts {
    /// The CDB that asks for them, with this allocation length.
    pub(crate) fn question(length: u16) -> [u8; 12] {
        let [high, low] = length.to_be_bytes();
        [0xa3, 0x0c, 0x80, 0, 0, 0, 0, 0, high, low, 0, 0]
    }

    /// Takes the answer apart. An incomplete answer has the time-outs of its beginning.
    pub(crate) fn of(answer: &[u8]) -> Self {
        /// SERVACTV, CTDP.
        const SERVACTV: u8 = 0x01;
        const CTDP: u8 = 0x02;
        let mut all = BTreeMap::new();
        let mut rest = answer.get(4..).unwrap_or_default();
        while let [op, _, action_high, action_low, _, flags, _, _, more @ ..] = rest {
            if flags & CTDP == 0 {
                rest = more;
                continue;
            }
            let Some((timeouts, others)) = more.split_at_checked(12) else { break };
            let recommended = u32::from_be_bytes([timeouts[8], timeouts[9], timeouts[10], timeouts[11]]);
            let action = if flags & SERVACTV == 0 { 0 } else { u16::from_be_bytes([*action_high, *action_low]) };
            if recommended > 0 {
                all.insert((*op, action), Duration::from_secs(recommended.into()).min(LONGEST));
            }
            rest = others;
        }
        Self(all)
    }

    /// The time-out of a CDB: that of the device, but never shorter than `least`.
    pub(crate) fn of_cdb(&self, cdb: &[u8], least: Duration) -> Duration {
        let op = cdb.first().copied().unwrap_or(0);
        let action = cdb.get(1).filter(|_| WITH_ACTIONS.contains(&op)).map_or(0, |byte| u16::from(byte & 0x1f));
        self.0.get(&(op, action)).copied().unwrap_or(least).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_device_may_ask_for_more_time() {
        let seconds = Duration::from_secs;
        let mut answer = vec![0, 0, 0, 48];
        answer.extend([0x01, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 60, 0, 0, 2, 0x58]);
        answer.extend([0x9e, 0, 0, 0x10, 0, 3, 0, 16, 0, 10, 0, 0, 0, 0, 0, 1, 0, 0, 0, 100]);
        answer.extend([0x12, 0, 0, 0, 0, 0, 0, 6]);
        let timeouts = Timeouts::of(&answer);
        assert_eq!(timeouts.of_cdb(&[0x01, 0, 0, 0, 0, 0], seconds(30)), seconds(600));
        assert_eq!(timeouts.of_cdb(&[0x01, 0, 0, 0, 0, 0], seconds(14_000)), seconds(14_000), "never less");
        assert_eq!(timeouts.of_cdb(&[0x9e, 0x10, 0, 0], seconds(30)), seconds(100));
        assert_eq!(timeouts.of_cdb(&[0x9e, 0x12, 0, 0], seconds(30)), seconds(30));
        assert_eq!(timeouts.of_cdb(&[0x12, 0, 0, 0], seconds(30)), seconds(30));
        assert_eq!(Timeouts::of(&answer[..30]).0.len(), 1);
    }

    proptest! {
        #[test]
        fn any_answer_does_no_harm(answer in prop::collection::vec(any::<u8>(), 0..300), cdb: [u8; 6]) {
            let found = Timeouts::of(&answer).of_cdb(&cdb, Duration::from_secs(30));
            prop_assert!((Duration::from_secs(30)..=LONGEST).contains(&found));
        }
    }
}
