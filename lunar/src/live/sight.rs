//! Who is logged in, and what was counted: for those who look.

use super::Live;
use super::hosts::Machine;
use crate::house::Core;
use crate::stats;
use lunar_control::api::{IsnsView, MachineView, MediumView, SessionView, qemu};
use lunar_control::live::{Later, Motion};
use lunar_core::tally::Event;
use lunar_iscsi::registry::SessionRecord;
use lunar_nvme::{Controller, Kind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is counted of a volume, by the names of the table of statistics.
const COUNTED: [(&str, Event); 4] = [
    ("read_commands", Event::ReadCommand),
    ("write_commands", Event::WriteCommand),
    ("read_bytes", Event::ReadBytes),
    ("write_bytes", Event::WriteBytes),
];

/// What iSCSI is called, and what the names of its sessions begin with.
const ISCSI: &str = "iscsi";

/// What the names of controllers begin with.
const NVME: &str = "nvme";
/// How long it takes at most until a controller has ended whose host does what it likes: what is in the store has to
/// come back first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(5);

impl Live {
    fn controller(&self, controller: &Controller, now: u64) -> SessionView {
        let (standing, path) = (&controller.standing, &controller.path);
        let machine = self.settled.machines.get(Path::new(&path.address)).filter(|_| path.memory);
        let nqn = &standing.subsystem.nqn;
        let target = || self.settled.names.get(nqn).cloned().unwrap_or_else(|| nqn.to_string());
        SessionView {
            id: format!("{NVME}-{}", controller.id),
            protocol: if path.memory { "vfio-user" } else { "nvme-tcp" },
            discovery: controller.kind == Kind::Discovery,
            initiator: controller.host.nqn.to_string(),
            source: standing.source.map_or_else(|| path.address.clone(), |source| source.to_string()),
            target: (controller.kind == Kind::Io).then(target),
            group: machine
                .map_or_else(|| standing.group.as_deref().map(str::to_owned), |machine| machine.group.clone()),
            user: None,
            seconds: now.saturating_sub(controller.since.0 / 1_000_000_000),
        }
    }

    /// Ends a controller; the work waits for a bounded time until it has ended.
    fn end_controller(&self, id: u16) -> Option<Later<bool>> {
        let controllers = self.house().common().controllers.clone();
        let controller = controllers.get(id)?;
        if controller.path.memory {
            self.end_machine(Path::new(&controller.path.address));
        } else {
            controller.end();
        }
        Some(Box::new(move || {
            let end = Instant::now() + PATIENCE;
            let is_there = || controllers.get(id).is_some_and(|found| Arc::ptr_eq(&found, &controller));
            while is_there() && Instant::now() < end {
                std::thread::sleep(LOOK);
            }
            !is_there()
        }))
    }

    fn session(&self, tsih: u16, record: &SessionRecord, names: &BTreeMap<Arc<str>, String>, now: u64) -> SessionView {
        let owned = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        let target = record.login.target.as_ref().filter(|_| !record.candidate.discovery);
        SessionView {
            id: format!("{ISCSI}-{tsih}"),
            protocol: ISCSI,
            discovery: record.candidate.discovery,
            initiator: record.candidate.initiator.to_string(),
            source: record.login.source.to_string(),
            target: target.map(|iqn| names.get(iqn).cloned().unwrap_or_else(|| iqn.to_string())),
            group: owned(&record.login.group),
            user: owned(&record.login.user),
            seconds: now.saturating_sub(record.since.0 / 1_000_000_000),
        }
    }
}

impl lunar_control::live::Live for Live {
    fn sessions(&mut self) -> Vec<SessionView> {
        // The clock of the reactors.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec;
        let now = u64::try_from(now).unwrap_or(0);
        let records = self.house().common().registry.records();
        let sessions = records.iter().map(|(tsih, record)| self.session(*tsih, record, &self.settled.names, now));
        let controllers = self.house().common().controllers.all();
        sessions.chain(controllers.iter().map(|controller| self.controller(controller, now))).collect()
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        if let Some(number) = id.strip_prefix(NVME).and_then(|rest| rest.strip_prefix('-')?.parse().ok()) {
            return self.end_controller(number);
        }
        let number = id.strip_prefix(ISCSI).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let record = number.and_then(|tsih| self.house().common().registry.record(tsih))?;
        let cores = self.house().cores().clone();
        Some(Box::new(move || cores.end_session(record.location)))
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

    fn machines(&mut self) -> Vec<MachineView> {
        let view = |(path, machine): (&PathBuf, &Machine)| MachineView {
            name: machine.name.clone(),
            socket: path.display().to_string(),
            qemu: qemu(path),
        };
        self.settled.machines.iter().map(view).collect()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.isns.view()
    }

    fn troubles(&mut self) -> Vec<String> {
        let settled = &self.settled;
        settled.troubles.iter().chain(settled.deaf.values()).cloned().chain(self.isns.trouble()).collect()
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        let placed = self.volumes.get(volume)?;
        let (unit, medium) = (placed.unit, placed.model.medium.word());
        let work = move |core: Rc<Core>| std::future::ready(core.served.units.tray(unit));
        let (tray, locked) = self.house().cores().ask(0, work).wait()??;
        Some(MediumView { volume: volume.to_owned(), medium, loaded: tray.is_loaded(), locked })
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>> {
        let unit = self.volumes.get(volume)?.unit;
        let moved = self.house().cores().ask(0, move |core| async move {
            let units = &core.served.units;
            match motion {
                Motion::Eject { forced } => units.eject(unit, forced).await,
                Motion::Load => units.load(unit).await,
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
