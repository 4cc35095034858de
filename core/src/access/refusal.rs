//! Refused logins: the table of codes for all transports, and the facts that a transport reports.
//!
//! A code is one line here with its paragraph for the documentation. A transport maps its reasons to codes; metrics,
//! the API, `lunar explain` and the page on troubleshooting use them.

use std::fmt;
use std::net::IpAddr;

/// A code in the documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The word of the code.
    pub word: &'static str,
    /// The code in words.
    pub words: &'static str,
    /// Its paragraph: causes and remedies.
    pub paragraph: &'static str,
}

macro_rules! refusals {
    ($($name:ident = $word:literal, $words:literal, $paragraph:literal;)*) => {
        /// Why a login was refused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum RefusalCode { $(#[doc = $words] $name,)* }

        impl RefusalCode {
            /// All codes, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its line in the table.
            #[must_use]
            pub const fn entry(self) -> Entry {
                match self { $(Self::$name => Entry { word: $word, words: $words, paragraph: $paragraph },)* }
            }
        }
    };
}

refusals! {
    NoTarget = "no-target", "The target does not exist.",
        "The client asks for a name that no enabled target has, or that is not a target of this protocol: `iqn` for \
        iSCSI, `nqn` for NVMe. iSCSI names are compared without regard to case, NQNs with regard to it. If the target \
        was removed, the client still has a record of it: remove that on the client (`iscsiadm -m node -T NAME -o \
        delete`, `nvme disconnect -n NAME`). If the target is switched off, `lunar target set NAME --enabled=true` \
        accepts logins again.";
    NotShown = "not-shown", "No group of the target lists the client.",
        "A client may log in only if a group of the target lists its name (`initiators` of the group). Compare the \
        name that the client sent with the lists: one character, a default name after a new installation, or the group \
        of another target are the usual causes. Add the name with `lunar group set GROUP --initiators NAME,...`, which \
        replaces the whole list.";
    WrongNetwork = "wrong-network", "A group lists the client, but not its address.",
        "The name of the client is in a group of the target, and its address is in none of the networks of the group \
        (`sources`). The client has a new address, or reaches Lunar through another network or a router that \
        translates addresses. Add its network with `lunar group set GROUP --sources NETWORK,...`.";
    OtherPortal = "other-portal", "The target is not reached through this portal.",
        "The portal belongs to a portal group that the target does not list (`portal-groups` of the target). Use an \
        address of its portal groups on the client, or add the group with `lunar target set TARGET --portal-groups \
        GROUP,...`.";
    Moved = "moved", "The target has moved.",
        "The target redirects logins to another address (`moved-to`). A client that follows redirections logs in \
        there; one that does not must be given the new address. `lunar target set TARGET --moved-to none` serves the \
        target here again.";
    NotAuthenticated = "not-authenticated", "The client did not authenticate.",
        "The target requires authentication, and the client offered none that Lunar accepts: it is not set up for \
        CHAP, or offers only hash algorithms that `hashes` of the target excludes. Set the name and the secret on the \
        client (open-iscsi: `node.session.auth.authmethod = CHAP`, `node.session.auth.username`, \
        `node.session.auth.password`).";
    UnknownUser = "unknown-user", "The user does not exist, or may not log in here.",
        "The client authenticates with a name that is not among the users of the target or of its group. The name is \
        compared with regard to case; it is `login` of the user, or the name of its section. Correct the name on the \
        client, or allow the user with `lunar target set TARGET --users NAME,...`.";
    WrongSecret = "wrong-secret", "The client has another secret.",
        "The name is right, and the client used another secret than that of the user. A line end or a blank at the \
        end of a secret file belongs to the secret on many clients. Windows accepts secrets of 12 to 16 characters \
        only. Set the same secret on both sides: `lunar user set USER --secret -` asks for it.";
    Reflected = "reflected", "The client sent a challenge of the target back.",
        "RFC 7143 9.2.1 forbids this, because the answer would prove nothing. No initiator does it by itself: it is \
        an attack or a faulty client.";
    NoProofOfOurs = "no-proof-of-ours", "The target did not authenticate to the client.",
        "The client requires mutual authentication. iSCSI: set `mutual-user` of the target and \
        `authentication = \"mutual-chap\"`, or switch it off on the client (open-iscsi: `username_in` and \
        `password_in`). NVMe: the host rejects the controller key; the secret of `mutual-user` must be the one that \
        the host has in `--dhchap-ctrl-secret`.";
    TooMany = "too-many", "Too many logins from this address have failed.",
        "Failed logins delay the next ones of the same address, and too many of them wait. The delay ends by itself \
        within a minute once the client stops; correct its name or its secret first: the refusals before this one say \
        which.";
    TooOften = "too-often", "Too many logins come from this address.",
        "The address logs in more often than `login-rate` in `[limits]` permits. A client that logs in again and again \
        has another problem, which its own log shows. Many clients behind one address may need a higher limit.";
    NoSession = "no-session", "The session that the client wants to join does not exist.",
        "The client tries to reinstate the connection of a session that has ended, or a second connection in a \
        session, which Lunar does not support. It begins a new session by itself.";
    Stopping = "stopping", "Lunar is stopping.",
        "Lunar drains before it ends or restarts. The client comes back when it has started again.";
    Full = "full", "A limit of sessions is reached.",
        "All sessions of the target (`sessions` of the target), of the host, or of Lunar (`sessions` in `[limits]`) \
        are in use, or memory is short. `lunar session list` shows them; many sessions of one client are leaks of \
        that client.";
    TargetError = "target-error", "Lunar could not carry out the login.",
        "An error inside Lunar, such as missing random numbers. Its log has more.";
    Version = "version", "The client uses another version of the protocol.",
        "The versions of iSCSI that the client supports do not include the one of RFC 7143.";
    Protocol = "protocol", "The client broke the rules of the protocol.",
        "The login was malformed, offered an impossible value, or took too long. The record of the refusal has the \
        rule. Scanners of ports cause it, too.";
    NoKey = "no-key", "No user of the group is a DH-HMAC-CHAP key for the host.",
        "The target requires authentication, and none of its users has a secret in the form `DHHC-1:...` that is for \
        this host. Make one with `nvme gen-dhchap-key --nqn NQN`, and set it on both sides. A user whose name is an \
        NQN belongs to that host only.";
    NoChannel = "no-channel", "The group requires TLS.",
        "The group has `tls-keys`, so its hosts must connect with TLS: `nvme connect --tls`, with `tlshd` running and \
        the key inserted on the host.";
    OtherChannel = "other-channel", "The TLS key belongs to another host, subsystem or group.",
        "The connection is encrypted with a key that does not belong to the host NQN and the subsystem NQN of the \
        Connect command, or to the group of the host. Insert the key with both NQNs: `nvme check-tls-key --hostnqn NQN \
        --subsysnqn NQN --identity=1 --insert`.";
    NoHostId = "no-host-id", "The host identifier is zero.",
        "NVMe hosts need an identifier of their own, or their reservations would mix. Write one to \
        `/etc/nvme/hostid` (`uuidgen`), or use `nvme connect --hostid`.";
    NotQualified = "not-qualified", "The host NQN is not an NVMe Qualified Name.",
        "A host NQN begins with `nqn.`: `nvme gen-hostnqn > /etc/nvme/hostnqn`.";
    TlsMissing = "tls-no-channel", "The connection does not use TLS, and the portal requires it.",
        "Such a portal takes no connection without TLS, for discovery neither. Connect with `nvme connect --tls`.";
    TlsNoIdentity = "tls-no-identity", "The host sent no PSK identity.",
        "The first bytes of the connection are not a TLS 1.3 handshake with an identity of NVMe/TCP: the key is not \
        in the keyring of `tlshd` on the host.";
    TlsGenerated = "tls-generated-key", "The key was generated by secure channel concatenation.",
        "Lunar does not support secure channel concatenation: use `nvme connect --tls` with a configured key, not \
        `--concat`.";
    TlsNoKey = "tls-no-key", "No TLS key is configured for the host and the subsystem.",
        "The PSK identity names a host that has no key in a group of the subsystem. Check both NQNs, and add a \
        `tls-key` to the group.";
    TlsOtherKey = "tls-other-key", "The host has another TLS key.",
        "The identity of the key does not match: both sides must have the same key (`lunar tls-key set`, \
        `nvme check-tls-key --insert`).";
    TlsOtherHash = "tls-other-hash", "The TLS key of the host has another hash.",
        "One side has a key for SHA-256, the other one for SHA-384. Use the same key on both sides.";
    TlsNoSuite = "tls-no-suite", "The host does not offer the cipher suite of its key.",
        "The hash of the key decides the cipher suite. Allow it on the host, or make a key with the other hash \
        (`nvme gen-tls-key --hmac`).";
    TlsBroken = "tls-broken", "The TLS handshake failed.",
        "The host ended the handshake, or derives another key from the same secret. GnuTLS before 3.8.11 uses SHA-256 \
        for every key: update GnuTLS and tlshd, or make the key with `--hmac=1`.";
}

