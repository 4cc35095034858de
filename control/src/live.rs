//! The state of a running target beyond its configuration: sessions, statistics and media.

use crate::api::{HandlerView, IsnsView, LocalDisksView, MediumView, SessionView, TcpView, TroubleView, VmView};
use crate::apply::TargetError;
use crate::check::Checked;
use crate::counters::StoreSpace;
use crate::explain::{LoginQuestion, LoginVerdict, RefusalView, ReservationView};
use crate::in_use::{AffectedHost, LostDisk, Taking};
use crate::names::Uuid;
use crate::scsi::{ScsiCall, ScsiError, ScsiOutcome};
use crate::slow::{AllStagesView, SlowLogView};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::error::Error;
use std::{fmt, io};

/// Work that may take long, or the wait for it: for a thread that may block.
pub type Later<T> = Box<dyn FnOnce() -> T + Send>;

/// The state of TCP connections, by the ID of their session.
pub type TcpViews = BTreeMap<String, Vec<TcpView>>;

/// A movement of a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Motion {
    /// Eject it; if initiators prevent the removal, only if it is forced.
    Eject {
        /// Eject it although initiators prevent the removal.
        forced: bool,
    },
    /// Load it.
    Load,
}

/// Why a medium was not moved.
#[derive(Debug)]
pub enum MediumError {
    /// The volume is not served.
    NotServed,
    /// The medium cannot be removed.
    Fixed,
    /// A client prevents its removal.
    Prevented,
    /// It is being formatted or sanitized.
    Busy,
    /// Written data could not be flushed to it, for this reason.
    NotFlushed(io::Error),
    /// The service stops.
    Stopping,
}

impl fmt::Display for MediumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed => f.write_str("the volume is not served"),
            Self::Fixed => f.write_str("the volume is a fixed disk; only volumes with removable media can be ejected"),
            Self::Prevented => {
                f.write_str("a client uses the medium and prevents its removal; it was asked to allow it")
            }
            Self::Busy => f.write_str("the medium is being formatted or sanitized; try again later"),
            Self::NotFlushed(why) => write!(f, "data that was written cannot be written to the medium: {why}"),
            Self::Stopping => f.write_str("the service stops"),
        }
    }
}

impl Error for MediumError {}

/// Why a store is not accepted.
#[derive(Debug)]
pub enum StoreNotAccepted {
    /// The store of the volume is available.
    IsServed,
    /// The volume is not served.
    NoVolume,
    /// The store cannot be opened.
    Refused(TargetError),
}

