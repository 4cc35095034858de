//! The relative identifiers of target ports. A port keeps its identifier for ever, because persistent reservations name
//! ports by their identifiers.

use crate::error::EngineError;
use crate::host::StateStore;
use lunar_control::config::Config;
use lunar_scsi::PortConfig;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The text of the state folder with the identifiers.
const FILE: &str = "ports.json";
/// Protocol identifier of iSCSI (SPC-6 7.6.1).
const PROTOCOL_ISCSI: u8 = 5;

/// A SCSI target port that a front has besides the portal groups, as a configuration declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontPort {
    /// The name of the port, which no other port has.
    pub name: String,
    /// The name of the target device that it is a port of.
    pub device: String,
    /// The tag of its portal group: its target port group.
    pub group: u16,
    /// PROTOCOL IDENTIFIER (SPC-4 7.6.1).
    pub protocol: u8,
}

/// Relative target port identifiers (SPC-4 7.8.6.7), by the names of the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPorts {
    known: BTreeMap<String, u16>,
}

fn key(iqn: &str, tag: u16) -> String {
    format!("{iqn},t,0x{tag:04x}")
}

/// The SCSI target ports of a configuration: name of the target, tag.
fn wanted(config: &Config) -> impl Iterator<Item = (String, u16)> {
    config.targets.values().flat_map(move |target| {
        let tags = target.portal_groups.names().filter_map(|name| config.portal_groups.get(name));
        tags.filter_map(|group| Some((target.iqn.as_ref()?.as_str().to_owned(), group.tag.get() as u16)))
    })
}

impl TargetPorts {
    /// The identifiers that are kept in the state folder.
    ///
    /// # Errors
    /// When they exist and cannot be read: identifiers must not be guessed.
    pub fn open(state: &dyn StateStore) -> Result<Self, EngineError> {
        let text = state.read(FILE).map_err(EngineError::State)?;
        let known = if text.is_empty() { Ok(BTreeMap::new()) } else { serde_json::from_str(&text) };
        let place = || state.path().join(FILE);
        let known = known.map_err(|why| EngineError::StateForm(place(), why))?;
        Ok(Self { known })
    }

    /// The identifier of a port that [`TargetPorts::provide`] has seen.
    #[must_use]
    pub fn of(&self, iqn: &str, tag: u16) -> Option<u16> {
        self.known.get(&key(iqn, tag)).copied()
    }

    /// The identifier of a port of a front, by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u16> {
        self.known.get(name).copied()
    }

    /// Gives identifiers to all ports of a configuration that have none, with those that fronts add: on the medium when
    /// this returns.
    ///
    /// # Errors
    /// When there are too many, or they cannot be written.
    pub fn provide(&mut self, config: &Config, added: &[FrontPort], state: &dyn StateStore) -> Result<(), EngineError> {
        let added = added.iter().map(|port| port.name.clone());
        let all: BTreeSet<String> = wanted(config).map(|(iqn, tag)| key(&iqn, tag)).chain(added).collect();
        if all.iter().all(|key| self.known.contains_key(key)) {
            return Ok(());
        }
        let mut known = self.known.clone();
        // While there is room, removed ports keep their identifiers: they may be added again.
        if known.len() + all.len() > usize::from(u16::MAX) {
            known.retain(|key, _| all.contains(key));
        }
        let taken: BTreeSet<u16> = known.values().copied().collect();
        let mut free = (1..=u16::MAX).filter(|id| !taken.contains(id));
        for key in all {
            if let Entry::Vacant(place) = known.entry(key) {
                place.insert(free.next().ok_or(EngineError::TooManyPorts)?);
            }
        }
        let text =
            serde_json::to_string_pretty(&known).map_err(|why| EngineError::StateForm(state.path().join(FILE), why))?;
        state.write(FILE, &text).map_err(EngineError::State)?;
        self.known = known;
        Ok(())
    }
}

/// A portal group of a target is a target port of this relative identifier (RFC 7143 4.4.3), and with the ports of the
/// same tag a target port group, which has one asymmetric access state.
#[must_use]
pub fn port(target: &str, group: u16, relative: u16) -> PortConfig {
    let name = format!("{target},t,0x{group:04x}");
    PortConfig { relative, group, name, device: target.to_owned(), protocol: PROTOCOL_ISCSI }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::StateFolder;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    fn config(more: &str) -> Config {
        let text = "[portal-group.p]\ntag = 1\n[portal-group.q]\ntag = 2\n\
                    [target.b]\niqn = 'iqn.2026-01.org.example:b'\n\
                    portal-groups = ['p', 'q']\n";
        let machine = LocalHost { config: PathBuf::new() };
        check(&lunar_control::testing::SAMPLE, "lunar.toml", &format!("{text}{more}"), &machine).expect("valid").config
    }

    #[test]
    fn ports_keep_their_numbers() {
        let folder = std::env::temp_dir().join(format!("lunar-ports-{}", std::process::id()));
        let state = StateFolder::open(&folder).expect("a folder");
        let mut ports = TargetPorts::open(&state).expect("nothing is there");
        ports.provide(&config(""), &[], &state).expect("they are written");
        let first = ports.of("iqn.2026-01.org.example:b", 2);
        assert!(first.is_some());
        let more = "[target.a]\niqn = 'iqn.2026-01.org.example:a'\nportal-groups = ['p']\n";
        let (name, device) = ("naa.3000000000000001".to_owned(), "d".to_owned());
        let added = [FrontPort { name, device, group: 1, protocol: 0 }];
        ports.provide(&config(more), &added, &state).expect("they are written");
        assert!(ports.named("naa.3000000000000001").is_some_and(|id| Some(id) != first));
        let second = TargetPorts::open(&state).expect("they are read");
        assert_eq!((&second, second.of("iqn.2026-01.org.example:b", 2)), (&ports, first));
        std::fs::write(folder.join(FILE), "{").expect("a file");
        assert!(TargetPorts::open(&state).is_err());
        std::fs::remove_dir_all(folder).expect("it is ours");
    }
}
