//! The disks of a configuration, and those that a change of the configuration takes away.

use crate::life::{DiskRequest, Key};
use crate::schema::{QUEUES, Ublk};
use crate::serve::Local;
use lunar_blk::Client;
use lunar_control::Config;
use lunar_control::in_use::Taking;
use lunar_control::visibility::group_of_local;
use lunar_core::unit::Identity;
use lunar_engine::published_config::PublishedConfig;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The wanted state of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) request: DiskRequest,
    pub(crate) local: Local,
    /// Its volume in the configuration.
    pub(crate) volume: String,
    /// Its host group, and its target in the configuration, if it has them.
    pub(crate) shown_by: Option<(String, String)>,
}

/// The volume of a disk.
#[derive(PartialEq, Eq)]
struct Seen<'a> {
    volume: &'a str,
    is_read_only: bool,
    /// The group and the target that show it, if it has a target.
    shown_by: Option<(&'a str, &'a str)>,
}

/// The volume of a disk; `None`: its group shows it none.
fn volume<'a>(config: &'a Config, name: &str, ublk: &'a Ublk) -> Option<Seen<'a>> {
    if let Some(volume) = &ublk.volume {
        return Some(Seen { volume: volume.name(), is_read_only: ublk.read_only, shown_by: None });
    }
    let target = ublk.target.as_ref()?.name();
    config.targets.get(target).filter(|target| target.enabled)?;
    let (group, section) = group_of_local(config, target, &ublk.host(name))?;
    let mut luns = section.luns.0.iter();
    let (_, lun) = luns.find(|(number, _)| ublk.lun.is_none_or(|wanted| wanted.get() == u64::from(**number)))?;
    Some(Seen { volume: lun.volume.name(), is_read_only: lun.read_only, shown_by: Some((group, target)) })
}

/// The queues of a disk.
pub(crate) fn queues(ublk: &Ublk, cores: usize) -> usize {
    ublk.queues.map_or_else(|| cores.min(QUEUES), |queues| queues.get() as usize)
}

/// The request for a disk of this configuration; `None`: its group shows it no volume, or the volume is not served.
pub(crate) fn request(
    config: &Config,
    volumes: &BTreeMap<Arc<str>, Arc<Identity>>,
    (name, ublk): (&str, &Ublk),
    cores: usize,
) -> Option<DiskRequest> {
    let seen = volume(config, name, ublk)?;
    let identity = volumes.get(seen.volume)?;
    Some(DiskRequest {
        name: name.to_owned(),
        key: Key::of(name, identity.uuid),
        number: ublk.number.map(|number| number.get() as u32),
        queues: queues(ublk, cores) as u16,
        depth: ublk.depth.get() as u16,
        survives: survives(config, seen.volume)?,
    })
}

/// Whether the disk of a volume survives the process; `None`: there is no such volume.
fn survives(config: &Config, volume: &str) -> Option<bool> {
    // A volume without a path is in memory, and its contents end with the process, or it is an image of Ceph, whose
    // process ends with this one and may still execute its writes. The lock of a shared volume does not keep the next
    // process from it while the kernel still executes writes of this one, and requests that are issued again could be
    // overtaken by them.
    config.volumes.get(volume).map(|model| model.path.is_some() && !model.shared)
}

/// This machine as a client, for a disk.
fn client(config: &Config, name: &str, ublk: &Ublk, is_read_only: bool) -> Client {
    let portal_group = ublk.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
    Client {
        name: ublk.host(name).into(),
        group: portal_group.map_or(0, |group| group.tag.get() as u16),
        read_only: is_read_only,
    }
}

/// The wanted state of a disk; `None`: its group shows it no volume, or the volume is not served.
pub(crate) fn wanted(
    published: &PublishedConfig<'_>,
    volumes: &BTreeMap<Arc<str>, Arc<Identity>>,
    (name, ublk): (&str, &Ublk),
    cores: usize,
) -> Option<Wanted> {
    let config = &published.wanted.config;
    let request = request(config, volumes, (name, ublk), cores)?;
    let seen = volume(config, name, ublk)?;
    let client = client(config, name, ublk, seen.is_read_only);
    let local = Local { unit: *published.units.get(seen.volume)?, client };
    let shown_by = seen.shown_by.map(|(group, target)| (group.to_owned(), target.to_owned()));
    Some(Wanted { request, local, volume: seen.volume.to_owned(), shown_by })
}

/// The loss of a disk by a change of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DiskLoss {
    /// The disk of this name is removed.
    Removed(String),
    /// The disk of this name loses this volume: another one takes its place, or none.
    Volume(String, String),
    /// The disk of this name is removed, and made with other settings.
    MadeAnew(String),
    /// The volume of the disk of this name becomes smaller.
    Smaller(String, String),
}

impl fmt::Display for DiskLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed(name) => write!(f, "ublk disk {name} is removed"),
            Self::Volume(name, volume) => write!(f, "ublk disk {name} loses its volume {volume}"),
            Self::MadeAnew(name) => write!(f, "ublk disk {name} is removed and made with other settings"),
            Self::Smaller(name, volume) => write!(f, "volume {volume} of ublk disk {name} becomes smaller"),
        }
    }
}

impl Wanted {
    /// The loss of this disk by a change of the configuration in force.
    pub(crate) fn loss(&self, taking: &Taking<'_>) -> Option<DiskLoss> {
        let (name, volume) = (&self.request.name, &self.volume);
        let Some(now) = taking.new.find::<Ublk>(name) else { return Some(DiskLoss::Removed(name.clone())) };
        let seen = self::volume(taking.new, name, now);
        let is_other = seen.as_ref().is_none_or(|seen| seen.volume != *volume);
        if is_other || taking.replaced.contains(&**volume) {
            return Some(DiskLoss::Volume(name.clone(), volume.clone()));
        }
        let before = taking.old.find::<Ublk>(name)?;
        let made = |config, ublk: &Ublk, seen: Seen<'_>| {
            let (survives, client) = (survives(config, seen.volume), client(config, name, ublk, seen.is_read_only));
            let shown_by = seen.shown_by.map(|(group, target)| (group.to_owned(), target.to_owned()));
            let number = ublk.number.map(|number| number.get());
            (survives, client, shown_by, number, ublk.queues.map(|queues| queues.get()), ublk.depth.get())
        };
        let then = self::volume(taking.old, name, before).map(|seen| made(taking.old, before, seen));
        if then != seen.map(|seen| made(taking.new, now, seen)) {
            return Some(DiskLoss::MadeAnew(name.clone()));
        }
        taking.shrinks(volume).then(|| DiskLoss::Smaller(name.clone(), volume.clone()))
    }
}
