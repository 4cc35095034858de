//! The state of the engine for the API: sessions, statistics, media.

use crate::backend::{self, Opened, StoreRequest};
use crate::core_set::core::Core;
use crate::engine::Engine;
use crate::local_nexus::INITIATOR_PORT;
use crate::metrics::counters;
use crate::notice::SERVICE;
use crate::placed::PlacedVolume;
use crate::slow;
use crate::space::over_committed;
use crate::statistics;
use crate::volume::{VolumeContext, configured, metadata};
use lunar_control::Checked;
use lunar_control::api::{
    HandlerView, IsnsView, LocalDisksView, MediumView, SessionView, TcpView, TroubleView, VmView,
};
use lunar_control::counters::StoreSpace;
use lunar_control::explain::{LoginQuestion, LoginVerdict, RefusalView, ReservationView};
use lunar_control::in_use::{AffectedHost, LostDisk, Taking};
use lunar_control::live::{
    CopySource, Later, Live, Making, MediumError, Motion, StoreNotAccepted, StoreOrigin, TcpViews,
};
use lunar_control::names::Uuid;
use lunar_control::scsi::{ScsiCall, ScsiError, ScsiOutcome};
use lunar_control::slow::{AllStagesView, SlowLogView, StagesView};
use lunar_control::trouble::TroubleCode;
use lunar_core::access::audit::shown;
use lunar_core::port::NexusName;
use lunar_core::stages::{Stage, StageSums};
use lunar_core::tally::{Direction, Event};
use lunar_core::uncorrectable::UNCORRECTABLE;
use lunar_reactor::os_error;
use lunar_reactor::tcp::TcpState;
use lunar_unit::removal::motion::Stuck;
use lunar_unit::reserve::{Reservation, Reservations};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The errors of a volume, by the names of the table of statistics.
const COUNTED: [(&str, Event); 4] = [
    ("read_errors", Event::ReadError),
    ("write_errors", Event::WriteError),
    ("verify_errors", Event::VerifyError),
    ("space_errors", Event::SpaceError),
];

/// The metadata records that a copy of a volume takes along. Reservations and the state of a medium stay.
const COPIED: [&str; 2] = [lunar_unit::protection::NAME, UNCORRECTABLE];

/// How long a core may take to read the state of its TCP connections: some microseconds for each of them.
const TCP_PATIENCE: Duration = Duration::from_secs(1);

/// Clients whose names are told as troubles: clients choose their names, and troubles are series of the metrics.
const SHARED_NAMES_MAX: usize = 16;

/// The trouble of a name that two machines use.
fn shared_name((name, [one, other]): (String, [IpAddr; 2])) -> TroubleView {
    let words = format!("{one} and {other} use this name: each login of one ends the session of the other");
    let remedy = "give each machine a name of its own: `iscsi-iname` makes one, \
                  /etc/iscsi/initiatorname.iscsi has it, and `systemctl restart iscsid` uses it";
    let remedy = remedy.to_owned();
    TroubleView { remedy, ..TroubleView::told(TroubleCode::DuplicateName, &format!("host {}", shown(&name)), words) }
}

fn view_of(state: &TcpState) -> TcpView {
    TcpView {
        rtt_microseconds: state.rtt_microseconds,
        rtt_variation_microseconds: state.rtt_variation_microseconds,
        retransmits: state.retransmits,
        duplicates: state.duplicates,
        segments_sent: state.segments_sent,
        congestion_window: state.congestion_window,
        unacknowledged: state.unacknowledged,
        send_mss: state.send_mss,
        receive_mss: state.receive_mss,
        delivery_rate: state.delivery_rate,
        window_limited_microseconds: state.window_limited_microseconds,
        buffer_limited_microseconds: state.buffer_limited_microseconds,
    }
}

impl Live for Engine {
    fn sessions(&mut self) -> Vec<SessionView> {
        let fronts = self.core_set().shared().fronts();
        fronts.iter().flat_map(|front| front.sessions(&self.shape.names)).collect()
    }

    fn tcp(&mut self, only: Option<&str>) -> Later<TcpViews> {
        let (cores, only) = (self.core_set().cores().clone(), only.map(str::to_owned));
        Box::new(move || {
            let ask = |core| {
                let only = only.clone();
                cores.ask(core, move |core: Rc<Core>| {
                    let states = core.used_fronts().flat_map(|front| front.tcp_states(only.as_deref()));
                    ready(states.collect::<Vec<_>>())
                })
            };
            let asked: Vec<_> = (0..cores.count()).map(ask).collect();
            let mut all = TcpViews::new();
            // A core that stalls has no answer; the sessions of the others are shown.
            for (id, state) in asked.into_iter().filter_map(|answer| answer.wait_for(TCP_PATIENCE)).flatten() {
                all.entry(id).or_default().push(view_of(&state));
            }
            all
        })
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        let fronts = self.core_set().shared().fronts().iter().enumerate();
        fronts.into_iter().find_map(|(index, front)| front.end_session(&self.core_set().front_handle(index), id))
    }

