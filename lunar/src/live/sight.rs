//! Who is logged in, and what was counted: for those who look.

use super::Live;
use crate::house::Core;
use crate::stats;
use lunar_control::api::{MediumView, SessionView};
use lunar_control::live::{Later, Motion};
use lunar_core::tally::Event;
use lunar_iscsi::registry::Guest;
use lunar_scsi::tray::Tray;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
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

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        let number = id.strip_prefix(ISCSI).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let guest = number.and_then(|tsih| self.house().common().registry.guest(tsih))?;
        let cores = self.house().cores().clone();
        Some(Box::new(move || cores.end_session(guest.place)))
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

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        let placed = self.volumes.get(volume)?;
        let (unit, medium) = (placed.unit, placed.model.medium.word());
        let work = move |core: Rc<Core>| std::future::ready(core.served.target.medium(unit.0 as u16));
        let (tray, locked) = self.house().cores().ask(0, work).wait()??;
        Some(MediumView { volume: volume.to_owned(), medium, loaded: tray == Tray::Loaded, locked })
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>> {
        // Units are numbered below the last LUN.
        let lun = self.volumes.get(volume)?.unit.0 as u16;
        let moved = self.house().cores().ask(0, move |core| async move {
            let target = &core.served.target;
            match motion {
                Motion::Eject { forced } => target.eject(lun, forced).await,
                Motion::Load => target.load(lun).await,
            }
        });
        Some(Box::new(move || match moved.wait() {
            Some(outcome) => outcome.map_err(|why| why.to_string()),
            None => Err("the service stops".to_owned()),
        }))
    }

    fn settling(&mut self) -> Option<Later<()>> {
        let latch = self.settling.clone();
        (!latch.is_open()).then(|| Box::new(move || latch.wait()) as Later<()>)
    }
}
