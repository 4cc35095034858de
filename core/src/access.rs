//! Who may come in, by what proof, and what he sees: the same for every transport.
//!
//! One value says it all. A host belongs to the first [`Group`] that fits its name and its address; whoever fits none
//! is not let in, and is shown nothing.
//!
//! * [`throttle`]: who fails waits longer and longer; nobody is locked out
//! * [`audit`]: how much of those who are refused is written
//! * [`written`]: keys of NVMe hosts as people write them

pub mod audit;
pub mod throttle;
pub mod written;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a secret at least: 96 bits, below which RFC 7143 9.2.1 forbids CHAP without IPsec.
pub const SECRET_MIN: usize = 12;
/// Bytes of a secret at most: what hosts can be told, whose tools take 255 characters.
pub const SECRET_MAX: usize = 255;
/// Bytes of a user's name at most: a text value without a length of its own (RFC 7143 6.1).
pub const USER_MAX: usize = 255;

/// Bytes that two sides know and nobody else. They are wiped when dropped, and never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// A secret of [`SECRET_MIN`] to [`SECRET_MAX`] bytes.
    ///
    /// # Errors
    /// When it is too short or too long.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Mistake> {
        let bytes = Zeroizing::new(bytes);
        if (SECRET_MIN..=SECRET_MAX).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(Mistake::SecretLength) }
    }

    /// A secret of any length: a token, or one whose length is somebody else's to judge.
    #[must_use]
    pub fn of_any_length(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, for whoever computes with them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// In a time that depends on the lengths only.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A name and what proves it.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name.
    pub name: Arc<str>,
    /// The secret.
    pub secret: Secret,
}

/// A name of a host, in which `*` stands for any characters and `?` for any one. Names are compared in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// The pattern of this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_ascii_lowercase().into())
    }

    /// Whether a name fits. Takes time in proportion to the two lengths multiplied, at worst.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut read) = (0, 0);
        // Where the last star was, and how much of the name it stands for.
        let mut star: Option<(usize, usize)> = None;
        while read < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, read));
                    at += 1;
                }
                Some(&wanted) if wanted == b'?' || wanted == name[read].to_ascii_lowercase() => {
                    at += 1;
                    read += 1;
                }
                _ => match &mut star {
                    Some((place, taken)) => {
                        *taken += 1;
                        (at, read) = (*place + 1, *taken);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|rest| *rest == b'*')
    }

    /// How much of a name it settles: more is more specific; a whole name is the most.
    #[must_use]
    pub fn weight(&self) -> usize {
        let open = self.0.bytes().filter(|byte| b"*?".contains(byte)).count();
        if open == 0 { usize::MAX } else { self.0.len() - open }
    }

    /// The pattern as it was written, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Addresses that begin with the same bits: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Those that share their first `bits` with this address; what is behind them in it does not matter. `None` if an
    /// address has not so many.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        Some(Self { address: masked(address, bits)?, bits })
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// Bits that they share.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address lies in it. An IPv4 address that came as an IPv6 one is an IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.bits) == Some(self.address)
    }
}

/// The first bits of an address; `None` if it has not so many.
fn masked(address: IpAddr, bits: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            let rest = 32_u32.checked_sub(bits.into())?;
            Some(Ipv4Addr::from_bits(address.to_bits() & u32::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            let rest = 128_u32.checked_sub(bits.into())?;
            Some(Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
    }
}

impl FromStr for Network {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Self, Mistake> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| Mistake::Network)?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(whole), str::parse).map_err(|_| Mistake::Network)?;
        // Bits behind the prefix are a typing error: of the prefix, or of the address.
        match masked(address, bits) {
            Some(first) if first == address => Ok(Self { address, bits }),
            _ => Err(Mistake::Network),
        }
    }
}

/// Who has to prove his name, and how the other side does.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    /// Those who may; without any, nobody has to prove anything.
    pub users: Vec<Account>,
    /// What the target proves its own name with, to whoever asks.
    pub target: Option<Account>,
}

/// Hosts that are treated alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// What it is called, in logs.
    pub name: Arc<str>,
    /// Their names.
    pub hosts: Vec<Pattern>,
    /// Their addresses; empty: any.
    pub sources: Vec<Network>,
    /// Their proofs.
    pub proofs: Proofs,
    /// What they open secure channels with, where a transport has those; without any, they come without one.
    pub channels: Vec<Account>,
    /// The name of the map that says which units they see; without, they see all.
    pub map: Option<Arc<str>>,
}