    fn statistics(&mut self) -> Value {
        let mut all = statistics::snapshot(&self.core_set().shared().stats);
        let volume = |(name, placed): (&Arc<str>, &Arc<PlacedVolume>)| {
            let tally = &placed.tally;
            let [read, written] = [Direction::Read, Direction::Write].map(|direction| tally.moved(direction));
            let mut counts = json!({
                "read_commands": read.commands,
                "write_commands": written.commands,
                "read_bytes": read.bytes,
                "write_bytes": written.bytes,
            });
            COUNTED.iter().for_each(|(key, event)| counts[*key] = json!(tally.total(*event)));
            ((**name).to_owned(), counts)
        };
        all["volumes"] = Value::Object(self.volumes.iter().map(volume).collect());
        all
    }

    fn handlers(&mut self) -> Vec<HandlerView> {
        let opened = self.volumes.values().map(|placed| placed.volume.opened());
        let handlers = opened.filter_map(|opened| match opened {
            Opened::Store(store) => store.handler(),
            Opened::Device(device) => device.handler(),
        });
        handlers.collect()
    }

    fn slow(&mut self) -> SlowLogView {
        let shared = self.core_set().shared();
        slow::view(&shared.slow, &*shared.host, &self.shape.names)
    }

    fn stages(&mut self) -> AllStagesView {
        let shared = self.core_set().shared();
        let view = |sums: &StageSums| {
            let nanoseconds = Stage::ALL.iter().map(|stage| (stage.word(), sums.of(*stage))).collect();
            StagesView { commands: sums.commands, nanoseconds }
        };
        AllStagesView {
            cores: shared.stats.iter().map(|stats| view(&stats.sampler.sums())).collect(),
            volumes: self
                .volumes
                .iter()
                .map(|(name, placed)| (name.to_string(), view(&placed.tally.sums().stages)))
                .collect(),
        }
    }

    fn dry_run(&mut self, protocol: &str, question: &LoginQuestion) -> Option<LoginVerdict> {
        let front = self.registry.front_index(protocol)?;
        self.core_set().shared().fronts().get(front)?.dry_run(question)
    }

    fn refusals(&mut self) -> Vec<RefusalView> {
        self.core_set().shared().refusals.all()
    }

    fn mapped(&mut self, group: &str) -> Option<BTreeMap<u16, (String, bool)>> {
        let map = self.shape.maps.get(group)?;
        let name = |unit: u16| {
            let found = self.volumes.iter().find(|(_, placed)| placed.unit.0 == u32::from(unit));
            found.map(|(name, _)| name.to_string())
        };
        Some(map.luns().filter_map(|(lun, mapping)| Some((lun, (name(mapping.unit)?, mapping.read_only)))).collect())
    }

    fn reservation(&mut self, volume: &str) -> Option<ReservationView> {
        let placed = self.volumes.get(volume)?;
        let unit = self.core_set().shared().units.get(placed.unit)?;
        let mut view = reservation_of(&unit.reservations(), placed.tally.sums().of(Event::Conflict));
        let hosts: Vec<NexusName> =
            self.core_set().shared().controllers.all().iter().map(|controller| controller.host.nexus()).collect();
        let sessions = self.sessions();
        let is_there = |holder: &&String| {
            let is_host = hosts.iter().any(|host| *host.initiator == ***holder);
            is_host
                || **holder == INITIATOR_PORT
                || sessions.iter().any(|session| is_port_of(holder, &session.initiator))
        };
        view.present = view.holders.iter().filter(is_there).count();
        Some(view)
    }

    fn unread_size(&mut self, volume: &str) -> Vec<String> {
        let placed = self.volumes.get(volume);
        let unit = placed.and_then(|placed| self.core_set().shared().units.get(placed.unit));
        let ports = unit.map(|unit| unit.unread_capacity()).unwrap_or_default();
        // An initiator port of iSCSI is the name of the initiator and the ISID.
        let name = |port: Arc<str>| port.split(",i,0x").next().unwrap_or_default().to_owned();
        let names: BTreeSet<String> = ports.into_iter().map(name).collect();
        names.into_iter().collect()
    }

