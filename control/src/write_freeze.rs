//! Write freezes: while the file of a volume is copied, no change may allow writes to the volume, and no command of the
//! operator may write to it.

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

/// The volumes that a command of the operator may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// None.
    None,
    /// The volume that it is for.
    Volume,
    /// Volumes that it names itself.
    Any,
}

/// The volumes that a command of the operator is allowed to change: all that are not frozen. As long as it exists, no
/// volume is frozen.
#[derive(Debug)]
pub struct WriteOffer {
    volume: Option<Arc<()>>,
    any: Option<Arc<()>>,
}

impl WriteOffer {
    /// The offer for a volume that is frozen or not, while any volume is frozen or not.
    #[must_use]
    pub fn of(is_frozen: bool, is_any_frozen: bool) -> Self {
        Self { volume: (!is_frozen).then(Arc::default), any: (!is_any_frozen).then(Arc::default) }
    }

    /// The permit for a command that reaches so far; `None`: a volume that it might change is frozen.
    #[must_use]
    pub fn accept(self, reach: Reach) -> Option<WritePermit> {
        match reach {
            Reach::None => Some(WritePermit { _mark: None }),
            Reach::Volume => self.volume.map(|mark| WritePermit { _mark: Some(mark) }),
            Reach::Any => self.any.map(|mark| WritePermit { _mark: Some(mark) }),
        }
    }
}

/// Lets a command of the operator change volumes. As long as it exists, none of them is frozen.
#[derive(Debug)]
pub struct WritePermit {
    _mark: Option<Arc<()>>,
}

/// The frozen volumes, and the commands of the operator that may change some.
#[derive(Debug, Default)]
pub(crate) struct WriteFreezes {
    /// The paths of the files of frozen volumes: a volume of another name may have the same file.
    frozen: Vec<Weak<PathBuf>>,
    /// The file that a command may change, if the volume has one; `None`: any.
    permits: Vec<(Option<PathBuf>, Weak<()>)>,
}

impl WriteFreezes {
    /// Freezes a volume in a file; `None` if clients can write to it, or a command of the operator may.
    pub(crate) fn hold(&mut self, config: &Config, volume: &str) -> Option<WriteFreeze> {
        let path = config.volumes.get(volume)?.path.as_ref()?.path().to_owned();
        self.forget();
        let may_change = |file: &Option<PathBuf>| file.as_ref().is_none_or(|file| *file == path);
        if !is_frozen(config, volume) || self.permits.iter().any(|(file, _)| may_change(file)) {
            return None;
        }
        let path = Arc::new(path);
        self.frozen.push(Arc::downgrade(&path));
        Some(WriteFreeze { _path: path })
    }

    /// The volumes that a command of the operator to this volume may change.
    pub(crate) fn offer(&mut self, config: &Config, volume: &str) -> WriteOffer {
        self.forget();
        let path = config.volumes.get(volume).and_then(|volume| volume.path.as_ref());
        let path = path.map(|path| path.path().to_owned());
        let is_frozen = path.as_ref().is_some_and(|path| self.held().iter().any(|held| **held == *path));
        let offer = WriteOffer::of(is_frozen, !self.frozen.is_empty());
        // The files of volumes that have none are never frozen.
        let own = offer.volume.as_ref().map(|mark| (Some(path.unwrap_or_default()), Arc::downgrade(mark)));
        let any = offer.any.as_ref().map(|mark| (None, Arc::downgrade(mark)));
        self.permits.extend(own.into_iter().chain(any));
        offer
    }

    /// Forgets freezes and permits that have ended.
    fn forget(&mut self) {
        self.frozen.retain(|held| held.strong_count() > 0);
        self.permits.retain(|(_, mark)| mark.strong_count() > 0);
    }

    fn held(&self) -> Vec<Arc<PathBuf>> {
        self.frozen.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether all frozen volumes stay frozen in this configuration.
    ///
    /// # Errors
    /// If clients could write to one.
    pub(crate) fn allow(&self, wanted: &Config) -> Result<(), Refusal> {
        let held = self.held();
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