impl fmt::Display for StoreNotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IsServed => f.write_str("the store of the volume is available: nothing is to be accepted"),
            Self::NoVolume => f.write_str("the volume is not served; `lunar status` shows the reason"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl Error for StoreNotAccepted {}

/// The origin of a store that is made by the system that keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOrigin<'a> {
    /// Nothing: it has so many bytes.
    Empty(u64),
    /// The store of the volume of this name: it is a snapshot if it is read-only, and otherwise a clone.
    Volume(&'a str),
}

/// A store that was made for a volume that is not created yet.
pub trait MadeStore: Send {
    /// The volume is created.
    fn keep(self: Box<Self>);

    /// Removes the store; this may take long.
    ///
    /// # Errors
    /// If it is left.
    fn remove(self: Box<Self>) -> Result<(), StoreNotMade>;
}

/// Why a store is not made, or not removed, in words that say what to do.
#[derive(Debug)]
pub struct StoreNotMade(Box<dyn Error + Send + Sync>);

impl StoreNotMade {
    /// The error of a kind of store.
    #[must_use]
    pub fn new(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for StoreNotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for StoreNotMade {}

/// The work that makes a store.
pub type Making = Later<Result<Box<dyn MadeStore>, StoreNotMade>>;

/// The things that belong to a volume besides its file, for a copy of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopySource {
    /// The identity of the copy.
    pub uuid: Uuid,
    /// Metadata records that the copy gets: the type of its protection information, marks of unreadable blocks.
    pub records: Vec<(&'static str, Vec<u8>)>,
    /// The ends of the names of files that are copied with the file, such as `.pi`.
    pub companions: Vec<&'static str>,
}

/// The state of a running target, and the operations on it.
pub trait Live {
    /// All sessions, over all transports.
    fn sessions(&mut self) -> Vec<SessionView>;

    /// Reads the state of the TCP connections of all sessions, or of one, by their IDs.
    fn tcp(&mut self, only: Option<&str>) -> Later<TcpViews> {
        let _ = only;
        Box::new(TcpViews::new)
    }

    /// Ends a session; its client may reconnect. `None`: there is no session with this ID. The work returns whether the
    /// session has ended.
    fn kick(&mut self, id: &str) -> Option<Later<bool>>;

    /// The statistics since the start: an object with a number for each row of the table of statistics, and further
    /// objects.
    fn statistics(&mut self) -> Json;

    /// The slow commands.
    fn slow(&mut self) -> SlowLogView {
        SlowLogView::default()
    }

    /// Where the time of commands goes.
    fn stages(&mut self) -> AllStagesView {
        AllStagesView::default()
    }

    /// Decides about a login over this transport as it would about a real one, without any effect; `None`: its clients
    /// do not log in.
    fn dry_run(&mut self, protocol: &str, question: &LoginQuestion) -> Option<LoginVerdict> {
        let _ = (protocol, question);
        None
    }

    /// The refused logins, the latest first.
    fn refusals(&mut self) -> Vec<RefusalView> {
        Vec::new()
    }

    /// The LUN map of a group in force: the volume of each LUN, and whether its writes are refused. `None`: no group of
    /// this name is in force.
    fn mapped(&mut self, group: &str) -> Option<BTreeMap<u16, (String, bool)>> {
        let _ = group;
        None
    }

    /// The reservations of a volume; `None` if it is not served.
    fn reservation(&mut self, volume: &str) -> Option<ReservationView> {
        let _ = volume;
        None
    }

    /// The clients that were told of a new size of a volume, and have not asked for it since.
    fn unread_size(&mut self, volume: &str) -> Vec<String> {
        let _ = volume;
        Vec::new()
    }

    /// Ends the registrations and the reservation of a volume; `None` if it is not served. The work returns whether
    /// they have ended, also after a restart.
    fn clear_reservation(&mut self, volume: &str) -> Option<Later<bool>> {
        let _ = volume;
        None
    }

    /// Executes a SCSI command at the logical unit of a volume; `None` if it is not served. The work returns its end.
    fn scsi(&mut self, volume: &str, call: ScsiCall) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        let _ = (volume, call);
        None
    }

    /// The handlers of volumes.
    fn handlers(&mut self) -> Vec<HandlerView> {
        Vec::new()
    }

    /// Asks about the disks of this machine that are served, and what the kernel offers for them.
    fn local_disks(&mut self) -> Later<LocalDisksView> {
        Box::new(LocalDisksView::default)
    }

    /// The disks of this machine that programs use, and that a change would take away.
    fn lost_disks(&mut self, taking: &Taking<'_>) -> Vec<LostDisk> {
        let _ = taking;
        Vec::new()
    }

    /// The loss of programs of this machine when the session of this ID ends; `None`: its client may reconnect, or
    /// nothing that is known uses it.
    fn lost_with(&mut self, id: &str) -> Option<AffectedHost> {
        let _ = id;
        None
    }

    /// The endpoints of virtual machines.
    fn vms(&mut self) -> Vec<VmView>;

    /// The file systems of volumes, as they were measured last.
    fn stores(&mut self) -> Vec<StoreSpace> {
        Vec::new()
    }

    /// The state of the iSNS registration; `None` without an iSNS server.
    fn isns(&mut self) -> Option<IsnsView>;

    /// The troubles, each with what to do.
    fn troubles(&mut self) -> Vec<TroubleView>;

    /// Finds out whether the place of the store of a volume answers; this may take long. `wanted` is the configuration
    /// that is served.
    fn store_answers(&mut self, volume: &str, wanted: &Checked) -> Later<Result<(), StoreNotAccepted>> {
        let _ = (volume, wanted);
        Box::new(|| Ok(()))
    }

    /// Serves the store that is at the place of a volume now, although Lunar cannot verify that it is the previous one.
    /// `wanted` is the configuration that is served.
    ///
    /// # Errors
    /// In words that say what to do.
    fn accept_store(&mut self, volume: &str, wanted: &Checked) -> Result<(), StoreNotAccepted> {
        let _ = (volume, wanted);
        Err(StoreNotAccepted::IsServed)
    }

    /// The file systems that have promised more space to volumes than they have, in words that say what to do.
    fn space_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The medium of a volume; `None` if there is no such volume.
    fn medium(&mut self, volume: &str) -> Option<MediumView>;

    /// Ejects or loads the medium of a volume; `None` if there is no such volume. The work returns why the medium was
    /// not moved.
    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>>;

    /// The things that a copy of a volume takes along; `None` if nothing belongs to the volume besides its file.
    fn copy_source(&mut self, volume: &str) -> Option<CopySource>;

    /// Makes the store of a volume that `wanted` has and that is not served yet, in the system that keeps such stores;
    /// `None` if its kind of store is not made so, or the volume that it is made of is not served.
    fn make_store(&mut self, volume: &str, wanted: &Checked, origin: StoreOrigin<'_>) -> Option<Making> {
        let _ = (volume, wanted, origin);
        None
    }

    /// Gives a volume that does not exist yet its metadata records; without any, removes those that it has.
    ///
    /// # Errors
    /// If they cannot be written.
    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> io::Result<()>;

    /// Waits until the last change is finalized: sessions that it removed have ended. `None` if it is. The next change
    /// must wait for that.
    fn finalizing(&mut self) -> Option<Later<()>>;
}