    fn clear_reservation(&mut self, volume: &str) -> Option<Later<bool>> {
        let unit = self.volumes.get(volume)?.unit;
        let clear = move |core: Rc<Core>| async move { core.units.clear_reservations(unit).await.is_ok() };
        let cleared = self.core_set().cores().ask(0, clear);
        Some(Box::new(move || cleared.wait().unwrap_or(false)))
    }

    fn scsi(&mut self, volume: &str, call: ScsiCall) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        let unit = self.volumes.get(volume)?.unit;
        let ended = self.core_set().cores().ask(0, move |core: Rc<Core>| async move {
            let local = core.local_nexus().ok_or(ScsiError::Stopping)?;
            local.execute(unit, call).await
        });
        Some(Box::new(move || ended.wait().unwrap_or(Err(ScsiError::Stopping))))
    }

    fn local_disks(&mut self) -> Later<LocalDisksView> {
        let mut fronts = self.core_set().shared().fronts().iter().enumerate();
        let found = fronts.find_map(|(index, front)| front.local_disks(&self.core_set().front_handle(index)));
        found.unwrap_or_else(|| Box::new(LocalDisksView::default))
    }

    fn lost_disks(&mut self, taking: &Taking<'_>) -> Vec<LostDisk> {
        let fronts = self.core_set().shared().fronts().iter();
        fronts.flat_map(|front| front.lost_disks(taking)).collect()
    }

    fn lost_with(&mut self, id: &str) -> Option<AffectedHost> {
        self.core_set().shared().fronts().iter().find_map(|front| front.lost_with(id))
    }

    fn vms(&mut self) -> Vec<VmView> {
        self.core_set().shared().fronts().iter().flat_map(|front| front.vms()).collect()
    }

    fn stores(&mut self) -> Vec<StoreSpace> {
        counters::stores(&self.health.spaces().read())
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.name_service.as_ref().and_then(|service| service.view())
    }

    fn troubles(&mut self) -> Vec<TroubleView> {
        let fronts: Vec<String> = self.core_set().shared().fronts().iter().flat_map(|front| front.troubles()).collect();
        let fronts = fronts.into_iter().map(|words| TroubleView::told(TroubleCode::Front, SERVICE, words));
        let closed = self.shape.closed.iter().map(|(id, words)| {
            let name = self.portals.iter().find(|(_, portal)| portal.id == *id).map_or("", |(name, _)| name);
            TroubleView::told(TroubleCode::ClosedPortal, &format!("portal {name}"), words.clone())
        });
        let names = self.core_set().shared().fronts().iter().flat_map(|front| front.shared_names());
        let shared: Vec<TroubleView> = names.take(SHARED_NAMES_MAX).map(shared_name).collect();
        let service = self.name_service.as_ref().and_then(|service| service.trouble());
        let service = service.map(|words| TroubleView::told(TroubleCode::Isns, "isns", words));
        let mut told: Vec<TroubleView> = fronts.chain(closed).chain(service).chain(shared).collect();
        told.extend(self.store_troubles());
        // A store that went away is one trouble.
        let is_told = |trouble: &TroubleView| {
            trouble.kind == TroubleCode::Gone.word() && told.iter().any(|other| other.subject == trouble.subject)
        };
        let more: Vec<TroubleView> = self.health.troubles().into_iter().filter(|trouble| !is_told(trouble)).collect();
        told.extend(more);
        told
    }

    fn store_answers(&mut self, volume: &str, wanted: &Checked) -> Later<Result<(), StoreNotAccepted>> {
        Self::store_answers(self, volume, wanted)
    }

    fn accept_store(&mut self, volume: &str, wanted: &Checked) -> Result<(), StoreNotAccepted> {
        Self::accept_store(self, volume, wanted)
    }

    fn space_warnings(&mut self) -> Vec<String> {
        let stores = self.volumes.values().flat_map(|placed| {
            let protection = placed.volume.protection().map(|protection| protection.store());
            placed.volume.opened().store().into_iter().chain(protection)
        });
        let spaces: Vec<_> = stores.filter_map(|store| store.pool_space()).collect();
        over_committed(spaces).iter().map(|found| found.trouble(0).to_string()).collect()
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        let placed = self.volumes.get(volume)?;
        let (unit, medium) = (placed.unit, placed.medium_kind.word());
        let tray = move |core: Rc<Core>| ready(core.units.tray(unit));
        let (tray, locked) = self.core_set().cores().ask(0, tray).wait()??;
        Some(MediumView { volume: volume.to_owned(), medium, loaded: tray.is_loaded(), locked })
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>> {
        let unit = self.volumes.get(volume)?.unit;
        let moved = self.core_set().cores().ask(0, move |core| async move {
            match motion {
                Motion::Eject { forced } => core.units.eject(unit, forced).await,
                Motion::Load => core.units.load(unit).await,
            }
        });
        Some(Box::new(move || match moved.wait() {
            Some(outcome) => outcome.map_err(medium_error),
            None => Err(MediumError::Stopping),
        }))
    }

    fn copy_source(&mut self, volume: &str) -> Option<CopySource> {
        let placed = self.volumes.get(volume)?;
        let metadata = placed.volume.metadata();
        let record = |name: &'static str| Some((name, metadata.load(name)?));
        let records: Vec<_> = COPIED.into_iter().filter_map(record).collect();
        let backend = backend::find(self.registry.backends, placed.kind.word())?;
        let companions = placed.volume.protection().map_or(&[][..], |_| backend.companions()).to_vec();
        let mut random = [0; 16];
        let is_any = !records.is_empty() || !companions.is_empty();
        (is_any && self.host().random(&mut random)).then(|| CopySource {
            uuid: Uuid::from_random(random),
            records,
            companions,
        })
    }

    fn make_store(&mut self, volume: &str, wanted: &Checked, origin: StoreOrigin<'_>) -> Option<Making> {
        let model = wanted.config.volumes.get(volume)?;
        let (size, source) = match origin {
            StoreOrigin::Empty(size) => (Some(size), None),
            StoreOrigin::Volume(source) => (None, Some(self.volumes.get(source)?.volume.opened())),
        };
        let context = VolumeContext {
            backends: self.registry.backends,
            state: self.host().state(),
            origin: &self.core_set().shared().origin,
            previous: None,
            creates: true,
            known: None,
            is_return: false,
        };
        let backend = backend::find(self.registry.backends, model.kind.word())?;
        backend.make(&StoreRequest { size, ..configured::request(volume, model, &context, [0; 16]) }, source)
    }

    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
        metadata::replace(self.host().state().path(), uuid.0, records)
    }

    fn finalizing(&mut self) -> Option<Later<()>> {
        let latch = self.finalizing.clone();
        (!latch.is_open()).then(|| Box::new(move || latch.wait()) as Later<()>)
    }
}

