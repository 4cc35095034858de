//! The identities of volumes, stored apart from the configuration: volumes keep them with a configuration file that is
//! not writable, or that was replaced by one without the UUIDs.

use crate::common_sections::Volume;
use crate::config::Config;
use crate::names::Uuid;
use crate::value::Textual;
use crate::versions::{self, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most stored volumes, removed ones included. Beyond it the removed ones are dropped.
const REMEMBERED_MAX: usize = 1 << 16;

/// The UUIDs of volumes by name, store and path: a volume of the same name at another path is another volume.
#[derive(Debug)]
pub struct Identities {
    path: PathBuf,
    known: BTreeMap<String, Uuid>,
}

fn what(name: &str, volume: &Volume) -> String {
    let place = volume.place().unwrap_or_else(|| Path::new(""));
    format!("{name} {} {}", volume.kind.word(), place.display())
}

impl Identities {
    /// Reads the identities in this file; none if it is missing.
    ///
    /// # Errors
    /// If it exists and cannot be read: new identities would be wrong.
    pub fn open(path: &Path) -> Result<Self, Trouble> {
        let text = versions::read(path)?;
        let known = if text.is_empty() { Some(BTreeMap::new()) } else { parse(&text) };
        Ok(Self { path: path.to_owned(), known: known.ok_or_else(|| Trouble::NoText(path.to_owned()))? })
    }

    /// The stored identity of this volume.
    #[must_use]
    pub fn find(&self, name: &str, volume: &Volume) -> Option<Uuid> {
        self.known.get(&what(name, volume)).copied()
    }

    /// The volumes of a configuration that were served before with their present identity. Volumes that hosts created
    /// exist before the configuration contains them.
    #[must_use]
    pub fn served_before(&self, config: &Config) -> BTreeSet<String> {
        let is_known = |(name, volume): &(&String, &Arc<Volume>)| {
            volume.uuid.is_some() && (volume.pool.is_some() || self.find(name, volume) == volume.uuid)
        };
        config.volumes.iter().filter(is_known).map(|(name, _)| name.clone()).collect()
    }

    /// Stores the identities of the volumes of a configuration, on the medium when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&mut self, config: &Config) -> Result<(), Trouble> {
        // Volumes of hosts always have their UUID in the configuration, and would displace other entries.
        let volumes = config.volumes.iter().filter(|(_, volume)| volume.pool.is_none());
        let all = volumes.filter_map(|(name, volume)| Some((what(name, volume), volume.uuid?)));
        let all: BTreeMap<String, Uuid> = all.collect();
        if all.iter().all(|(what, uuid)| self.known.get(what) == Some(uuid)) {
            return Ok(());
        }
        let mut known = self.known.clone();
        if known.len() + all.len() > REMEMBERED_MAX {
            known.clear();
        }
        known.extend(all);
        let shown: BTreeMap<&String, String> = known.iter().map(|(what, uuid)| (what, uuid.text())).collect();
        let text = serde_json::to_string_pretty(&shown).unwrap_or_default();
        versions::put(&self.path, &text)?;
        self.known = known;
        Ok(())
    }
}

fn parse(text: &str) -> Option<BTreeMap<String, Uuid>> {
    let shown: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
    shown.into_iter().map(|(what, uuid)| Some((what, Uuid::parse(&uuid).ok()?))).collect()
}
