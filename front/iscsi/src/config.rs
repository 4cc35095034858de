//! What a target offers and allows, and the limits that hold whatever is configured.

use crate::chap::Algorithm;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a data segment during login, where nothing has been declared yet (13.12).
pub const LOGIN_SEGMENT_MAX: usize = 8192;
/// Bytes of one text in a login or a text exchange, over all its PDUs: what all keys of clause 13 need, with
/// long names and a long CHAP response, fits twice.
pub const TEXT_MAX: usize = 16 << 10;
/// Pairs in one text: twice as many as there are keys; with it every answer fits one login PDU of 8,192 bytes.
pub const PAIRS_MAX: usize = 64;
/// Requests in one login: the stages take 3 or 4, CHAP 2 more, long texts a few. Whoever needs more plays.
pub const LOGIN_REQUESTS_MAX: u32 = 32;
/// Immediate commands and task management functions beside the window: 11.17.1 wants one per logical unit and
/// one more at least; abort storms of initiators have been seen with a dozen.
pub const IMMEDIATE_MAX: usize = 32;
/// The widest window: more is more than a session's slots carry out, and serial arithmetic stays far from its edge.
pub const WINDOW_MAX: u32 = 1024;
/// R2Ts that one command may have outstanding: more hide no more latency than this many bursts do.
pub const OUTSTANDING_R2T_MAX: u32 = 8;
/// Bytes of answers that requests call up by themselves (ping echoes, rejects, text) before reading pauses until
/// they are sent: a peer that sends and never reads ties up this much.
pub const ANSWERS_MAX: usize = 256 << 10;
/// Bytes of a CDB that is handed on; a longer one is refused as an operation code that is not known.
pub const CDB_MAX: usize = 32;
/// Sense data is at most this long (SPC-6 4.4.1).
pub const SENSE_MAX: usize = 252;

/// The settings of a target portal's sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// MaxRecvDataSegmentLength that is declared. Bytes.
    pub max_recv_segment: u32,
    /// MaxBurstLength at most. Bytes.
    pub max_burst: u32,
    /// FirstBurstLength at most. Bytes.
    pub first_burst: u32,
    /// Whether the first burst must be asked for, even if the initiator could do without.
    pub initial_r2t: bool,
    /// Whether data may travel with the command.
    pub immediate_data: bool,
    /// MaxOutstandingR2T at most.
    pub max_outstanding_r2t: u32,
    /// Whether CRC32C is agreed to when the initiator prefers it, for headers and for data.
    pub digests: bool,
    /// The algorithms of CHAP that are allowed, the preferred ones first.
    pub chap: Arc<[Algorithm]>,
    /// iSCSIProtocolLevel at most: 2 adds the functions of RFC 7144.
    pub protocol_level: u32,
    /// DefaultTime2Wait at least. Seconds.
    pub time_to_wait: u32,
    /// DefaultTime2Retain at most. Seconds.
    pub time_to_retain: u32,
    /// Commands under way at once.
    pub window: u32,
    /// Bytes of data that came unasked and that no command has pulled yet; beyond it commands are answered BUSY.
    pub unsolicited_max: usize,
    /// A login is over by then.
    pub login_timeout: Duration,
    /// A peer that was silent for so long is asked whether it lives.
    pub ping_after: Duration,
    /// A peer that does not answer for so long does not.
    pub ping_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let (window, first_burst) = (128, 64 << 10);
        Self {
            max_recv_segment: 256 << 10,
            // What is pulled at once: a longer burst would be asked for in pieces anyway.
            max_burst: 256 << 10,
            first_burst,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: OUTSTANDING_R2T_MAX,
            digests: true,
            chap: Arc::new(Algorithm::ALL),
            protocol_level: 1,
            time_to_wait: 2,
            // At recovery level 0 nothing is retained.
            time_to_retain: 0,
            window,
            // Every command of the window with a whole first burst.
            unsolicited_max: window as usize * first_burst as usize,
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
        }
    }
}

impl Config {
    /// Whether the settings can be offered: each within what RFC 7143 allows.
    ///
    /// # Errors
    /// The first that cannot, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        let lengths = 512..=0xff_ffff;
        let rules = [
            (lengths.contains(&self.max_recv_segment), "max_recv_segment must be 512 to 16777215"),
            (lengths.contains(&self.max_burst), "max_burst must be 512 to 16777215"),
            (lengths.contains(&self.first_burst), "first_burst must be 512 to 16777215"),
            (self.first_burst <= self.max_burst, "first_burst must not exceed max_burst"),
            ((1..=OUTSTANDING_R2T_MAX).contains(&self.max_outstanding_r2t), "max_outstanding_r2t must be 1 to 8"),
            ((1..=2).contains(&self.protocol_level), "protocol_level must be 1 or 2"),
            (!self.chap.is_empty(), "chap must name an algorithm"),
            (self.chap.iter().all(|algorithm| Algorithm::ALL.contains(algorithm)), "chap must name algorithms"),
            (self.time_to_wait <= 3600, "time_to_wait must be 0 to 3600"),
            (self.time_to_retain <= 3600, "time_to_retain must be 0 to 3600"),
            ((1..=WINDOW_MAX).contains(&self.window), "window must be 1 to 1024"),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err(rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_offered() {
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn what_cannot_be_offered_is_named() {
        let bad = Config { first_burst: 1 << 20, ..Config::default() };
        assert_eq!(bad.check(), Err("first_burst must not exceed max_burst"));
        let bad = Config { window: 0, ..Config::default() };
        assert_eq!(bad.check(), Err("window must be 1 to 1024"));
        let bad = Config { max_recv_segment: 1 << 24, ..Config::default() };
        assert!(bad.check().is_err());
    }
}
