//! SCSI commands of the operator to volumes, and their ends.

use crate::write_freeze::WriteOffer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The most bytes of data of a command in each direction: the longest transfer that disks advertise as optimal, and
/// more than the blocks of tapes mostly have. It bounds the memory of requests.
pub const DATA_BYTES_MAX: u32 = 1 << 20;
/// The longest time for a command: less than the API waits for an answer.
pub const SECONDS_MAX: u16 = 90;
/// The time for a command without a given one.
pub const SECONDS: u16 = 30;

/// The most commands in progress: operators give one at a time, and each may hold two times [`DATA_BYTES_MAX`] bytes.
pub const COMMANDS_MAX: usize = 16;
/// The most of them at one volume, so that a volume that does not answer leaves room for others.
pub const VOLUME_COMMANDS_MAX: usize = 4;

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScsiOrder {
    /// The CDB in hexadecimal digits, or the name of the command with its fields.
    pub command: String,
    /// The bytes that are expected at most; `None`: as many as the command returns, if it returns data.
    pub data_in: Option<u32>,
    /// The data for the command.
    pub data_out: Vec<u8>,
    /// The time after which it is aborted.
    pub patience: Duration,
}

impl ScsiOrder {
    /// A command without data to send.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        let patience = Duration::from_secs(SECONDS.into());
        Self { command: command.into(), data_in: None, data_out: Vec::new(), patience }
    }
}

/// Told of the CDB of a command, and of its name if Lunar knows it, immediately before the command is executed.
pub type Begins = Box<dyn FnOnce(&[u8], Option<&str>) + Send>;

/// A command that is executed, and the volumes that it is allowed to change.
pub struct ScsiCall {
    /// The command.
    pub order: ScsiOrder,
    /// The volumes.
    pub offer: WriteOffer,
    /// Told that it begins.
    pub begins: Begins,
}

impl fmt::Debug for ScsiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, offer, begins: _ } = self;
        f.debug_struct("ScsiCall").field("order", order).field("offer", offer).finish_non_exhaustive()
    }
}

/// The end of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScsiOutcome {
    /// The CDB that was executed.
    pub cdb: Vec<u8>,
    /// The name of the command; `None` if Lunar does not know it.
    pub name: Option<String>,
    /// The status code.
    pub status: u8,
    /// Its name.
    pub status_name: String,
    /// The sense data; empty if there is none.
    pub sense: Vec<u8>,
    /// Their meaning in words; empty if they have none.
    pub sense_words: String,
    /// The data that the command has returned.
    pub data: Vec<u8>,
    /// The bytes that the command would have moved.
    pub wanted: u64,
}

impl ScsiOutcome {
    /// Whether the command did what it was to do: GOOD, or CONDITION MET.
    #[must_use]
    pub fn is_good(&self) -> bool {
        [0x00, 0x04].contains(&self.status)
    }
}

/// Why there is no end of a command.
#[derive(Debug)]
pub enum ScsiError {
    /// The volume is not served.
    NotServed,
    /// The command is written wrong.
    Command(Box<dyn Error + Send + Sync>),
    /// Data in both directions.
    BothDirections,
    /// More data than a command may have.
    TooLong,
    /// A volume that it may change is being copied.
    Copied,
    /// Too many commands are in progress.
    Busy,
    /// It did not end in time, and was aborted.
    Aborted(Duration),
    /// It did not end in time, and not after its abort either: it may still be executed.
    Unfinished(Duration),
    /// A panic has ended it.
    Failed,
    /// The service stops.
    Stopping,
}

impl fmt::Display for ScsiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed => f.write_str("the volume is unavailable; `lunar status` shows the reason"),
            Self::Command(why) => why.fmt(f),
            Self::BothDirections => {
                f.write_str("a command has data in one direction: give data to send, or expect some")
            }
            Self::TooLong => write!(f, "a command moves at most {DATA_BYTES_MAX} bytes this way"),
            Self::Copied => f.write_str(
                "a volume that the command may change is being copied, and the copy would be inconsistent: wait until \
                 the copy has ended; commands that only read are executed",
            ),
            Self::Busy => write!(
                f,
                "too many of these commands are in progress, and it was not executed: there may be \
                 {VOLUME_COMMANDS_MAX} at a volume and {COMMANDS_MAX} in all; try again when one has ended"
            ),
            Self::Aborted(time) => write!(
                f,
                "the command did not end within {} s and was aborted: a part of it may have been executed",
                time.as_secs()
            ),
            Self::Unfinished(time) => write!(
                f,
                "the command did not end within {} s, and its abort has not ended it either: its outcome is unknown, \
                 and it may still be executed; `lunar status` shows whether the volume answers, and what the command \
                 has changed has to be read from the volume before it is repeated",
                time.as_secs()
            ),
            Self::Failed => f.write_str("the command failed inside of Lunar; its log has the reason"),
            Self::Stopping => f.write_str("the service stops"),
        }
    }
}

impl Error for ScsiError {}

/// A command, as a request of the API.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "scsi-command")]
pub struct ScsiRequest {
    /// The CDB in hexadecimal digits, or the name of the command with its fields: `READ(10) lba=0 length=8`.
    pub command: String,
    /// The bytes that are expected at most; without it, as many as the command returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_in: Option<u32>,
    /// The data for the command, in Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_out: Option<String>,
    /// The seconds after which it is aborted; without it, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u16>,
}

/// The end of a command, as a response of the API.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "scsi-outcome")]
pub struct ScsiView {
    /// The CDB that was executed, in hexadecimal digits.
    pub cdb: String,
    /// The name of the command, if Lunar knows it.
    pub command: Option<String>,
    /// The status code.
    pub status: u8,
    /// Its name.
    pub status_name: String,
    /// The sense data in hexadecimal digits; empty if there is none.
    pub sense: String,
    /// Their meaning in words.
    pub sense_words: String,
    /// The data that the command has returned, in Base64.
    pub data: String,
    /// The bytes that the command would have moved.
    pub wanted: u64,
}
