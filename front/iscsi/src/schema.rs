//! The declaration of iSCSI for the configuration.

use lunar_control::common_sections::{ISCSI_PORT, Portal};
use lunar_control::schema::{FrontSchema, KeySet, PortalSchema};
use lunar_control::section::or;
use lunar_control::sections;

/// Its word for `protocol`.
pub const WORD: &str = "iscsi";

sections! {
    /// The keys of a portal for iSCSI.
    PortalKeys (made: Live, removed: Live) {
        /// Whether SendTargets returns the portal, for `protocol = "iscsi"`. Initiators that know the address of the
        /// portal may log in anyway.
        listed: bool = or(true) => Live;
    }
}

impl PortalKeys {
    fn brief(&self) -> String {
        if self.listed { String::new() } else { "not listed".into() }
    }
}

/// Whether SendTargets returns a portal.
#[must_use]
pub fn is_listed(portal: &Portal) -> bool {
    portal.own.get::<PortalKeys>().is_none_or(|keys| keys.listed)
}

/// The declaration.
pub static FRONT: FrontSchema = FrontSchema {
    portals: Some(PortalSchema {
        word: WORD,
        doc: "iSCSI, port 3260 unless one is given",
        port: ISCSI_PORT,
        keys: Some(KeySet::of::<PortalKeys>()),
    }),
    section: None,
    limits: None,
};
