//! The kinds of configured resources, in the order in which they are created.

use std::fmt;

/// The section of a front, as a kind. The declaration of the section says more: [`crate::schema::FrontSection`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrontKind {
    /// Its place among the sections of fronts, in the order of creation: a section that another one refers to comes
    /// first.
    pub place: u8,
    /// The section in the file.
    pub section: &'static str,
    /// Its name in sentences: `VM`.
    pub noun: &'static str,
    /// Whether the target may start without a resource that it served before and that is unavailable.
    pub may_be_missing: bool,
}

/// Declares the kinds that every target has, in the order of creation: a kind comes before the kinds that refer to it,
/// and portals and the sections of fronts come after everything that clients reach through them.
macro_rules! kinds {
    (
        first { $($first:ident $first_section:literal $first_noun:literal $first_arity:ident,)+ }
        last { $($last:ident $last_section:literal $last_noun:literal $last_arity:ident,)+ }
    ) => {
        /// Kinds of resources, in the order of creation.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "each variant is the section of its name")]
        pub enum Kind {
            $($first,)+
            /// A section that a front declares.
            Front(FrontKind),
            $($last,)+
        }

        impl Kind {
            /// The kinds that come before the sections of fronts.
            pub(crate) const FIRST: &'static [Self] = &[$(Self::$first),+];
            /// The kinds that come after the sections of fronts.
            pub(crate) const LAST: &'static [Self] = &[$(Self::$last),+];

            /// The section in the file.
            #[must_use]
            pub const fn section(self) -> &'static str {
                match self {
                    $(Self::$first => $first_section,)+
                    Self::Front(front) => front.section,
                    $(Self::$last => $last_section,)+
                }
            }

            const fn noun(self) -> &'static str {
                match self {
                    $(Self::$first => $first_noun,)+
                    Self::Front(front) => front.noun,
                    $(Self::$last => $last_noun,)+
                }
            }

            const fn arity(self) -> Arity {
                match self {
                    $(Self::$first => Arity::$first_arity,)+
                    Self::Front(_) => Arity::Named,
                    $(Self::$last => Arity::$last_arity,)+
                }
            }
        }
    };
}

/// How many resources of a kind there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arity {
    /// Any number, each with a name.
    Named,
    /// Any number inside of another resource.
    Nested,
    /// Exactly one.
    Single,
}

kinds! {
    first {
    User "user" "user" Named,
    TlsKey "tls-key" "TLS key" Named,
    ApiToken "api-token" "api token" Named,
    Pool "pool" "pool" Named,
    Volume "volume" "volume" Named,
    PortalGroup "portal-group" "portal group" Named,
    Target "target" "target" Named,
    Group "group" "group" Named,
    Lun "lun" "LUN" Nested,
    Portal "portal" "portal" Named,
    Referral "referral" "referral" Named,
    }
    last {
    ApiListener "api-listener" "api listener" Named,
    Server "server" "server" Single,
    Limits "limits" "limits" Single,
    Discovery "discovery" "discovery" Single,
    Isns "isns" "iSNS" Single,
    Api "api" "api" Single,
    Logging "logging" "logging" Single,
    }
}

impl Kind {
    /// Whether there may be any number of resources of this kind, each with a name.
    #[must_use]
    pub fn is_named(self) -> bool {
        self.arity() == Arity::Named
    }

    /// Whether there is exactly one.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.arity() == Arity::Single
    }

    /// Whether the target may start without a resource of this kind that it served before and that is unavailable: it
    /// stands for something outside of the configuration, and nothing but LUNs refers to it.
    #[must_use]
    pub fn may_be_missing(self) -> bool {
        match self {
            Self::Volume | Self::Portal => true,
            Self::Front(front) => front.may_be_missing,
            _ => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.noun())
    }
}

/// Which resource of a configuration. Sorts in the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its name; the name of its group if it is a LUN; empty for a section that exists once.
    pub name: &'a str,
    /// The logical unit number of a LUN.
    pub lun: Option<u16>,
}

impl<'a> Id<'a> {
    /// The resource of this kind and name.
    #[must_use]
    pub fn of(kind: Kind, name: &'a str) -> Self {
        Self { kind, name, lun: None }
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lun {
            Some(lun) => write!(f, "LUN {lun} of group {}", self.name),
            None if self.name.is_empty() => write!(f, "{}", self.kind),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}
