//! Removed objects: the stored versions of the configuration remember them, each with the version that removed it.

use crate::check::Checked;
use crate::config::Config;
use crate::schema::Schema;
use crate::versions::{Version, Versions};

/// The most bytes of a version that is looked at: the control thread reads a hundred of them in a fraction of a second.
const BYTES_MAX: usize = 256 << 10;

/// A removed object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gone {
    /// The object in words, such as `target disk`.
    pub object: String,
    /// The version that removed it.
    pub version: u64,
    /// When, in seconds since the beginning of 1970.
    pub time: u64,
    /// By whom.
    pub who: String,
}

/// The last removal of an object from the configuration: the object that `find` finds in a stored version, and in no
/// later one. The name of the object is its result.
#[must_use]
pub fn last(schema: &'static Schema, versions: &Versions, find: impl Fn(&Config) -> Option<String>) -> Option<Gone> {
    let mut removed_by: Option<Version> = None;
    for version in versions.list().ok()?.into_iter().rev() {
        let text = versions.text_of(version.number).ok().filter(|text| text.len() <= BYTES_MAX)?;
        let found = find(&Checked::of_version(schema, &text).config);
        match (found, removed_by) {
            (Some(object), Some(Version { number, time, who })) => {
                return Some(Gone { object, version: number, time, who });
            }
            // It is there.
            (Some(_), None) => return None,
            (None, _) => removed_by = Some(version),
        }
    }
    None
}

/// The volume that a LUN of a group was before it became this one. The version is the one in which it was no longer
/// that.
#[must_use]
pub fn earlier_volume(
    schema: &'static Schema,
    versions: &Versions,
    (group, lun): (&str, u16),
    volume: &str,
) -> Option<Gone> {
    let mut changed_by: Option<Version> = None;
    for version in versions.list().ok()?.into_iter().rev() {
        let text = versions.text_of(version.number).ok().filter(|text| text.len() <= BYTES_MAX)?;
        let config = Checked::of_version(schema, &text).config;
        match mapped(&config, group, lun) {
            Some(other) if other != volume => {
                let Version { number, time, who } = changed_by?;
                return Some(Gone { object: format!("volume {other}"), version: number, time, who });
            }
            _ => changed_by = Some(version),
        }
    }
    None
}

fn mapped<'a>(config: &'a Config, group: &str, lun: u16) -> Option<&'a str> {
    Some(config.groups.get(group)?.luns.0.get(&lun)?.volume.name())
}

/// The target with this name in a protocol.
#[must_use]
pub fn target(config: &Config, name: &str) -> Option<String> {
    let is_it = |target: &crate::common_sections::Target| {
        let iqn = target.iqn.as_ref().is_some_and(|iqn| iqn.as_str().eq_ignore_ascii_case(name));
        iqn || target.nqn.as_ref().is_some_and(|nqn| nqn.as_str() == name)
    };
    let found = config.targets.iter().find(|(_, target)| is_it(target));
    found.map(|(section, _)| format!("target {section} ({name})"))
}

/// The volume of this name.
#[must_use]
pub fn volume(config: &Config, name: &str) -> Option<String> {
    config.volumes.get(name).map(|volume| {
        let place = volume.place().map(|place| format!(", {}", place.display()));
        format!("volume {name}{}", place.unwrap_or_default())
    })
}

/// The volume at a LUN of a group.
#[must_use]
pub fn lun(config: &Config, group: &str, lun: u16) -> Option<String> {
    let volume = mapped(config, group, lun)?;
    Some(format!("LUN {lun} of group {group}, which was volume {volume}"))
}
