//! The declaration of volumes of another Lunar for the configuration.

use crate::address::{self, RemoteAddress};
use lunar_control::names::IscsiName;
use lunar_control::schema::{KeySet, Location, Serves, SizeRule, StoreSchema};
use lunar_control::section::{OwnKeys, optional, or, required};
use lunar_control::sections;
use lunar_control::value::{Period, Textual, ValueError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The key that says where the volume is.
pub(crate) const REMOTE: &str = "remote";
/// How long a command waits for a target: as long as the iSCSI initiator of Linux (`replacement_timeout`). A machine
/// that restarts needs longer than a program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of an address at most: eight of IPv6, or four paths of sockets.
const REMOTE_BYTES_MAX: usize = 500;
/// The rule for addresses.
const RULE: &str = "is no volume of another Lunar: it is udp:ADDRESS:PORT or INTERFACE@MAC, perhaps several with \
     commas between them, and #LUN";

/// Where a volume of another Lunar is, as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteName(PathBuf);

impl RemoteName {
    /// The name, in the place of a path.
    pub(crate) fn place(&self) -> &Path {
        &self.0
    }
}

/// The address in the place of a path.
pub(crate) fn address_of(place: &Path) -> Option<RemoteAddress> {
    address::parse(place.to_str()?)
}

impl Textual for RemoteName {
    const WHAT: &'static str = "a volume of another Lunar, udp:ADDRESS:PORT[#LUN] or INTERFACE@MAC[#LUN]: \
         `\"udp:192.0.2.1:18181#1\"`, `\"eth0@52:54:00:12:34:01\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let is_right = text.len() <= REMOTE_BYTES_MAX && address::parse(text).is_some();
        if is_right { Ok(Self(PathBuf::from(text))) } else { Err(ValueError::Declared(RULE)) }
    }

    fn text(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

sections! {
    /// The keys of a volume of another Lunar.
    StKeys (made: Live, removed: Live) {
        /// Where the volume is, for `kind = "st"`: `udp:ADDRESS:PORT`, or an interface and the MAC address of the
        /// target on it, `eth0@52:54:00:12:34:01`, which needs the capability CAP_NET_RAW. Several of them, with commas
        /// between them, are used together. `#LUN` follows, from 0 to 255; without it, the LUN is 0.
        remote: RemoteName = required() => EndsSessions;
        /// The name by which the target knows this initiator, for `kind = "st"`; no two volumes have the same. Without
        /// this key, `iqn.2026-01.io.lunar:HOST:ADDRESS`, where every character that names do not have is a dash.
        initiator_name: Option<IscsiName> = optional() => EndsSessions;
        /// How long a command waits for the target, for `kind = "st"`; afterwards it fails. Commands without an answer
        /// are sent again when the target is back.
        remote_timeout: Period = or(Period(PATIENCE)) => Live;
    }
}

impl StKeys {
    fn brief(&self) -> String {
        self.remote.text()
    }
}

fn place(keys: &OwnKeys) -> Option<&Path> {
    keys.get::<StKeys>().map(|keys| keys.remote.place())
}

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "st",
    doc: "a volume of another Lunar, over SCSI over Scheduled Transfer",
    noun: "volume of another Lunar",
    location: Location::Remote,
    size: SizeRule::Refused,
    serves: Serves::Blocks,
    keys: Some(KeySet::of::<StKeys>().with_place(REMOTE, place)),
};
