//! Who volumes are, remembered apart from the configuration: a file that comes from somewhere else, without the UUIDs
//! that were written into the one before, or that cannot be written at all, makes no volume another one.

use crate::config::Config;
use crate::model::Volume;
use crate::names::Uuid;
use crate::value::Textual;
use crate::versions::{self, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Volumes that are remembered, removed ones included. Beyond it the removed ones are forgotten.
const REMEMBERED_MAX: usize = 1 << 16;

/// The UUIDs of volumes by what they are: a volume of the same name in another place is another one.
#[derive(Debug)]
pub struct Identities {
    path: PathBuf,
    known: BTreeMap<String, Uuid>,
}

fn what(name: &str, volume: &Volume) -> String {
    let path = volume.path.as_ref().map(Textual::text).unwrap_or_default();
    format!("{name} {} {path}", volume.kind.word())
}

impl Identities {
    /// What is remembered in this file; nothing if there is none.
    ///
    /// # Errors
    /// When it is there and cannot be read: nobody should guess who volumes are.
    pub fn open(path: &Path) -> Result<Self, Trouble> {
        let text = versions::read(path)?;
        let known = if text.is_empty() { Some(BTreeMap::new()) } else { parse(&text) };
        Ok(Self { path: path.to_owned(), known: known.ok_or_else(|| Trouble::NoText(path.to_owned()))? })
    }

    /// Who this volume is, if that is remembered.
    #[must_use]
    pub fn find(&self, name: &str, volume: &Volume) -> Option<Uuid> {
        self.known.get(&what(name, volume)).copied()
    }

    /// The volumes of a configuration that were served before, as who they are now. What hosts have made is made before
    /// the configuration names it.
    #[must_use]
    pub fn served_before(&self, config: &Config) -> BTreeSet<String> {
        let is_known = |(name, volume): &(&String, &Volume)| {
            volume.uuid.is_some() && (volume.pool.is_some() || self.find(name, volume) == volume.uuid)
        };
        config.volumes.iter().filter(is_known).map(|(name, _)| name.clone()).collect()
    }

    /// Remembers who the volumes of a configuration are: on the medium when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&mut self, config: &Config) -> Result<(), Trouble> {
        // What hosts make and delete is never without: it would push out others.
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
        versions::put(&self.path, &text, 0o600, None)?;
        self.known = known;
        Ok(())
    }
}

fn parse(text: &str) -> Option<BTreeMap<String, Uuid>> {
    let shown: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
    shown.into_iter().map(|(what, uuid)| Some((what, Uuid::parse(&uuid).ok()?))).collect()
}