/// The reservations of a unit for an operator.
fn reservation_of(reservations: &Reservations, conflicts: u64) -> ReservationView {
    let registrants: Vec<String> = reservations.registrants().map(|(name, _)| name.initiator.to_string()).collect();
    let (kind, holders) = match (reservations.reservation(), reservations.spc2()) {
        (Some((Reservation { kind, holder }, _)), _) => {
            let kind = kind.name().unwrap_or("unknown").to_lowercase().replace('_', "-");
            let holders = holder.as_ref().map_or_else(|| registrants.clone(), |name| vec![name.initiator.to_string()]);
            (Some(kind), holders)
        }
        (None, Some(holder)) => (Some("spc-2".to_owned()), vec![holder.initiator.to_string()]),
        (None, None) => (None, Vec::new()),
    };
    ReservationView { kind, holders, present: 0, registrants, persists: reservations.ptpl(), conflicts }
}

/// Whether a registrant is a port of an initiator, or a host.
fn is_port_of(registrant: &str, initiator: &str) -> bool {
    let rest = registrant.get(..initiator.len()).filter(|start| start.eq_ignore_ascii_case(initiator));
    rest.is_some() && registrant[initiator.len()..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '-')
}

/// The error of the unit for an operator.
fn medium_error(stuck: Stuck) -> MediumError {
    match stuck {
        Stuck::NoUnit => MediumError::NotServed,
        Stuck::Fixed => MediumError::Fixed,
        Stuck::Prevented => MediumError::Prevented,
        Stuck::Busy => MediumError::Busy,
        Stuck::Store(fault) => MediumError::NotFlushed(os_error(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initiator_port_belongs_to_its_initiator() {
        assert!(is_port_of("iqn.x:a,i,0x00023d000001", "iqn.X:a") && is_port_of("nqn.h", "nqn.h"));
        assert!(!is_port_of("iqn.x:ab,i,0x1", "iqn.x:a") && !is_port_of("iqn.x:a-2", "iqn.x:a"));
        assert!(!is_port_of("iqn", "iqn.x:a"));
    }
}
