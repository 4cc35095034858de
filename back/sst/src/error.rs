//! Why a volume of another Lunar cannot be opened or used, with advice to the operator.

use lunar_engine::origin::Wording;
use lunar_sst_initiator::LoginStatus;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A volume cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct RemoteError {
    place: PathBuf,
    mistake: Mistake,
    wording: Wording,
}

/// The reason.
#[derive(Debug)]
pub(crate) enum Mistake {
    /// The text is no address.
    NoAddress,
    /// There is no page cache.
    Direct,
    /// There is no thread for it.
    Thread(io::Error),
    /// Its blocks are longer than those that the volume would have.
    Blocks(u32),
    /// It is smaller than a block.
    Empty,
    /// It is read-only at its target.
    ReadOnly,
    /// It cannot be reached.
    Unreached(Why),
}

/// Why a volume is not served now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// No target has answered yet.
    Silent,
    /// No link can be opened, for this reason.
    Links(String),
    /// The target refuses the login of the initiator with this name.
    Refused(LoginStatus, String),
    /// There is no logical unit at the LUN.
    NoUnit(u8),
    /// It is a device of this type, and no disk.
    NotADisk(u8),
    /// It is not ready: sense key, and additional sense code with its qualifier.
    NotReady(u8, u16),
    /// It does not say which volume it is, or how large.
    Nameless,
    /// It is another volume than the one that was served.
    Stranger,
    /// Its blocks have another length than before.
    Blocks(u32),
}

impl Why {
    /// Whether waiting does not help: the operator has to do something.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, Self::Silent | Self::NotReady(..) | Self::Refused(LoginStatus::STOPPING, _))
    }

    /// Whether another volume is at the place.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::Stranger | Self::Blocks(_))
    }

    /// The remedy.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Silent => "check the address, the network, and that Lunar runs there with `--st` or a section \
                             [st.NAME]"
                .to_owned(),
            Self::Links(_) => "check the interfaces and routes of this machine (`ip route`)".to_owned(),
            Self::Refused(LoginStatus::NOT_SHOWN, name) => {
                format!("add {name} to `initiators` of a group there (`--initiator` of `lunar serve`)")
            }
            Self::Refused(LoginStatus::FULL, _) => "end initiators of the target that are not needed".to_owned(),
            Self::Refused(LoginStatus::VERSION, _) => "use the same version of Lunar on both sides".to_owned(),
            Self::Refused(..) => "its log says more".to_owned(),
            Self::NoUnit(_) | Self::NotADisk(_) => {
                "give the LUN of a disk behind `#` in the address (`luns` of the group there)".to_owned()
            }
            Self::NotReady(..) => "`lunar status` at the target says more".to_owned(),
            Self::Nameless => "only volumes of Lunar can be used".to_owned(),
            Self::Stranger => "put the right volume at this LUN of the target".to_owned(),
            Self::Blocks(_) => "put the volume at this LUN of the target that was there before".to_owned(),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("no target answers"),
            Self::Links(why) => write!(f, "no link to the target can be opened: {why}"),
            Self::Refused(LoginStatus::NOT_SHOWN, name) => {
                write!(f, "no group of the target lists the initiator {name}")
            }
            Self::Refused(LoginStatus::FULL, _) => f.write_str("the target has as many initiators as it can have"),
            Self::Refused(LoginStatus::STOPPING, _) => f.write_str("the target is stopping"),
            Self::Refused(LoginStatus::VERSION, _) => {
                f.write_str("the target has another version of the private layout of this transport")
            }
            Self::Refused(status, name) => {
                write!(f, "the target refuses the login of the initiator {name}: {status:?}")
            }
            Self::NoUnit(lun) => write!(f, "the target shows no volume at LUN {lun}"),
            Self::NotADisk(device) => write!(f, "the logical unit is a device of type {device:02x}h, and no disk"),
            Self::NotReady(key, code) => {
                write!(f, "the volume is not ready at its target (sense key {key:x}h, code {code:04x}h)")
            }
            Self::Nameless => f.write_str("the logical unit does not identify itself"),
            Self::Stranger => f.write_str("the volume at this LUN now is another one than the one that was served"),
            Self::Blocks(bytes) => write!(f, "the volume has blocks of {bytes} bytes now"),
        }
    }
}

impl RemoteError {
    pub(crate) fn new(place: &Path, mistake: Mistake, wording: Wording) -> Self {
        Self { place: place.to_owned(), mistake, wording }
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.display();
        match &self.mistake {
            Mistake::NoAddress => write!(
                f,
                "st:{place} names no volume: st:udp:ADDRESS:PORT[#LUN] or st:INTERFACE@MAC[#LUN], as \
                 st:udp:192.0.2.1:18181#1"
            ),
            Mistake::Direct => write!(
                f,
                "st:{place}: a volume of another Lunar has no page cache here: leave out {}",
                self.wording.option("direct")
            ),
            Mistake::Thread(why) => write!(f, "st:{place} cannot be served: {why}"),
            Mistake::Blocks(bytes) => write!(
                f,
                "st:{place} has blocks of {bytes} bytes: add {}",
                self.wording.value("block-size", &bytes.to_string())
            ),
            Mistake::Empty => write!(f, "st:{place} is smaller than one block, and cannot be served"),
            Mistake::ReadOnly => {
                write!(f, "st:{place} is read-only at its target: add {}", self.wording.option("read-only"))
            }
            Mistake::Unreached(why) => write!(f, "st:{place}: {why}: {}", why.remedy()),
        }
    }
}

impl std::error::Error for RemoteError {}
