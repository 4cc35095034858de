//! Who is logged in, and what was counted: for those who look.

use super::Live;
use crate::stats;
use lunar_control::api::SessionView;
use lunar_core::tally::Event;
use lunar_iscsi::registry::Guest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is counted of a volume, by the names of the table of statistics.
const COUNTED: [(&str, Event); 4] = [
    ("read_commands", Event::ReadCommand),
    ("write_commands", Event::WriteCommand),
    ("read_bytes", Event::ReadBytes),
    ("write_bytes", Event::WriteBytes),
];

/// What iSCSI is called, and what the names of its sessions begin with.
const ISCSI: &str = "iscsi";

impl Live {
    fn session(&self, tsih: u16, guest: &Guest, names: &BTreeMap<Arc<str>, String>, now: u64) -> SessionView {
        let owned = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        let target = guest.who.target.as_ref().filter(|_| !guest.candidate.discovery);
        SessionView {
            id: format!("{ISCSI}-{tsih}"),
            protocol: ISCSI,
            discovery: guest.candidate.discovery,
            initiator: guest.candidate.initiator.to_string(),
            source: guest.who.source.to_string(),
            target: target.map(|iqn| names.get(iqn).cloned().unwrap_or_else(|| iqn.to_string())),
            group: owned(&guest.who.group),
            user: owned(&guest.who.user),
            seconds: now.saturating_sub(guest.since.0 / 1_000_000_000),
        }
    }
}

impl lunar_control::live::Live for Live {
    fn sessions(&mut self) -> Vec<SessionView> {
        // The clock of the reactors.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec;
        let now = u64::try_from(now).unwrap_or(0);
        let guests = self.house().common().registry.guests();
        guests.iter().map(|(tsih, guest)| self.session(*tsih, guest, &self.settled.names, now)).collect()
    }

    fn kick(&mut self, id: &str) -> bool {
        let number = id.strip_prefix(ISCSI).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let guest = number.and_then(|tsih| self.house().common().registry.guest(tsih));
        guest.is_some_and(|guest| self.house().cores().end_session(guest.place))
    }

    fn statistics(&mut self) -> Value {
        let mut all = stats::snapshot(&self.house().common().stats);
        let volume = |(name, placed): (&String, &super::Placed)| {
            let counts = COUNTED.iter().map(|(key, event)| ((*key).to_owned(), json!(placed.tally.total(*event))));
            (name.clone(), Value::Object(counts.collect()))
        };
        all["volumes"] = Value::Object(self.volumes.iter().map(volume).collect());
        all
    }

    fn troubles(&mut self) -> Vec<String> {
        self.settled.troubles.clone()
    }
}
