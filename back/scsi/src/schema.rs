//! The declaration of SCSI devices for the configuration.

use lunar_control::schema::{KeySet, Location, Serves, SizeRule, StoreSchema};
use lunar_control::section::or;
use lunar_control::value::Whole;
use lunar_control::{choices, sections};

choices! {
    /// Whether one initiator at a time has a device.
    Exclusive {
        /// tape drives, because two writers ruin a tape
        Tapes = "tapes",
        /// a device of any type
        Always = "always",
        /// no device: initiators use reservations
        Never = "never",
    }
}

sections! {
    /// The keys of a SCSI device.
    ScsiKeys (made: Live, removed: Live) {
        /// Which devices one initiator at a time has, for `kind = "scsi"`. The first command that reads, writes or
        /// positions takes the device; other initiators get RESERVATION CONFLICT until the medium is unloaded, the
        /// device is released (RELEASE), or the session ends. Persistent reservations take precedence.
        exclusive: Exclusive = or(Exclusive::Tapes) => EndsSessions;
        /// Operation codes that are sent to the device although they may harm other initiators, for `kind = "scsi"`:
        /// for example `0x04` (FORMAT UNIT) or `0x3b` (WRITE BUFFER, firmware).
        allow: Vec<Whole<0, 255>> = or(Vec::new()) => EndsSessions;
    }
}

impl ScsiKeys {
    fn brief(&self) -> String {
        match self.exclusive {
            Exclusive::Tapes => String::new(),
            Exclusive::Always => "exclusive".into(),
            Exclusive::Never => "not exclusive".into(),
        }
    }
}

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "scsi",
    doc: "a SCSI device of this machine, to which commands are forwarded",
    noun: "scsi device",
    location: Location::Device,
    size: SizeRule::Refused,
    serves: Serves::Device,
    keys: Some(KeySet::of::<ScsiKeys>()),
};