impl Group {
    /// Everybody, from everywhere, without a proof, for everything.
    #[must_use]
    pub fn everybody() -> Self {
        Self {
            name: "everybody".into(),
            hosts: vec![Pattern::new("*")],
            sources: Vec::new(),
            proofs: Proofs::default(),
            channels: Vec::new(),
            map: None,
        }
    }

    fn fits(&self, host: &str, source: IpAddr) -> bool {
        let from = self.sources.is_empty() || self.sources.iter().any(|network| network.contains(source));
        from && self.hosts.iter().any(|pattern| pattern.fits(host))
    }
}

/// Who may come in.
#[derive(Clone, Debug)]
pub struct Access {
    groups: Vec<Arc<Group>>,
    discovery: Arc<Proofs>,
}

impl Access {
    /// Lets in who fits one of the groups, of which the first counts; `discovery` is about those who only ask what
    /// there is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(groups: Vec<Group>, discovery: Proofs) -> Result<Self, Mistake> {
        let all = || groups.iter().map(|group| &group.proofs).chain([&discovery]);
        for proofs in all() {
            let names = proofs.users.iter().chain(&proofs.target).map(|account| &account.name);
            if names.clone().any(|name| !(1..=USER_MAX).contains(&name.len()) || name.contains(char::is_control)) {
                return Err(Mistake::UserName);
            }
            if (1..proofs.users.len()).any(|at| proofs.users[..at].iter().any(|u| u.name == proofs.users[at].name)) {
                return Err(Mistake::SameUser);
            }
        }
        // RFC 7143 9.2.1: else what a user answers to the target would prove the target to the user, and back. Another
        // group's will do for that, too.
        let users = || all().flat_map(|proofs| &proofs.users);
        if all().filter_map(|proofs| proofs.target.as_ref()).any(|own| users().any(|u| u.secret == own.secret)) {
            return Err(Mistake::SameSecret);
        }
        Ok(Self { groups: groups.into_iter().map(Arc::new).collect(), discovery: Arc::new(discovery) })
    }

    /// Lets everybody in.
    #[must_use]
    pub fn open() -> Self {
        Self { groups: vec![Arc::new(Group::everybody())], discovery: Arc::default() }
    }

    /// Lets nobody in.
    #[must_use]
    pub fn nobody() -> Self {
        Self { groups: Vec::new(), discovery: Arc::default() }
    }

    /// The groups, in the order in which they count.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|group| &**group)
    }

    /// The group of a host, by its name in lower case and where it comes from.
    #[must_use]
    pub fn group(&self, host: &str, source: IpAddr) -> Option<&Arc<Group>> {
        self.groups.iter().find(|group| group.fits(host, source))
    }

    /// What those open secure channels with whose groups fit a name, in lower case, wherever they come from: the keys
    /// of each group.
    pub fn channels(&self, host: &str) -> impl Iterator<Item = &[Account]> {
        let named = self.groups.iter().filter(move |group| group.hosts.iter().any(|pattern| pattern.fits(host)));
        named.map(|group| &group.channels[..])
    }

    /// What is asked of those who only ask what there is.
    #[must_use]
    pub fn discovery(&self) -> &Arc<Proofs> {
        &self.discovery
    }
}

/// Why an [`Access`] is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A secret is too short or too long.
    SecretLength,
    /// What shall be a network is none.
    Network,
    /// A user's name is empty, too long, or has control characters.
    UserName,
    /// Two users of a group have the same name.
    SameUser,
    /// The target would prove itself with the secret of a user.
    SameSecret,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecretLength => write!(f, "a secret has {SECRET_MIN} to {SECRET_MAX} bytes"),
            Self::Network => f.write_str("a network is 192.0.2.0/24, 2001:db8::/32, or one address"),
            Self::UserName => write!(f, "a user's name has 1 to {USER_MAX} bytes, and no control characters"),
            Self::SameUser => f.write_str("two users of a group have the same name"),
            Self::SameSecret => f.write_str("the target's own secret must not be that of a user (RFC 7143 9.2.1)"),
        }
    }
}

