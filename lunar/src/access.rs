//! Who may log in, from the command line. Secrets come from files: arguments can be read by everybody.

use clap::Args;
use lunar_core::access::{Access, Account, Group, Mistake, Pattern, Proofs, Secret};
use lunar_initiator::secret;
use lunar_scsi::{LunMap, Mapping};
use std::sync::Arc;

/// Who may log in.
#[derive(Args, Debug, Default)]
pub struct Who {
    /// Only initiators of this name, `*` for any characters, or NVMe hosts; may be given several times [default: all]
    #[arg(long, value_name = "IQN")]
    pub initiator: Vec<String>,
    /// Initiators of this name see these volumes (counted from 0) under these LUNs, and nothing else: IQN=LUN:VOLUME,
    /// or LUN:VOLUME:ro to keep them from writing, with commas between; may be given several times
    #[arg(long, value_name = "IQN=LUN:VOLUME[:ro],...", value_parser = map)]
    pub map: Vec<Map>,
    /// Initiators have to prove themselves by CHAP as this user
    #[arg(long, value_name = "NAME", requires = "secret_file")]
    pub user: Option<String>,
    /// The file with the user's secret, 12 to 255 bytes
    #[arg(long, value_name = "FILE", requires = "user", value_parser = secret::from_file)]
    pub secret_file: Option<Secret>,
    /// The name that the target proves to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "NAME", requires = "mutual_secret_file")]
    pub mutual_user: Option<String>,
    /// The file with the target's own secret: another than the user's
    #[arg(long, value_name = "FILE", requires = "mutual_user", value_parser = secret::from_file)]
    pub mutual_secret_file: Option<Secret>,
    /// Initiators have to prove themselves as this user before they are told what there is [default: nobody has to]
    #[arg(long, value_name = "NAME", requires = "discovery_secret_file")]
    pub discovery_user: Option<String>,
    /// The file with that user's secret
    #[arg(long, value_name = "FILE", requires = "discovery_user", value_parser = secret::from_file)]
    pub discovery_secret_file: Option<Secret>,
}

/// What some initiators see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Their names, and the name of the map.
    pub initiator: Arc<str>,
    /// What they see.
    pub luns: LunMap,
}

fn map(text: &str) -> Result<Map, String> {
    let wrong = || format!("{text:?} is not IQN=LUN:VOLUME[:ro],... such as iqn.2026-01.org.example:host=0:1,1:0:ro");
    let (initiator, luns) = text.split_once('=').filter(|(initiator, _)| !initiator.is_empty()).ok_or_else(wrong)?;
    let mapping = |text: &str| {
        let (text, read_only) = text.strip_suffix(":ro").map_or((text, false), |text| (text, true));
        let (lun, unit) = text.split_once(':')?;
        Some((lun.parse().ok()?, Mapping { unit: unit.parse().ok()?, read_only }))
    };
    let luns: Option<Vec<_>> = luns.split(',').map(mapping).collect();
    let luns = LunMap::new(luns.ok_or_else(wrong)?).map_err(|why| format!("{text:?}: {why}"))?;
    Ok(Map { initiator: initiator.into(), luns })
}

impl Who {
    /// Whether anything is said of who may log in, and how.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.keeps_out() || self.mutual_user.is_some() || self.discovery_user.is_some()
    }

    /// Whether some who reach a port may not use the volumes.
    #[must_use]
    pub fn keeps_out(&self) -> bool {
        !self.initiator.is_empty() || !self.map.is_empty() || self.user.is_some()
    }

    /// The same as a value.
    ///
    /// # Errors
    /// What would not protect.
    pub fn access(&self) -> Result<Access, Mistake> {
        let user = account(self.user.as_deref(), self.secret_file.as_ref());
        let target = account(self.mutual_user.as_deref(), self.mutual_secret_file.as_ref());
        let looker = account(self.discovery_user.as_deref(), self.discovery_secret_file.as_ref());
        let mut group = Group::everybody();
        if !self.initiator.is_empty() {
            group.name = "initiators".into();
            group.hosts = self.initiator.iter().map(|text| Pattern::new(text)).collect();
        }
        group.proofs = Proofs { users: user.into_iter().collect(), target: target.clone() };
        let mapped = |map: &Map| Group {
            name: map.initiator.clone(),
            hosts: vec![Pattern::new(&map.initiator)],
            map: Some(map.initiator.clone()),
            ..group.clone()
        };
        let groups = self.map.iter().map(mapped).chain([group.clone()]).collect();
        Access::new(groups, Proofs { users: looker.into_iter().collect(), target })
    }
}

fn account(name: Option<&str>, secret: Option<&Secret>) -> Option<Account> {
    Some(Account { name: name?.into(), secret: secret?.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::new(text.into()).expect("long enough"))
    }

    #[test]
    fn the_same_secret_for_both_sides_is_refused() {
        let name = Some("name".to_owned());
        let who = |own: &str| Who {
            user: name.clone(),
            secret_file: secret("secret of a user"),
            mutual_user: name.clone(),
            mutual_secret_file: secret(own),
            ..Who::default()
        };
        assert_eq!(who("secret of a user").access().err(), Some(Mistake::SameSecret));
        let access = who("secret of a target").access().expect("right");
        let group = access.group("iqn.x", [192, 0, 2, 1].into()).expect("everybody");
        assert_eq!((group.proofs.users.len(), access.discovery().users.len()), (1, 0));
    }

    #[test]
    fn maps() {
        let found = map("iqn.x=0:1,7:0:ro").expect("one");
        let luns: Vec<_> = found.luns.luns().collect();
        let mapping = |unit, read_only| Mapping { unit, read_only };
        assert_eq!((&*found.initiator, luns), ("iqn.x", vec![(0, mapping(1, false)), (7, mapping(0, true))]));
        for bad in ["iqn.x", "=0:0", "iqn.x=", "iqn.x=0", "iqn.x=0:0:rw", "iqn.x=0:0,0:1", "iqn.x=0:0,1:0", "x=a:0"] {
            assert!(map(bad).is_err(), "{bad}");
        }
        let who = Who { map: vec![found], initiator: vec!["iqn.y".into()], ..Who::default() };
        let access = who.access().expect("right");
        let map_of =
            |host| access.group(host, [192, 0, 2, 1].into()).map(|group| group.map.as_deref() == Some("iqn.x"));
        assert_eq!((map_of("iqn.x"), map_of("iqn.y"), map_of("iqn.z")), (Some(true), Some(false), None));
    }

    #[test]
    fn only_those_who_are_named_are_let_in() {
        let who = Who { initiator: vec!["iqn.X:*".into()], ..Who::default() };
        let access = who.access().expect("right");
        let from = [192, 0, 2, 1].into();
        assert!(access.group("iqn.x:host", from).is_some() && access.group("iqn.y:host", from).is_none());
    }
}
