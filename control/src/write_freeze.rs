//! Write freezes: while the file of a volume is copied, no change may allow writes to the volume.

use crate::apply::Refusal;
use crate::common_sections::Volume;
use crate::config::Config;
use crate::kind::Kind;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Excludes writes to a volume until it is dropped.
#[derive(Debug)]
pub struct WriteFreeze {
    _path: Arc<PathBuf>,
}

/// The frozen volumes, by the paths of their files: a volume of another name may have the same file.
#[derive(Debug, Default)]
pub(crate) struct WriteFreezes(Vec<Weak<PathBuf>>);

impl WriteFreezes {
    /// Freezes a volume in a file; `None` if clients can write to it.
    pub(crate) fn hold(&mut self, config: &Config, volume: &str) -> Option<WriteFreeze> {
        let path = config.volumes.get(volume)?.path.as_ref()?.path().to_owned();
        if !is_frozen(config, volume) {
            return None;
        }
        let path = Arc::new(path);
        self.0.retain(|held| held.strong_count() > 0);
        self.0.push(Arc::downgrade(&path));
        Some(WriteFreeze { _path: path })
    }

    /// Whether all frozen volumes stay frozen in this configuration.
    ///
    /// # Errors
    /// If clients could write to one.
    pub(crate) fn allow(&self, wanted: &Config) -> Result<(), Refusal> {
        let held: Vec<Arc<PathBuf>> = self.0.iter().filter_map(Weak::upgrade).collect();
        let is_held = |volume: &Volume| {
            volume.path.as_ref().is_some_and(|path| held.iter().any(|held| held.as_path() == path.path()))
        };
        match wanted.volumes.iter().find(|(name, volume)| is_held(volume) && !is_frozen(wanted, name)) {
            None => Ok(()),
            Some((name, _)) => Err(Refusal::Copied { volume: name.clone() }),
        }
    }
}

/// Whether a client can write to a volume that the section of a front names, without a LUN map: an attached disk.
fn is_attached(config: &Config, volume: &str) -> bool {
    config.objects().into_iter().filter(|(id, _)| matches!(id.kind, Kind::Front(_))).any(|(_, object)| {
        let mut is_named = false;
        let mut look = |kind, name: &str, _| is_named |= kind == Kind::Volume && name == volume;
        object.fields().into_iter().for_each(|field| field.mentions(&mut look));
        let mut keys = object.keys().into_iter().zip(object.fields());
        is_named && !keys.any(|(key, field)| key.name() == "read-only" && field.show() == true)
    })
}

/// Whether no client can write to a volume: the volume is read-only, or each of its LUNs and attached disks is.
fn is_frozen(config: &Config, volume: &str) -> bool {
    let Some(found) = config.volumes.get(volume) else { return false };
    let mut luns = config.groups.values().flat_map(|group| group.luns.0.values());
    // NVMe hosts of the groups of its pool can write to a volume that a host created.
    let mut pools = config.groups.values().filter_map(|group| group.pool.as_ref());
    let is_in_use = found.pool.as_ref().is_some_and(|own| pools.any(|pool| pool.name() == own.name()));
    let are_read_only = luns.all(|lun| lun.volume.name() != volume || lun.read_only);
    found.read_only || !is_in_use && are_read_only && !is_attached(config, volume)
}