impl std::error::Error for Mistake {}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, secret: &str) -> Account {
        Account { name: name.into(), secret: Secret::new(secret.into()).expect("long enough") }
    }

    #[test]
    fn secrets_have_a_length_and_are_not_shown() {
        assert_eq!(Secret::new(vec![1; SECRET_MIN - 1]).err(), Some(Mistake::SecretLength));
        assert_eq!(Secret::new(vec![1; SECRET_MAX + 1]).err(), Some(Mistake::SecretLength));
        let shown = format!("{:?}", account("alice", "not for everybody"));
        assert_eq!(shown, "Account { name: \"alice\", secret: (hidden) }");
    }

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "iqn.x", true),
            ("iqn.X", "iqn.x", true),
            ("iqn.x", "iqn.xy", false),
            ("iqn.x:*", "iqn.x:host", true),
            ("iqn.x:*", "iqn.x", false),
            ("*:host", "iqn.x:host", true),
            ("*:host", "iqn.x:host2", false),
            ("iqn.*:a*b", "iqn.x:aab", true),
            ("iqn.*:a*b", "iqn.x:ba", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
            ("*ab*ab*", "ab", false),
        ] {
            assert_eq!(Pattern::new(pattern).fits(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn networks() {
        let contains = |network: &str, address: &str| {
            network.parse::<Network>().expect(network).contains(address.parse().expect(address))
        };
        assert!(contains("192.0.2.0/24", "192.0.2.255") && !contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("192.0.2.7", "::ffff:192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(contains("0.0.0.0/0", "10.1.2.3") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("2001:db8::/32", "2001:db8:1::2") && !contains("2001:db8::/32", "2001:db9::"));
        assert!(contains("::/0", "::1") && contains("::1", "::1"));
        for bad in ["", "192.0.2.1/24", "192.0.2.0/33", "::/129", "192.0.2.0/", "host"] {
            assert_eq!(bad.parse::<Network>(), Err(Mistake::Network), "{bad}");
        }
    }

    #[test]
    fn the_first_group_that_fits_counts() {
        let group = |name: &str, hosts: &str, sources: &[&str]| Group {
            name: name.into(),
            hosts: vec![Pattern::new(hosts)],
            sources: sources.iter().map(|text| text.parse().expect("a network")).collect(),
            ..Group::everybody()
        };
        let groups = vec![group("a", "iqn.a:*", &["10.0.0.0/8"]), group("b", "iqn.*", &[])];
        let access = Access::new(groups, Proofs::default()).expect("right");
        let found = |host: &str, source: &str| {
            access.group(host, source.parse().expect("an address")).map(|group| group.name.to_string())
        };
        assert_eq!(found("iqn.a:x", "10.1.1.1").as_deref(), Some("a"));
        assert_eq!(found("iqn.a:x", "192.0.2.1").as_deref(), Some("b"));
        assert_eq!(found("naa.1", "10.1.1.1"), None);
    }

    #[test]
    fn what_would_not_protect_is_refused() {
        let proofs = |users: Vec<Account>, target| Proofs { users, target };
        let group = |proofs| Group { proofs, ..Group::everybody() };
        let (a, b) = (account("a", "secret number one"), account("b", "secret number two"));
        let same = proofs(vec![a.clone()], Some(Account { name: "t".into(), ..a.clone() }));
        assert_eq!(Access::new(vec![group(same)], Proofs::default()).err(), Some(Mistake::SameSecret));
        let other = proofs(Vec::new(), Some(a.clone()));
        let access = Access::new(vec![group(proofs(vec![a.clone()], None))], other);
        assert_eq!(access.err(), Some(Mistake::SameSecret), "of another kind of session");
        let twice = proofs(vec![a.clone(), a.clone()], None);
        assert_eq!(Access::new(Vec::new(), twice).err(), Some(Mistake::SameUser));
        let nameless = proofs(vec![Account { name: "".into(), ..a.clone() }], None);
        assert_eq!(Access::new(Vec::new(), nameless).err(), Some(Mistake::UserName));
        assert!(Access::new(vec![group(proofs(vec![a], Some(b)))], Proofs::default()).is_ok());
    }
}
