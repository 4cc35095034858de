//! Authentication of callers, and their rights.

use lunar_control::api::ProblemDetails;
use lunar_control::check::Checked;
use lunar_control::common_sections::Role;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// A right of a caller; a later one includes the earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Right {
    /// Nothing: everyone has it, without a token.
    None,
    /// May read metrics.
    Metrics,
    /// May read everything but secrets.
    Read,
    /// May read and change everything.
    Write,
}

impl Right {
    /// The role of this right, as in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Metrics => "metrics",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl From<Role> for Right {
    fn from(role: Role) -> Self {
        match role {
            Role::Metrics => Self::Metrics,
            Role::Read => Self::Read,
            Role::Write => Self::Write,
        }
    }
}

/// An authenticated caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The name of a user of this host, or `token.NAME`.
    pub name: String,
    /// The right of the caller.
    pub right: Right,
}

/// The peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A process on this host, identified by the kernel (SO_PEERCRED).
    Local {
        /// The user ID.
        user: u32,
        /// The group ID.
        group: u32,
    },
    /// A client on the network, which needs a token.
    Remote(SocketAddr),
}

/// The credentials by which a caller was authenticated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Credentials {
    /// A user of this host.
    User {
        /// The user ID.
        user: u32,
        /// The group ID.
        group: u32,
    },
    /// A token.
    Token {
        /// Its name.
        name: String,
        /// Its SHA-256 digest.
        digest: [u8; 32],
    },
}

/// The valid tokens: rights and SHA-256 digests. The tokens themselves are not stored.
#[derive(Clone, Default, Debug)]
pub struct Tokens(BTreeMap<String, (Right, [u8; 32])>);

impl Tokens {
    /// The tokens of a configuration.
    #[must_use]
    pub fn of(checked: &Checked) -> Self {
        let digest = |secret: &[u8]| <[u8; 32]>::from(Sha256::digest(secret));
        let one = |(name, token): (&String, &Arc<lunar_control::common_sections::ApiToken>)| {
            let secret = checked.token(name)?;
            Some((name.clone(), (token.role.into(), digest(secret.bytes()))))
        };
        Self(checked.config.api_tokens.iter().filter_map(one).collect())
    }

    /// The credentials of this token. The comparison takes the same time whichever token matches, or if none does.
    fn find(&self, token: &[u8]) -> Option<Credentials> {
        let digest = <[u8; 32]>::from(Sha256::digest(token));
        let mut found = u32::MAX;
        for (at, (_, candidate)) in (0_u32..).zip(self.0.values()) {
            let same: Choice = candidate.ct_eq(&digest);
            found.conditional_assign(&at, same);
        }
        let (name, _) = self.0.iter().nth(usize::try_from(found).ok()?)?;
        Some(Credentials::Token { name: name.clone(), digest })
    }
}

/// The callers that the API accepts.
#[derive(Clone, Default, Debug)]
pub struct AccessPolicy {
    /// The user ID of the daemon.
    pub owner: u32,
    /// The group whose members may open the socket; the kernel checks the membership.
    pub group: Option<u32>,
    /// The tokens for clients on the network.
    pub tokens: Tokens,
}

/// The problem type of refused callers.
const NOT_ADMITTED: &str = "/problems/not-let-in";

impl AccessPolicy {
    /// Authenticates a program. `authorization` is the Authorization field (RFC 9110 11.6.2).
    ///
    /// # Errors
    /// Status 401 or 403, with what to do.
    pub(crate) fn authenticate(
        &self,
        peer: Peer,
        authorization: Option<&[u8]>,
    ) -> Result<(Caller, Credentials), ProblemDetails> {
        let credentials = match peer {
            Peer::Local { user, group } => Credentials::User { user, group },
            Peer::Remote(_) => {
                let Some(field) = authorization else {
                    return Err(unauthenticated(
                        "send `Authorization: Bearer TOKEN`; tokens are configured in [api-token.NAME]",
                    ));
                };
                // The scheme is case-insensitive (RFC 9110 11.1).
                match field.split_at_checked(7) {
                    Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                        self.find(token.trim_ascii())?
                    }
                    _ => return Err(unauthenticated("send the token as `Authorization: Bearer TOKEN`")),
                }
            }
        };
        Ok((self.caller(&credentials)?, credentials))
    }

    /// The credentials of a token.
    ///
    /// # Errors
    /// Status 401.
    pub(crate) fn find(&self, token: &[u8]) -> Result<Credentials, ProblemDetails> {
        let found = self.tokens.find(token);
        found.ok_or_else(|| unauthenticated("this token is not valid: it may have been changed"))
    }

    /// The caller with these credentials, if they are still valid.
    ///
    /// # Errors
    /// Status 401 or 403, with what to do.
    pub(crate) fn caller(&self, credentials: &Credentials) -> Result<Caller, ProblemDetails> {
        match credentials {
            Credentials::User { user, .. } => {
                if *user != 0 && *user != self.owner && self.group.is_none() {
                    let title = "You may not use this socket";
                    let why = format!(
                        "only root and user {} may use this socket: use sudo, or set `group` in [api]",
                        self.owner
                    );
                    return Err(ProblemDetails::new(NOT_ADMITTED, title, 403, why));
                }
                Ok(Caller { name: crate::system::user_name(*user), right: Right::Write })
            }
            Credentials::Token { name, digest } => match self.tokens.0.get(name) {
                Some((right, known)) if known == digest => Ok(Caller { name: format!("token.{name}"), right: *right }),
                _ => Err(unauthenticated("the token of this login was changed or removed: log in again")),
            },
        }
    }
}

