//! The declaration of NVMe/TCP for the configuration.

use lunar_control::common_sections::Portal;
use lunar_control::schema::{FrontSchema, KeySet, PortalSchema};
use lunar_control::section::or;
use lunar_control::{choices, sections};

/// Its word for `protocol`.
pub const WORD: &str = lunar_nvme::path::TCP_WORD;
/// The TCP port of NVMe/TCP (IANA).
pub const NVME_PORT: u16 = 4420;

choices! {
    /// Whether NVMe hosts must connect with TLS 1.3.
    Tls {
        /// required of hosts whose group has TLS keys; other hosts connect without TLS
        Optional = "optional",
        /// required of all hosts, also for discovery
        Required = "required",
    }
}

sections! {
    /// The keys of a portal for NVMe/TCP.
    PortalKeys (made: Live, removed: Live) {
        /// Whether NVMe hosts must connect with TLS, for `protocol = "nvme-tcp"`.
        tls: Tls = or(Tls::Optional) => LaterSessions;
    }
}

impl PortalKeys {
    fn brief(&self) -> String {
        if self.tls == Tls::Required { "TLS".into() } else { String::new() }
    }
}

/// Whether a portal requires TLS of all hosts.
#[must_use]
pub fn requires_tls(portal: &Portal) -> bool {
    portal.own.get::<PortalKeys>().is_some_and(|keys| keys.tls == Tls::Required)
}

/// The declaration.
pub static FRONT: FrontSchema = FrontSchema {
    portals: Some(PortalSchema {
        word: WORD,
        doc: "NVMe over TCP with discovery, port 4420 unless one is given",
        port: NVME_PORT,
        keys: Some(KeySet::of::<PortalKeys>()),
    }),
    section: None,
    limits: None,
};
