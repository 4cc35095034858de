//! The store of a volume as it was served last: a record in the metadata of the volume. With it, the volume stays a
//! logical unit of its size while its store is missing, and a store that is there again is known.

use super::stand_in::StandIn;
use super::{Volume, VolumeContext, VolumeError, configured, identity, metadata_store, protection::Protection};
use crate::backend::{self, Durability, Fingerprint, Opened};
use lunar_control::common_sections;
use lunar_core::io::Traits;
use lunar_core::metadata::{MetadataStore, Saving};
use lunar_unit::protection as stored;
use serde_json::{Value, json};
use std::sync::Arc;

/// The name of the record.
const NAME: &str = "store";

/// A store as it was served last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RememberedStore {
    /// `None`: any store may be at its place.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) traits: Traits,
    /// It went away while it was served with a write cache, and no operator has accepted it since.
    pub(crate) may_have_lost_writes: bool,
}

impl RememberedStore {
    /// The store in this metadata; `None` if none was remembered, or not in a form that this version knows.
    pub(crate) fn load(metadata: &dyn MetadataStore) -> Option<Self> {
        Self::parse(&serde_json::from_slice(&metadata.load(NAME)?).ok()?)
    }

    /// Remembers the store from now on. If that fails, the log says so, and the volume is missing where its store is.
    /// `None`: it is remembered. The thread of the metadata writes the record, whether it is waited for or not.
    pub(crate) fn keep(&self, metadata: &dyn MetadataStore) -> Option<Saving> {
        let is_new = Self::load(metadata).as_ref() != Some(self);
        is_new.then(|| metadata.save(NAME, self.record().to_string().into_bytes()))
    }

    /// The store that is remembered may have lost writes: a restart does not serve it either until it is accepted.
    pub(crate) fn mark_lost_writes(metadata: &dyn MetadataStore) {
        if let Some(store) = Self::load(metadata) {
            drop(Self { may_have_lost_writes: true, ..store }.keep(metadata));
        }
    }

    fn record(&self) -> Value {
        let Traits { size, thin, unmap_granularity, unmap_zeroes, physical_block, optimal_io, rotational, .. } =
            self.traits;
        json!({
            "fingerprint": self.fingerprint.as_ref().map(|known| json!({ "mark": known.mark, "origin": known.origin })),
            "read-only": self.traits.read_only,
            "write-cache": self.traits.write_cache,
            "atomic-write": self.traits.atomic_write,
            "size": size,
            "thin": thin,
            "unmap-granularity": unmap_granularity,
            "unmap-zeroes": unmap_zeroes,
            "physical-block": physical_block,
            "optimal-io": optimal_io,
            "rotational": rotational,
            "may-have-lost-writes": self.may_have_lost_writes,
        })
    }

    fn parse(record: &Value) -> Option<Self> {
        let flag = |key: &str| record[key].as_bool();
        let bytes = |key: &str| record[key].as_u64().and_then(|value| u32::try_from(value).ok());
        let known = &record["fingerprint"];
        let text = |key: &str| known[key].as_str().map(str::to_owned);
        let fingerprint = match known.is_null() {
            true => None,
            false => Some(Fingerprint { mark: text("mark")?, origin: text("origin") }),
        };
        let traits = Traits {
            size: record["size"].as_u64().filter(|size| *size > 0)?,
            read_only: flag("read-only")?,
            write_cache: flag("write-cache")?,
            thin: flag("thin")?,
            unmap_granularity: bytes("unmap-granularity")?,
            unmap_zeroes: flag("unmap-zeroes")?,
            physical_block: bytes("physical-block")?,
            optimal_io: bytes("optimal-io")?,
            rotational: flag("rotational")?,
            atomic_write: bytes("atomic-write")?,
        };
        // Records without the flag are from versions that kept it in memory.
        let may_have_lost_writes = flag("may-have-lost-writes").unwrap_or(false);
        Some(Self { fingerprint, traits, may_have_lost_writes })
    }
}