/// The problem of a request without valid credentials.
pub(crate) fn unauthenticated(why: &str) -> ProblemDetails {
    ProblemDetails::new(NOT_ADMITTED, "This needs a token", 401, why.to_owned())
}

impl Caller {
    /// Checks that the caller has a right.
    ///
    /// # Errors
    /// Status 403, with what to do.
    pub fn check_right(&self, right: Right) -> Result<(), ProblemDetails> {
        if self.right >= right {
            return Ok(());
        }
        let may = match self.right {
            Right::Metrics => "read metrics",
            other => other.word(),
        };
        let why = format!("{} may only {may}; this takes a token whose role is `{}`", self.name, right.word());
        Err(ProblemDetails::new(NOT_ADMITTED, "You may not do this", 403, why))
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
    fn callers_are_authenticated_by_token() {
        let policy = AccessPolicy {
            tokens: tokens(&[("a", Right::Read, "the first of two"), ("b", Right::Write, "the other of two")]),
            ..AccessPolicy::default()
        };
        let from = Peer::Remote(([192, 0, 2, 1], 9).into());
        let of = |field: Option<&str>| {
            policy.authenticate(from, field.map(str::as_bytes)).map(|(caller, _)| caller).map_err(|why| why.status)
        };
        assert_eq!(of(Some("Bearer the first of two")), Ok(Caller { name: "token.a".into(), right: Right::Read }));
        assert_eq!(of(Some("bearer  the other of two ")).map(|caller| caller.name), Ok("token.b".into()));
        for bad in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Basic dXNlcjp4"), Some("Bearer the first")] {
            assert_eq!(of(bad), Err(401), "{bad:?}");
        }
        assert_eq!(AccessPolicy::default().authenticate(from, Some(b"Bearer x")).map_err(|why| why.status), Err(401));
    }

    #[test]
    fn credentials_end_with_their_token() {
        let mut policy = AccessPolicy { tokens: tokens(&[("a", Right::Read, "a token")]), ..AccessPolicy::default() };
        let credentials = policy.find(b"a token").expect("it is valid");
        assert_eq!(policy.caller(&credentials).map(|caller| caller.right), Ok(Right::Read));
        policy.tokens = tokens(&[("a", Right::Write, "a token"), ("b", Right::Read, "another token")]);
        assert_eq!(policy.caller(&credentials).map(|caller| caller.right), Ok(Right::Write), "the role of now");
        for now in [&[("a", Right::Read, "a new token"), ("b", Right::Read, "a token")][..], &[]] {
            policy.tokens = tokens(now);
            assert_eq!(policy.caller(&credentials).map_err(|why| why.status), Err(401), "{now:?}");
        }
        let local = Credentials::User { user: 5, group: 5 };
        assert_eq!(policy.caller(&local).map_err(|why| why.status), Err(403));
        policy.group = Some(9);
        assert!(policy.caller(&local).is_ok());
    }

    #[test]
    fn local_callers_are_authenticated_by_user_id() {
        let mut policy = AccessPolicy { owner: 7, ..AccessPolicy::default() };
        let of = |policy: &AccessPolicy, user| {
            let found = policy.authenticate(Peer::Local { user, group: user }, None);
            found.map(|(caller, _)| caller).map_err(|why| why.status)
        };
        assert!(of(&policy, 0).is_ok() && of(&policy, 7).is_ok());
        assert_eq!(of(&policy, 8), Err(403));
        policy.group = Some(9);
        assert_eq!(of(&policy, 8).map(|caller| caller.right), Ok(Right::Write));
    }

    #[test]
    fn the_right_to_write_includes_the_right_to_read_only() {
        let caller = |right| Caller { name: "x".into(), right };
        assert!(
            caller(Right::Write).check_right(Right::Read).is_ok()
                && caller(Right::Read).check_right(Right::Read).is_ok()
        );
        assert_eq!(caller(Right::Read).check_right(Right::Write).map_err(|why| why.status), Err(403));
        assert!(caller(Right::Read).check_right(Right::Metrics).is_ok());
        for right in [Right::Read, Right::Write] {
            assert_eq!(caller(Right::Metrics).check_right(right).map_err(|why| why.status), Err(403));
        }
    }
}