impl RefusalCode {
    /// The word of the code: in metrics, in the API and in the documentation.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.entry().word
    }

    /// The code of this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.word() == word)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().words)
    }
}

/// A refused login, as its transport reports it. Names are those that the client gave, whatever they contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal<'a> {
    /// The transport: the name of its front.
    pub transport: &'static str,
    /// The code.
    pub code: RefusalCode,
    /// The name of the client; empty if it gave none.
    pub host: &'a str,
    /// The address of the client.
    pub source: IpAddr,
    /// The name of the target that it asked for; empty: it asked for none.
    pub target: &'a str,
    /// The name of the user that it gave; empty: it gave none.
    pub user: &'a str,
    /// The tag of the portal group of its portal, if that is known.
    pub portal_group: Option<u16>,
    /// The rule that it broke, or other details; empty: the code says all.
    pub detail: &'a str,
}

/// Takes refused logins, on the core that refused them.
pub type RefusalSink = dyn Fn(&Refusal<'_>) + Send + Sync;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_words_of_their_own_and_a_paragraph() {
        for (at, code) in RefusalCode::ALL.iter().enumerate() {
            let Entry { word, words, paragraph } = code.entry();
            assert_eq!(RefusalCode::of(word), Some(*code));
            assert!(RefusalCode::ALL[..at].iter().all(|other| other.word() != word), "{word} is there twice");
            assert!(words.ends_with('.') && paragraph.ends_with('.'), "{word}");
            assert!(!paragraph.contains("  ") && !paragraph.contains('\n'), "{word}: {paragraph}");
        }
        assert_eq!(RefusalCode::of("unheard-of"), None);
    }
}
