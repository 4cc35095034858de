//! Access control: which hosts may connect, how they authenticate, and which units they see. It is the same for every
//! transport.
//!
//! A host belongs to the first [`Group`] that matches its name and its address. A host that matches no group is
//! refused and is shown nothing.
//!
//! * [`throttle`]: a host whose logins fail waits longer and longer; no host is locked out
//! * [`audit`]: how many refused logins are logged; [`refusal`]: the codes of refusals
//! * [`written`]: the text form of the keys of NVMe hosts

pub mod audit;
pub mod refusal;
pub mod throttle;
pub mod written;

use refusal::RefusalCode;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Fewest bytes of a secret: 96 bits, below which RFC 7143 9.2.1 forbids CHAP without IPsec.
pub const SECRET_MIN: usize = 12;
/// Most bytes of a secret: the tools of initiators accept 255 characters.
pub const SECRET_MAX: usize = 255;
/// Most bytes of a user's name: a text value without a length of its own (RFC 7143 6.1).
pub const USER_MAX: usize = 255;

/// A secret that two sides share. Its bytes are wiped when it is dropped, and never printed.
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

    /// A secret of any length: a token, or a secret whose length another component checks.
    #[must_use]
    pub fn of_any_length(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, for computing with them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Compares in a time that depends on the lengths only.
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

/// A name and the secret that authenticates it.
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

    /// Whether a name matches. The time is at worst proportional to the product of the two lengths.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut read) = (0, 0);
        // The position of the last star, and the number of characters that it stands for.
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

    /// How specific the pattern is: a larger number is more specific, and a whole name has the largest.
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
    /// The addresses that share their first `bits` with this address; its other bits do not matter. `None` if `bits`
    /// exceeds the length of an address.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        Some(Self { address: masked(address, bits)?, bits })
    }

    /// The first address of the network.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// The number of bits that the addresses share.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address belongs to the network. An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.bits) == Some(self.address)
    }
}

/// The first bits of an address; `None` if the address is shorter.
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
        // Bits after the prefix are a typing error, in the prefix or in the address.
        match masked(address, bits) {
            Some(first) if first == address => Ok(Self { address, bits }),
            _ => Err(Mistake::Network),
        }
    }
}

/// The accounts that authenticate clients, and the account that authenticates the target.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The accounts of clients. If there is none, clients need not authenticate.
    pub users: Vec<Account>,
    /// The account by which the target authenticates itself to clients that require it.
    pub target: Option<Account>,
}

impl Credentials {
    /// The user of this name. All users are compared, so that the time does not depend on the position of the name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&Account> {
        self.users.iter().fold(None, |found, user| if &*user.name == name { Some(user) } else { found })
    }
}

/// Hosts that are treated alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// The name of the group, for logs.
    pub name: Arc<str>,
    /// The names of the hosts.
    pub hosts: Vec<Pattern>,
    /// The addresses of the hosts; an empty list matches every address.
    pub sources: Vec<Network>,
    /// The credentials of these hosts, and of the target towards them.
    pub credentials: Credentials,
    /// The TLS pre-shared keys of these hosts, for transports with TLS. Without a key the hosts connect without TLS.
    pub tls_keys: Vec<Account>,
    /// The name of the LUN map of these hosts; `None`: they see all units.
    pub map: Option<Arc<str>>,
}

impl Group {
    /// A group of all hosts at all addresses, without authentication, that sees all units.
    #[must_use]
    pub fn everybody() -> Self {
        Self {
            name: "everybody".into(),
            hosts: vec![Pattern::new("*")],
            sources: Vec::new(),
            credentials: Credentials::default(),
            tls_keys: Vec::new(),
            map: None,
        }
    }

    fn fits(&self, host: &str, source: IpAddr) -> bool {
        let from = self.sources.is_empty() || self.sources.iter().any(|network| network.contains(source));
        from && self.names(host)
    }

    /// Whether the group has hosts of this name, at any address.
    fn names(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| pattern.fits(host))
    }
}

/// The access control of a target or subsystem.
#[derive(Clone, Debug)]
pub struct Access {
    groups: Vec<Arc<Group>>,
    discovery: Arc<Credentials>,
}

impl Access {
    /// Allows the hosts that match one of the groups, of which the first counts; `discovery` authenticates hosts that
    /// connect for discovery.
    ///
    /// # Errors
    /// [`Mistake`].
    pub fn new(groups: Vec<Group>, discovery: Credentials) -> Result<Self, Mistake> {
        let all = || groups.iter().map(|group| &group.credentials).chain([&discovery]);
        for credentials in all() {
            let names = credentials.users.iter().chain(&credentials.target).map(|account| &account.name);
            if names.clone().any(|name| !(1..=USER_MAX).contains(&name.len()) || name.contains(char::is_control)) {
                return Err(Mistake::UserName);
            }
            if (1..credentials.users.len())
                .any(|at| credentials.users[..at].iter().any(|u| u.name == credentials.users[at].name))
            {
                return Err(Mistake::SameUser);
            }
        }
        // RFC 7143 9.2.1: otherwise a peer could reflect the answer of one direction in the other. The secret of a
        // user of another group could be used in the same way.
        let users = || all().flat_map(|credentials| &credentials.users);
        if all()
            .filter_map(|credentials| credentials.target.as_ref())
            .any(|own| users().any(|u| u.secret == own.secret))
        {
            return Err(Mistake::SameSecret);
        }
        Ok(Self { groups: groups.into_iter().map(Arc::new).collect(), discovery: Arc::new(discovery) })
    }

