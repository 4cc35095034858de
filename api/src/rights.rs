//! Who asks, and what he may do.

use lunar_control::api::ProblemDetails;
use lunar_control::check::Checked;
use lunar_control::model::Role;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// What somebody may do; the later includes the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Right {
    /// Look at everything but secrets.
    Read,
    /// Look at and change everything.
    Write,
}

impl Right {
    /// As roles are called.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl From<Role> for Right {
    fn from(role: Role) -> Self {
        match role {
            Role::Read => Self::Read,
            Role::Write => Self::Write,
        }
    }
}

/// Somebody who has proved who he is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// His name: that of a user of this machine, or `token.NAME`.
    pub name: String,
    /// What he may do.
    pub right: Right,
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A process of this machine, by the kernel's word (SO_PEERCRED).
    Local {
        /// Its user.
        user: u32,
        /// Its group.
        group: u32,
    },
    /// Somebody on the network, who has to have a token.
    Remote(SocketAddr),
}

/// The tokens that are in force: what they permit, and their digests; the tokens themselves are not kept.
#[derive(Clone, Default, Debug)]
pub struct Tokens(BTreeMap<String, (Right, [u8; 32])>);

impl Tokens {
    /// Those of a configuration.
    #[must_use]
    pub fn of(checked: &Checked) -> Self {
        let digest = |secret: &[u8]| <[u8; 32]>::from(Sha256::digest(secret));
        let one = |(name, token): (&String, &lunar_control::model::ApiToken)| {
            let secret = checked.token(name)?;
            Some((name.clone(), (token.role.into(), digest(secret.bytes()))))
        };
        Self(checked.config.api_tokens.iter().filter_map(one).collect())
    }

    /// Whose token this is. Takes the same time whichever it is, and if it is nobody's.
    fn find(&self, token: &[u8]) -> Option<Who> {
        let digest = <[u8; 32]>::from(Sha256::digest(token));
        let mut found = u32::MAX;
        for (at, (_, known)) in (0_u32..).zip(self.0.values()) {
            let same: Choice = known.ct_eq(&digest);
            found.conditional_assign(&at, same);
        }
        let (name, (right, _)) = self.0.iter().nth(usize::try_from(found).ok()?)?;
        Some(Who { name: format!("token.{name}"), right: *right })
    }
}

/// Whom the API lets in.
#[derive(Clone, Default, Debug)]
pub struct Door {
    /// The user that Lunar runs as.
    pub owner: u32,
    /// The group whose members the socket lets in, if there is one. The kernel has looked whether they may open it.
    pub group: Option<u32>,
    /// Tokens of those who come over the network.
    pub tokens: Tokens,
}

/// The kind of problem that says who somebody has to be.
const NOT_LET_IN: &str = "/problems/not-let-in";

impl Door {
    /// Who it is that asks. `authorization` is the field of this name (RFC 9110 11.6.2).
    ///
    /// # Errors
    /// 401 or 403, in words that say what to do.
    pub fn who(&self, peer: Peer, authorization: Option<&[u8]>) -> Result<Who, ProblemDetails> {
        match peer {
            Peer::Local { user, .. } => {
                if user != 0 && user != self.owner && self.group.is_none() {
                    let title = "You may not use this socket";
                    let why = format!(
                        "only root and user {} may use this socket: ask them, or have them set `group` in [api]",
                        self.owner
                    );
                    return Err(ProblemDetails::new(NOT_LET_IN, title, 403, why));
                }
                Ok(Who { name: crate::place::user_name(user), right: Right::Write })
            }
            Peer::Remote(_) => {
                let title = "This needs a token";
                let refused = |why: &str| Err(ProblemDetails::new(NOT_LET_IN, title, 401, why.to_owned()));
                let Some(field) = authorization else {
                    return refused("send `Authorization: Bearer TOKEN`; tokens are made in [api-token.NAME]");
                };
                // The scheme is written in any case (RFC 9110 11.1).
                match field.split_at_checked(7) {
                    Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                        let known = self.tokens.find(token.trim_ascii());
                        known.map_or_else(|| refused("nobody has this token: it may have been changed"), Ok)
                    }
                    _ => refused("a token is sent as `Authorization: Bearer TOKEN`"),
                }
            }
        }
    }
}

impl Who {
    /// Whether he may do what takes this right.
    ///
    /// # Errors
    /// 403, with what to do.
    pub fn may(&self, right: Right) -> Result<(), ProblemDetails> {
        if self.right >= right {
            return Ok(());
        }
        let why = format!(
            "{} may only {}; this takes a token whose role is `{}`",
            self.name,
            self.right.word(),
            right.word()
        );
        Err(ProblemDetails::new(NOT_LET_IN, "You may not do this", 403, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(all: &[(&str, Right, &str)]) -> Tokens {
        let one = |(name, right, token): &(&str, Right, &str)| {
            ((*name).to_owned(), (*right, Sha256::digest(token.as_bytes()).into()))
        };
        Tokens(all.iter().map(one).collect())
    }

    #[test]
    fn tokens_are_found_by_what_they_are() {
        let door = Door {
            tokens: tokens(&[("a", Right::Read, "the first of two"), ("b", Right::Write, "the other of two")]),
            ..Door::default()
        };
        let from = Peer::Remote(([192, 0, 2, 1], 9).into());
        let who = |field: Option<&str>| door.who(from, field.map(str::as_bytes)).map_err(|why| why.status);
        assert_eq!(who(Some("Bearer the first of two")), Ok(Who { name: "token.a".into(), right: Right::Read }));
        assert_eq!(who(Some("bearer  the other of two ")).map(|who| who.name), Ok("token.b".into()));
        for bad in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Basic dXNlcjp4"), Some("Bearer the first")] {
            assert_eq!(who(bad), Err(401), "{bad:?}");
        }
        assert_eq!(Door::default().who(from, Some(b"Bearer x")).map_err(|why| why.status), Err(401));
    }

    #[test]
    fn who_is_on_this_machine_is_known_by_the_kernel() {
        let mut door = Door { owner: 7, ..Door::default() };
        let may = |door: &Door, user| door.who(Peer::Local { user, group: user }, None).map_err(|why| why.status);
        assert!(may(&door, 0).is_ok() && may(&door, 7).is_ok());
        assert_eq!(may(&door, 8), Err(403));
        door.group = Some(9);
        assert_eq!(may(&door, 8).map(|who| who.right), Ok(Right::Write));
    }

    #[test]
    fn who_may_read_may_not_write() {
        let who = |right| Who { name: "x".into(), right };
        assert!(who(Right::Write).may(Right::Read).is_ok() && who(Right::Read).may(Right::Read).is_ok());
        assert_eq!(who(Right::Read).may(Right::Write).map_err(|why| why.status), Err(403));
    }
}