impl Volume {
    /// The store of a configured volume as it was served last.
    pub(crate) fn remembered(
        wanted: &common_sections::Volume,
        context: &VolumeContext<'_>,
    ) -> Option<(RememberedStore, Arc<dyn MetadataStore>)> {
        let backend = backend::find(context.backends, wanted.kind.word())?;
        if backend.durability() == Durability::Volatile || context.origin.is_command_line() {
            return None;
        }
        let uuid = wanted.identity(&identity::own_revision())?.uuid;
        let metadata = metadata_store(backend.durability(), context.state, uuid, !wanted.read_only).ok()?;
        Some((RememberedStore::load(&*metadata)?, metadata))
    }

    /// The volume of this name without its store, which is unavailable; `None` if its store was never remembered.
    ///
    /// # Errors
    /// In words that say what to do.
    pub(crate) fn without_store(
        name: &str,
        wanted: &common_sections::Volume,
        context: &VolumeContext<'_>,
    ) -> Result<Option<Self>, VolumeError> {
        let Some((RememberedStore { traits, .. }, metadata)) = Self::remembered(wanted, context) else {
            return Ok(None);
        };
        let identity = wanted.identity(&identity::own_revision()).ok_or(VolumeError::NoUuid)?;
        let request = configured::request(name, wanted, context, identity.uuid);
        // A unit says what it is by its blocks: a store that does not consist of whole ones was another volume.
        if !traits.size.is_multiple_of(request.block_size.into()) {
            return Ok(None);
        }
        let traits = Traits { read_only: request.read_only, write_cache: !request.write_through, ..traits };
        let store = Arc::new(StandIn::new(traits));
        let kind = stored::stored(&*metadata).ok().flatten().filter(|_| !request.read_only);
        Ok(Some(Self {
            opened: Opened::Store(store.clone()),
            medium: configured::medium_of(wanted),
            block_size: request.block_size,
            read_only: request.read_only,
            identity: Arc::new(identity),
            metadata,
            protection: kind.map(|kind| Protection::standing_in(store, kind)),
        }))
    }

    /// Whether it has no store, because that is unavailable.
    pub(crate) fn is_without_store(&self) -> bool {
        self.opened.downcast::<StandIn>().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::metadata::VolatileMemory;

    #[test]
    fn a_store_is_remembered_with_its_fingerprint_and_its_shape() {
        let traits = Traits {
            size: 1 << 30,
            read_only: false,
            write_cache: true,
            thin: true,
            unmap_granularity: 4096,
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 65536,
            rotational: true,
            atomic_write: 512,
        };
        let metadata = VolatileMemory::default();
        assert_eq!(RememberedStore::load(&metadata), None);
        let fingerprint = Fingerprint { mark: "number 07".into(), origin: Some("created 1.5".into()) };
        let copied = Fingerprint { origin: None, ..fingerprint.clone() };
        for (fingerprint, may_have_lost_writes) in [(Some(fingerprint), false), (Some(copied), false), (None, true)] {
            let store = RememberedStore { fingerprint, traits: traits.clone(), may_have_lost_writes };
            drop(store.keep(&metadata));
            assert_eq!(RememberedStore::load(&metadata), Some(store));
        }
        let mut old = RememberedStore { fingerprint: None, traits, may_have_lost_writes: false }.record();
        old.as_object_mut().and_then(|record| record.remove("may-have-lost-writes")).expect("it is in the record");
        drop(metadata.save(NAME, old.to_string().into_bytes()));
        assert!(RememberedStore::load(&metadata).is_some_and(|store| !store.may_have_lost_writes));
        for unknown in [&b""[..], b"{}", b"[]", br#"{"fingerprint": {"mark": 7}, "size": 1}"#] {
            drop(metadata.save(NAME, unknown.to_vec()));
            assert_eq!(RememberedStore::load(&metadata), None);
        }
    }
}