    /// Allows all hosts.
    #[must_use]
    pub fn open() -> Self {
        Self { groups: vec![Arc::new(Group::everybody())], discovery: Arc::default() }
    }

    /// Refuses all hosts.
    #[must_use]
    pub fn nobody() -> Self {
        Self { groups: Vec::new(), discovery: Arc::default() }
    }

    /// The groups, in the order of their priority.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|group| &**group)
    }

    /// The group of a host, by its name in lower case and its address.
    #[must_use]
    pub fn group(&self, host: &str, source: IpAddr) -> Option<&Arc<Group>> {
        self.groups.iter().find(|group| group.fits(host, source))
    }

    /// The group of a host, or why it has none.
    ///
    /// # Errors
    /// [`RefusalCode::NotShown`]; [`RefusalCode::WrongNetwork`] if a group has hosts of this name at other addresses.
    pub fn admit(&self, host: &str, source: IpAddr) -> Result<&Arc<Group>, RefusalCode> {
        self.group(host, source).ok_or_else(|| match self.groups.iter().any(|group| group.names(host)) {
            true => RefusalCode::WrongNetwork,
            false => RefusalCode::NotShown,
        })
    }

    /// The TLS keys of all groups that match a name in lower case, at any address: the keys of each group.
    pub fn tls_keys(&self, host: &str) -> impl Iterator<Item = &[Account]> {
        let named = self.groups.iter().filter(move |group| group.names(host));
        named.map(|group| &group.tls_keys[..])
    }

    /// The credentials for discovery.
    #[must_use]
    pub fn discovery(&self) -> &Arc<Credentials> {
        &self.discovery
    }
}

/// Why the settings of an [`Access`] are invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A secret is too short or too long.
    SecretLength,
    /// A text is no network.
    Network,
    /// A user's name is empty, too long, or has control characters.
    UserName,
    /// Two users of a group have the same name.
    SameUser,
    /// The secret of the target is also the secret of a user.
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
        let shown = format!("{:?}", account("alice", "not for all hosts"));
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
        let access = Access::new(groups, Credentials::default()).expect("right");
        let found = |host: &str, source: &str| {
            access.group(host, source.parse().expect("an address")).map(|group| group.name.to_string())
        };
        assert_eq!(found("iqn.a:x", "10.1.1.1").as_deref(), Some("a"));
        assert_eq!(found("iqn.a:x", "192.0.2.1").as_deref(), Some("b"));
        assert_eq!(found("naa.1", "10.1.1.1"), None);
        let refused = |access: &Access, host: &str| {
            access.admit(host, "192.0.2.1".parse().expect("an address")).map(|group| group.name.to_string())
        };
        assert_eq!(refused(&access, "naa.1"), Err(RefusalCode::NotShown));
        let near = Access::new(vec![group("a", "iqn.a:*", &["10.0.0.0/8"])], Credentials::default()).expect("right");
        assert_eq!(refused(&near, "iqn.a:x"), Err(RefusalCode::WrongNetwork));
    }

    #[test]
    fn settings_that_do_not_protect_are_refused() {
        let credentials = |users: Vec<Account>, target| Credentials { users, target };
        let group = |credentials| Group { credentials, ..Group::everybody() };
        let (a, b) = (account("a", "secret number one"), account("b", "secret number two"));
        let same = credentials(vec![a.clone()], Some(Account { name: "t".into(), ..a.clone() }));
        assert_eq!(Access::new(vec![group(same)], Credentials::default()).err(), Some(Mistake::SameSecret));
        let other = credentials(Vec::new(), Some(a.clone()));
        let access = Access::new(vec![group(credentials(vec![a.clone()], None))], other);
        assert_eq!(access.err(), Some(Mistake::SameSecret), "of the other kind of session");
        let twice = credentials(vec![a.clone(), a.clone()], None);
        assert_eq!(Access::new(Vec::new(), twice).err(), Some(Mistake::SameUser));
        let nameless = credentials(vec![Account { name: "".into(), ..a.clone() }], None);
        assert_eq!(Access::new(Vec::new(), nameless).err(), Some(Mistake::UserName));
        assert!(Access::new(vec![group(credentials(vec![a], Some(b)))], Credentials::default()).is_ok());
    }
}
