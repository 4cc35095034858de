//! Settings of a target, and limits that hold for all settings.

use crate::chap::Algorithm;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a data segment during login, before MaxRecvDataSegmentLength is declared (RFC 7143 13.12).
pub const LOGIN_SEGMENT_MAX: usize = 8192;
/// Most bytes of one text in a login or a text exchange, over all its PDUs: twice what all keys of RFC 7143 clause 13
/// need with long names and a long CHAP response.
pub const TEXT_MAX: usize = 16 << 10;
/// Most pairs in one text: twice the number of keys. The answers to as many fit one login PDU of 8,192 bytes.
pub const PAIRS_MAX: usize = 64;
/// Most requests of one login: the stages take 3 or 4, CHAP 2 more, long texts a few more.
pub const LOGIN_REQUESTS_MAX: u32 = 32;
/// Most immediate commands and task management functions outside of the command window: RFC 7143 11.17.1 requires one
/// per logical unit and one more. Initiators have been seen to send a dozen aborts at once.
pub const IMMEDIATE_MAX: usize = 32;
/// The largest command window: a session's slots execute no more commands, and serial number arithmetic stays far from
/// its limits.
pub const WINDOW_MAX: u32 = 1024;
/// Most outstanding R2Ts of one command: more bursts than these hide no more latency.
pub const OUTSTANDING_R2T_MAX: u32 = 8;
/// Bytes of replies that requests cause directly (NOP-In, Reject, text) before reading pauses until they are sent: a
/// peer that sends and never reads ties up this much memory.
pub const ANSWERS_MAX: usize = 256 << 10;
/// How long requests wait for one with a lower CmdSN. The one connection of a session delivers in order, so a missing
/// CmdSN is an error of the initiator; only ABORT TASK closes the gap (RFC 7143 11.5.5).
pub const MISSING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a discovery session lives: initiators ask within a second and log out. Then the target asks for a logout.
pub const DISCOVERY_LIFETIME: Duration = Duration::from_secs(60);
/// How long the initiator of a discovery session may take to log out when it is asked to.
pub const DISCOVERY_LOGOUT: Duration = Duration::from_secs(5);
/// Most bytes of a CDB. A longer one gets INVALID COMMAND OPERATION CODE.
pub const CDB_MAX: usize = 32;
/// Most bytes of sense data (SPC-6 4.4.1).
pub const SENSE_MAX: usize = 252;

/// Most bytes of the data segment of a PDU that an initiator sends over RDMA: what the initiator of Linux sends without
/// an RDMA READ.
pub const RDMA_SEGMENT_MAX: u32 = 8192;
/// Most bytes of the data segment of a PDU of the target over RDMA. Initiators post buffers of this size, whatever they
/// declare; data of commands does not go there.
pub const RDMA_ANSWER_MAX: u32 = 128;

/// The transport of the PDUs of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Transport {
    /// A TCP connection.
    #[default]
    Tcp,
    /// An RDMA connection (iSER, RFC 7145).
    Rdma,
}

impl Transport {
    /// Its word in the configuration, the API, metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tcp => "iscsi",
            Self::Rdma => "iser",
        }
    }

    /// Whether it is RDMA.
    #[must_use]
    pub fn is_rdma(self) -> bool {
        self == Self::Rdma
    }
}

/// The settings of a target's sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The transport of the PDUs.
    pub transport: Transport,
    /// MaxRecvDataSegmentLength that the target declares, in bytes.
    pub max_recv_segment: u32,
    /// Largest MaxBurstLength, in bytes.
    pub max_burst: u32,
    /// Largest FirstBurstLength, in bytes.
    pub first_burst: u32,
    /// InitialR2T: whether the first burst always needs an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: whether immediate data is allowed.
    pub immediate_data: bool,
    /// Largest MaxOutstandingR2T.
    pub max_outstanding_r2t: u32,
    /// Whether digests are used if the initiator prefers CRC32C, for headers and for data.
    pub digests: bool,
    /// The allowed CHAP algorithms, in order of preference.
    pub chap: Arc<[Algorithm]>,
    /// Largest iSCSIProtocolLevel: 2 adds the functions of RFC 7144.
    pub protocol_level: u32,
    /// Smallest DefaultTime2Wait, in seconds.
    pub time_to_wait: u32,
    /// Largest DefaultTime2Retain, in seconds.
    pub time_to_retain: u32,
    /// Commands in progress: the size of the command window.
    pub window: u32,
    /// Most bytes of immediate and unsolicited data that no command has pulled yet. Further commands get BUSY.
    pub unsolicited_max: usize,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// After this long without a PDU of the initiator, the target sends a NOP-In.
    pub ping_after: Duration,
    /// After this long without an answer to the NOP-In, the connection is closed.
    pub ping_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let (window, first_burst) = (128, 64 << 10);
        Self {
            transport: Transport::Tcp,
            max_recv_segment: 256 << 10,
            // The bytes of one pull: a longer burst would be requested in parts.
            max_burst: 256 << 10,
            first_burst,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: OUTSTANDING_R2T_MAX,
            digests: true,
            chap: Arc::new(Algorithm::ALL),
            protocol_level: 1,
            time_to_wait: 2,
            // At recovery level 0 no task is retained.
            time_to_retain: 0,
            window,
            // A whole first burst for every command of the window.
            unsolicited_max: window as usize * first_burst as usize,
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
        }
    }
}

impl Config {
    /// The same settings for sessions over this transport.
    #[must_use]
    pub fn over(&self, transport: Transport) -> Self {
        match transport {
            Transport::Tcp => self.clone(),
            Transport::Rdma => Self {
                transport,
                max_recv_segment: RDMA_SEGMENT_MAX,
                // Data that is not with its command is read from the memory of the initiator, one burst at a time.
                initial_r2t: true,
                max_outstanding_r2t: 1,
                // RDMA has checks of its own (RFC 7145 6.2).
                digests: false,
                ..self.clone()
            },
        }
    }

    /// Checks that each setting is within the limits of RFC 7143.
    ///
    /// # Errors
    /// The first rule that is violated, as text.
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
    fn the_defaults_are_valid() {
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn an_invalid_setting_is_named() {
        let bad = Config { first_burst: 1 << 20, ..Config::default() };
        assert_eq!(bad.check(), Err("first_burst must not exceed max_burst"));
        let bad = Config { window: 0, ..Config::default() };
        assert_eq!(bad.check(), Err("window must be 1 to 1024"));
        let bad = Config { max_recv_segment: 1 << 24, ..Config::default() };
        assert!(bad.check().is_err());
    }
}
