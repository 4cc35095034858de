//! The declarations of all sections of a schema: those that every target has, and those of fronts.

use crate::common_sections::{
    Api, ApiListener, ApiToken, Discovery, Group, Isns, Limits, Logging, Lun, Pool, Portal, PortalGroup, Referral,
    Server, Target, TlsKey, User, Volume,
};
use crate::kind::Kind;
use crate::schema::{Owner, Schema};
use crate::section::{Key, Section, Shape, one_line};

/// The documentation and the keys of a section that every target has.
fn general(kind: Kind) -> (&'static str, &'static [Key]) {
    fn of<S: Section>() -> (&'static str, &'static [Key]) {
        (S::DOC, S::KEYS)
    }
    match kind {
        Kind::User => of::<User>(),
        Kind::TlsKey => of::<TlsKey>(),
        Kind::ApiToken => of::<ApiToken>(),
        Kind::Pool => of::<Pool>(),
        Kind::Volume => of::<Volume>(),
        Kind::PortalGroup => of::<PortalGroup>(),
        Kind::Target => of::<Target>(),
        Kind::Group => of::<Group>(),
        Kind::Lun => of::<Lun>(),
        Kind::Portal => of::<Portal>(),
        Kind::Referral => of::<Referral>(),
        Kind::Front(_) => ("", &[]),
        Kind::ApiListener => of::<ApiListener>(),
        Kind::Server => of::<Server>(),
        Kind::Limits => of::<Limits>(),
        Kind::Discovery => of::<Discovery>(),
        Kind::Isns => of::<Isns>(),
        Kind::Api => of::<Api>(),
        Kind::Logging => of::<Logging>(),
    }
}

impl Schema {
    fn declaration(&self, kind: Kind) -> (&'static str, &'static [Key]) {
        match kind {
            Kind::Front(front) => self.section(front).map_or(("", &[][..]), |section| (section.doc, section.keys)),
            kind => general(kind),
        }
    }

    /// The keys of the resources of this kind, with those that fronts and stores add.
    #[must_use]
    pub fn keys(&'static self, kind: Kind) -> Vec<&'static Key> {
        let mut keys: Vec<&'static Key> = self.declaration(kind).1.iter().collect();
        let owner = match kind {
            Kind::Volume => Some(Owner::Store(None)),
            Kind::Portal => Some(Owner::Portal(None)),
            Kind::Limits => Some(Owner::Limits),
            _ => None,
        };
        for key in owner.into_iter().flat_map(|owner| owner.all_keys(self)) {
            // Two stores may have a key of the same name.
            if keys.iter().all(|known| known.field != key.field) {
                keys.push(key);
            }
        }
        keys
    }

    /// The fields of the keys that only some resources of this kind have: those that fronts and stores add.
    #[must_use]
    pub fn keys_of_some(&'static self, kind: Kind) -> Vec<&'static str> {
        let general = self.declaration(kind).1.len();
        self.keys(kind).into_iter().skip(general).map(|key| key.field).collect()
    }

    /// The documentation of a section, in one line.
    #[must_use]
    pub fn words(&self, kind: Kind) -> String {
        one_line(self.declaration(kind).0)
    }

    /// The form of a key's value, with the words of stores and protocols.
    #[must_use]
    pub fn shape(&'static self, key: &Key) -> Shape {
        (key.shape)().resolved(self)
    }
}
