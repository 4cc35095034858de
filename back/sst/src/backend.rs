//! Volumes of another Lunar as a back end of the engine: the kind `st`.

use crate::core::RemoteStore;
use crate::error::{Mistake, RemoteError, Why};
use crate::facts::Facts;
use crate::found;
use crate::life::Lifetime;
use crate::schema::{PATIENCE, REMOTE, StKeys, address_of};
use crate::shared::Unit;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal,
    StoreRequest, StoreTrouble, TextForm,
};
use lunar_reactor::Reactor;
use lunar_sst_initiator::NAME_MAX;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a target may take to answer before the volume counts as unavailable. It may wait for the end of an earlier
/// nexus.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// How names of initiators begin.
const NAME: &str = "iqn.2026-01.io.lunar:";

/// The kind `st`.
#[derive(Debug)]
pub struct SstBackend;

impl Backend for SstBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndKey(REMOTE)
    }

    fn examples(&self) -> &'static [&'static str] {
        &["st:udp:192.0.2.1:18181#1"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    // The data is that of the target.
    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, _: &Path, _: bool) -> JailPaths {
        JailPaths::default()
    }

    fn mark_at(&self, place: &Path, _: bool) -> Option<Mark> {
        Some(mark(place))
    }

    fn fingerprint(&self, place: &Path, _: bool) -> Option<Fingerprint> {
        found::at(place)
    }

    fn inspection(&self, place: &Path) -> String {
        format!("`lunar bench 'st:{}' --rw randread --time 1`", place.display())
    }

    fn is_there(&self, place: &Path) -> bool {
        found::has_news(place)
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let place = request.required_path()?;
        let refused = |mistake| Refusal::store(RemoteError::new(place, mistake, request.origin.wording()));
        if request.direct {
            return Err(refused(Mistake::Direct));
        }
        let unit = unit_of(place, request).map_err(refused)?;
        let previous = previous.and_then(Opened::downcast::<RemoteVolume>).map(|volume| &volume.life);
        let (life, facts) = match previous.filter(|life| life.unit().is_same_connection(&unit)) {
            // A target that does not answer just now has the same volume.
            Some(life) => match (life.facts(), life.why()) {
                (Some(facts), why) if why.as_ref().is_none_or(|why| !why.is_other()) => (life.clone(), facts),
                (_, why) => return Err(refused(Mistake::Unreached(why.unwrap_or(Why::Silent)))),
            },
            None => first(&unit, request.known.map(found::identity)).map_err(refused)?,
        };
        RemoteVolume::new(life, unit, &facts, request).map(|volume| Opened::Store(Arc::new(volume))).map_err(refused)
    }
}

/// Opens a volume that is not open yet, and must have the identity `known`.
fn first(unit: &Unit, known: Option<&str>) -> Result<(Arc<Lifetime>, Facts), Mistake> {
    let known = known.map(str::to_owned);
    let (life, patience) = match found::take(unit, known.as_deref()) {
        Some(life) => (life, Duration::ZERO),
        None => {
            let life = Lifetime::begin(unit, known.clone()).map_err(Mistake::Thread)?;
            found::add(&unit.place, &life);
            (life, OPEN_TIME)
        }
    };
    life.set_unit(unit);
    match life.found(patience) {
        Ok(facts) => Ok((life, facts)),
        Err(why) => {
            found::keep(life, known);
            Err(why)
        }
    }
}

/// The volume on the terms of a request.
fn unit_of(place: &Path, request: &StoreRequest<'_>) -> Result<Unit, Mistake> {
    let keys = request.own.and_then(|own| own.get::<StKeys>());
    let own_name = keys.and_then(|keys| keys.initiator_name.as_ref()).map(|name| name.as_str().to_owned());
    Ok(Unit {
        name: request.name.to_owned(),
        place: place.to_owned(),
        address: address_of(place).ok_or(Mistake::NoAddress)?,
        initiator: own_name.unwrap_or_else(|| name_of(&rustix::system::uname().nodename().to_string_lossy(), place)),
        timeout: keys.map_or(PATIENCE, |keys| keys.remote_timeout.0),
    })
}

/// The name of the initiator of a volume at this host: a target admits one initiator of each name.
fn name_of(host: &str, place: &Path) -> String {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c.to_ascii_lowercase() } else { '-' };
    let mut name = NAME.to_owned();
    name.extend(host.chars().map(plain));
    name.push(':');
    name.extend(place.to_string_lossy().chars().map(plain));
    name.truncate(NAME_MAX);
    name
}

/// The place, from which the identity of a volume of a command line is derived: it is known without the target.
fn mark(place: &Path) -> Mark {
    Mark::Local { space: found::SPACE, parts: vec![place.display().to_string()] }
}

/// A volume that is open, for all cores.
#[derive(Clone, Debug)]
struct RemoteVolume {
    life: Arc<Lifetime>,
    unit: Unit,
    traits: Traits,
    /// The identity of the volume, as its target has reported it.
    identity: String,
    block_size: u32,
    writes_through: bool,
}

impl RemoteVolume {
    fn new(life: Arc<Lifetime>, unit: Unit, facts: &Facts, request: &StoreRequest<'_>) -> Result<Self, Mistake> {
        let StoreRequest { block_size, read_only, write_through, .. } = *request;
        if !block_size.is_multiple_of(facts.block) {
            return Err(Mistake::Blocks(facts.block));
        }
        if facts.read_only && !read_only {
            return Err(Mistake::ReadOnly);
        }
        let traits = facts.traits(block_size, read_only, write_through);
        if traits.size == 0 {
            return Err(Mistake::Empty);
        }
        let identity = facts.identity.clone();
        Ok(Self { life, unit, traits, identity, block_size, writes_through: write_through })
    }
}

impl OpenedStore for RemoteVolume {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark(&self.unit.place))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(found::fingerprint(&self.identity))
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(RemoteStore::open(reactor, &self.life, self.traits.clone(), self.writes_through)))
    }

    // Other initiators have the volume to themselves, or not: its target decides.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {
        self.life.set_unit(&self.unit);
    }

    fn has_other_size(&self) -> bool {
        let size = |facts: &Facts| facts.traits(self.block_size, self.traits.read_only, self.writes_through).size;
        self.life.facts().is_some_and(|facts| size(&facts) != self.traits.size)
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        self.life.examine()
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::names::IscsiName;
    use lunar_control::value::Textual;

    #[test]
    fn names_of_initiators_are_those_of_iscsi_and_differ() {
        let names = ["udp:192.0.2.1:18181", "udp:[2001:db8::1]:1#1", "eth0@52:54:00:AB:34:01#7"]
            .map(|place| name_of("Db_1.example", Path::new(place)));
        assert_eq!(names[0], "iqn.2026-01.io.lunar:db-1.example:udp-192.0.2.1-18181");
        assert!(names.iter().all(|name| IscsiName::parse(name).is_ok()), "{names:?}");
        let long = name_of(&"a".repeat(300), Path::new("udp:192.0.2.1:18181"));
        assert!(IscsiName::parse(&long).is_ok());
    }
}
