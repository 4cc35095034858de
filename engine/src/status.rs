//! The state of the engine for the API: sessions, statistics, media.

use crate::backend;
use crate::core_set::core::Core;
use crate::engine::Engine;
use crate::notice::SERVICE;
use crate::placed::PlacedVolume;
use crate::space::over_committed;
use crate::statistics;
use crate::volume::metadata;
use lunar_control::api::{IsnsView, MediumView, SessionView, TroubleView, VmView};
use lunar_control::live::{CopySource, Later, Live, MediumError, Motion};
use lunar_control::names::Uuid;
use lunar_core::tally::{Direction, Event};
use lunar_core::uncorrectable::UNCORRECTABLE;
use lunar_reactor::os_error;
use lunar_unit::removal::motion::Stuck;
use serde_json::{Value, json};
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The errors of a volume, by the names of the table of statistics.
const COUNTED: [(&str, Event); 4] = [
    ("read_errors", Event::ReadError),
    ("write_errors", Event::WriteError),
    ("verify_errors", Event::VerifyError),
    ("space_errors", Event::SpaceError),
];

/// The metadata records that a copy of a volume takes along. Reservations and the state of a medium stay.
const COPIED: [&str; 2] = [lunar_unit::protection::NAME, UNCORRECTABLE];

impl Live for Engine {
    fn sessions(&mut self) -> Vec<SessionView> {
        let fronts = self.core_set().shared().fronts();
        fronts.iter().flat_map(|front| front.sessions(&self.shape.names)).collect()
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

    fn vms(&mut self) -> Vec<VmView> {
        self.core_set().shared().fronts().iter().flat_map(|front| front.vms()).collect()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.name_service.as_ref().and_then(|service| service.view())
    }

    fn troubles(&mut self) -> Vec<TroubleView> {
        let fronts: Vec<String> = self.core_set().shared().fronts().iter().flat_map(|front| front.troubles()).collect();
        let fronts = fronts.into_iter().map(|words| TroubleView::told("front", SERVICE, words));
        let closed = self.shape.closed.iter().map(|(id, words)| {
            let name = self.portals.iter().find(|(_, portal)| portal.id == *id).map_or("", |(name, _)| name);
            TroubleView::told("closed-portal", &format!("portal {name}"), words.clone())
        });
        let service = self.name_service.as_ref().and_then(|service| service.trouble());
        let service = service.map(|words| TroubleView::told("isns", "isns", words));
        let mut told: Vec<TroubleView> = fronts.chain(closed).chain(service).collect();
        told.extend(self.health.troubles());
        told
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

    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
        metadata::replace(self.host().state().path(), uuid.0, records)
    }

    fn finalizing(&mut self) -> Option<Later<()>> {
        let latch = self.finalizing.clone();
        (!latch.is_open()).then(|| Box::new(move || latch.wait()) as Later<()>)
    }
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
