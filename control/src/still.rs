//! Volumes that stay as they are for a while: somebody copies their bytes from where they lie, and nobody may be able
//! to write to them before that has ended.

use crate::apply::Refusal;
use crate::config::Config;
use crate::model::Volume;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Keeps a volume as it is, until it drops.
#[derive(Debug)]
pub struct Still {
    _path: Arc<PathBuf>,
}

/// The volumes that stay as they are, by the paths of their files: one of another name may be in the same place.
#[derive(Debug, Default)]
pub(crate) struct Stills(Vec<Weak<PathBuf>>);

impl Stills {
    /// Keeps a volume in a file as it is; `None` if somebody can write to it.
    pub(crate) fn hold(&mut self, config: &Config, volume: &str) -> Option<Still> {
        let path = config.volumes.get(volume)?.path.as_ref()?.path().to_owned();
        if !is_still(config, volume) {
            return None;
        }
        let path = Arc::new(path);
        self.0.retain(|held| held.strong_count() > 0);
        self.0.push(Arc::downgrade(&path));
        Some(Still { _path: path })
    }

    /// Whether all of them are still in this configuration, too.
    ///
    /// # Errors
    /// When somebody could write to one.
    pub(crate) fn allow(&self, wanted: &Config) -> Result<(), Refusal> {
        let held: Vec<Arc<PathBuf>> = self.0.iter().filter_map(Weak::upgrade).collect();
        let is_held = |volume: &Volume| {
            volume.path.as_ref().is_some_and(|path| held.iter().any(|held| held.as_path() == path.path()))
        };
        match wanted.volumes.iter().find(|(name, volume)| is_held(volume) && !is_still(wanted, name)) {
            None => Ok(()),
            Some((name, _)) => Err(Refusal {
                step: Some(format!("let anybody write to volume {name}")),
                why: "it is being copied, and the copy would be of no one moment: wait until it has ended".into(),
            }),
        }
    }
}

/// Whether nobody can write to a volume: it can only be read, or wherever it is seen.
fn is_still(config: &Config, volume: &str) -> bool {
    let Some(found) = config.volumes.get(volume) else { return false };
    let mut luns = config.groups.values().flat_map(|group| group.luns.0.values());
    // What hosts have made those write to who are behind the groups of its pool.
    let mut pools = config.groups.values().filter_map(|group| group.pool.as_ref());
    let is_in_use = found.pool.as_ref().is_some_and(|own| pools.any(|pool| pool.name() == own.name()));
    found.read_only || !is_in_use && luns.all(|lun| lun.volume.name() != volume || lun.read_only)
}
