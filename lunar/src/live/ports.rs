//! Which relative identifier each target port has: the same for ever, for persistent reservations are for ports by
//! their identifiers.

use lunar_control::config::Config;
use lunar_control::versions;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Permissions of the file: nobody else's business.
const MODE: u32 = 0o600;

/// Relative target port identifiers (SPC-4 7.8.6.7), by target name and portal group tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    path: PathBuf,
    known: BTreeMap<String, u16>,
}

fn key(iqn: &str, tag: u16) -> String {
    format!("{iqn},t,0x{tag:04x}")
}

/// The target ports of SCSI that a configuration asks for: name of the target, tag.
fn wanted(config: &Config) -> impl Iterator<Item = (String, u16)> {
    config.targets.values().flat_map(move |target| {
        let tags = target.portal_groups.names().filter_map(|name| config.portal_groups.get(name));
        tags.filter_map(|group| Some((target.iqn.as_ref()?.as_str().to_owned(), group.tag.get() as u16)))
    })
}

impl Ports {
    /// What is known in this state folder.
    ///
    /// # Errors
    /// When it is there and cannot be read: nobody should guess which port is which.
    pub(super) fn open(state: &Path) -> Result<Self, String> {
        let path = state.join("ports.json");
        let text = versions::read(&path).map_err(|why| why.to_string())?;
        let known = if text.is_empty() { Ok(BTreeMap::new()) } else { serde_json::from_str(&text) };
        let known = known.map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Self { path, known })
    }

    /// The identifier of a port that [`Ports::provide`] has seen.
    #[must_use]
    pub(super) fn of(&self, iqn: &str, tag: u16) -> Option<u16> {
        self.known.get(&key(iqn, tag)).copied()
    }

    /// Gives identifiers to all ports of a configuration that have none: on the medium when this returns.
    ///
    /// # Errors
    /// When there are too many, or they cannot be written.
    pub(super) fn provide(&mut self, config: &Config) -> Result<(), String> {
        let all: BTreeSet<String> = wanted(config).map(|(iqn, tag)| key(&iqn, tag)).collect();
        if all.iter().all(|key| self.known.contains_key(key)) {
            return Ok(());
        }
        let mut known = self.known.clone();
        // As long as there is room, ports that are gone are remembered: they may come back.
        if known.len() + all.len() > usize::from(u16::MAX) {
            known.retain(|key, _| all.contains(key));
        }
        let taken: BTreeSet<u16> = known.values().copied().collect();
        let mut free = (1..=u16::MAX).filter(|id| !taken.contains(id));
        for key in all {
            if let Entry::Vacant(place) = known.entry(key) {
                place.insert(free.next().ok_or("there are more target ports than relative target port identifiers")?);
            }
        }
        let text = serde_json::to_string_pretty(&known).map_err(|why| why.to_string())?;
        versions::put(&self.path, &text, MODE, None).map_err(|why| why.to_string())?;
        self.known = known;
        Ok(())
    }
}
