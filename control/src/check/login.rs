//! The checks of authentication: of targets, of groups with keys of their own, and of discovery.

use super::Look;
use crate::common_sections::{Authentication, Discovery, Group, Hash as HashName, Target, User};
use crate::config::Config;
use crate::kind::{Id, Kind};
use crate::links::{Links, To};
use crate::secret::Secret;
use std::collections::BTreeMap;

impl Look<'_> {
    /// Authentication of targets, groups and discovery.
    pub(super) fn logins(&mut self, config: &Config, secrets: &BTreeMap<String, Secret>) {
        let mut by_target: BTreeMap<&str, Vec<(&str, &Group)>> = BTreeMap::new();
        for (name, group) in config.groups.iter().filter(|(_, group)| has_own_login(group)) {
            group.targets.names().for_each(|target| by_target.entry(target).or_default().push((name, group)));
        }
        for (name, target) in &config.targets {
            let Target { authentication, users, mutual_user, hashes, marks, .. } = &**target;
            let id = Id { kind: Kind::Target, name, lun: None };
            let groups = by_target.remove(name.as_str()).unwrap_or_default();
            let login = Login { authentication: *authentication, users, mutual: mutual_user.as_ref(), hashes };
            let has_others = groups.iter().any(|(_, group)| !group.users.is_empty());
            for (key, what) in login.wrong(secrets, has_others) {
                self.add(id, key, marks.of(key), what);
            }
            for (name, group) in groups {
                self.group_login((name, group), (id.name, target), secrets);
            }
        }
        let Discovery { authentication, users, mutual_user, hashes, marks, .. } = &config.discovery;
        let login = Login { authentication: *authentication, users, mutual: mutual_user.as_ref(), hashes };
        for (key, what) in login.wrong(secrets, false) {
            self.add(Id { kind: Kind::Discovery, name: "", lun: None }, key, marks.of(key), what);
        }
    }

    /// The authentication of a group at one of its targets.
    fn group_login(
        &mut self,
        (name, group): (&str, &Group),
        (target_name, target): (&str, &Target),
        secrets: &BTreeMap<String, Secret>,
    ) {
        let id = Id { kind: Kind::Group, name, lun: None };
        let Group { marks, .. } = group;
        let authentication = group.authentication(target);
        if authentication == Authentication::None {
            let why = match group.authentication {
                Some(_) => "but its authentication is none".to_owned(),
                None => format!("but target {target_name} has no authentication"),
            };
            for (key, what, is_there) in [
                ("users", "lists users", !group.users.is_empty()),
                ("mutual-user", "names the user of the target", group.mutual_user.is_some()),
            ] {
                if is_there {
                    self.add(id, key, marks.of(key), format!("{what}, {why}"));
                }
            }
            return;
        }
        let (users, mutual) = (group.users(target), group.mutual_user(target));
        let login = Login { authentication, users, mutual, hashes: &target.hashes };
        match (group.authentication, group.mutual_user.is_some()) {
            (Some(_), _) => {
                for (key, what) in login.wrong(secrets, false) {
                    // The group has no key for hash algorithms: those of the target apply.
                    let key = if key == "hashes" { "authentication" } else { key };
                    self.add(id, key, marks.of(key), what);
                }
            }
            (None, true) if authentication == Authentication::Chap => {
                let what = "is set, but authentication is only chap";
                self.add(id, "mutual-user", marks.of("mutual-user"), what);
            }
            _ => {
                if let Some(what) = login.same_secret(secrets) {
                    self.add(id, "users", marks.of("users"), what);
                }
            }
        }
    }
}

/// Whether a group has keys of its own for authentication.
fn has_own_login(group: &Group) -> bool {
    !group.users.is_empty() || group.authentication.is_some() || group.mutual_user.is_some()
}

/// The authentication of logins.
#[derive(Clone, Copy)]
struct Login<'a> {
    authentication: Authentication,
    users: &'a Links<User>,
    mutual: Option<&'a To<User>>,
    hashes: &'a [HashName],
}

impl Login<'_> {
    /// Wrong combinations: keys, and the reasons.
    fn wrong(&self, secrets: &BTreeMap<String, Secret>, has_others: bool) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        if self.authentication == Authentication::None {
            let say = "but authentication is none: did you mean authentication = \"chap\"?";
            if !self.users.is_empty() {
                wrong.push(("users", format!("lists users, {say}")));
            }
            if self.mutual.is_some() {
                wrong.push(("mutual-user", format!("is set, {say}")));
            }
            return wrong;
        }
        let word = self.authentication.word();
        if self.users.is_empty() && !has_others {
            wrong.push(("authentication", format!("is {word}, but there are no users: all logins would fail")));
        }
        if self.hashes.is_empty() {
            wrong.push(("hashes", format!("is empty, but authentication is {word}: all logins would fail")));
        }
        match (self.authentication, self.mutual) {
            (Authentication::MutualChap, None) => {
                wrong.push(("authentication", format!("is {word}, which needs a 'mutual-user'")));
            }
            (Authentication::Chap, Some(_)) => {
                wrong.push(("mutual-user", format!("is set, but authentication is only {word}")));
            }
            _ => {}
        }
        wrong.extend(self.same_secret(secrets).map(|what| ("mutual-user", what)));
        wrong
    }

    /// A secret for both directions: an attacker could have the target answer its own challenge (RFC 7143 9.2.1).
    fn same_secret(&self, secrets: &BTreeMap<String, Secret>) -> Option<String> {
        let mutual = self.mutual?.name();
        let own = secrets.get(mutual)?;
        let twin = self.users.names().find(|user| secrets.get(*user).is_some_and(|secret| secret == own))?;
        Some(format!("user {mutual} has the secret of user {twin}: each direction needs its own (RFC 7143 9.2.1)"))
    }
}
