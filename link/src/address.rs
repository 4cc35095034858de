//! The names of links.

use lunar_core::digest::fnv_64;
use lunar_reactor::endpoint::MacAddress;
use lunar_reactor::unix::SOCKET_PATH_MAX;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The most bytes of the name of an interface (IFNAMSIZ, without the zero at its end).
const INTERFACE_NAME_MAX: usize = 15;

/// The name of a link: `eth0`, `xdp:eth0`, `tap:NAME`, `unix:PATH,PEER`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkAddress {
    /// A network interface of this host.
    Interface(String),
    /// A network interface of this host, whose driver hands the frames over (AF_XDP).
    Xdp(String),
    /// The far side of a TAP interface of this host.
    Tap(String),
    /// A Unix datagram socket and that of its peer; each datagram is a frame.
    Unix {
        /// The own socket, which is made.
        path: PathBuf,
        /// The socket of the peer, which may be made later.
        peer: PathBuf,
    },
}

impl LinkAddress {
    /// Whether it has the MAC address of an interface.
    #[must_use]
    pub fn has_own_mac(&self) -> bool {
        matches!(self, Self::Interface(_) | Self::Xdp(_))
    }

    /// Whether programs are loaded into the kernel for it (bpf(2)).
    #[must_use]
    pub fn loads_program(&self) -> bool {
        matches!(self, Self::Xdp(_))
    }

    /// The folders in which files of the link are made or opened.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Interface(_) | Self::Xdp(_) => Vec::new(),
            Self::Tap(_) => vec![PathBuf::from("/dev/net")],
            Self::Unix { path, peer } => {
                [path, peer].into_iter().filter_map(|path| path.parent()).map(Path::to_owned).collect()
            }
        }
    }

    /// The MAC address of a link that has none by itself: locally administered, and always the same for this name.
    #[must_use]
    pub fn derived_mac(&self) -> MacAddress {
        let [.., b, c, d, e, f] = fnv_64(&self.to_string()).to_be_bytes();
        // Individual, locally administered (IEEE 802-2014 8.2).
        MacAddress([0x02, b, c, d, e, f])
    }
}

/// Why a text is not the name of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressError {
    /// This is not the name of an interface.
    Interface(String),
    /// This path of a socket is not absolute.
    RelativePath(String),
    /// This path of a socket is longer than [`SOCKET_PATH_MAX`].
    LongPath(String),
    /// The socket of the peer is missing.
    NoPeer,
    /// The peer has the same socket.
    OneSocket,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => {
                write!(f, "'{name}' is not the name of an interface: 1 to {INTERFACE_NAME_MAX} characters, as eth0")
            }
            Self::RelativePath(path) => write!(f, "'{path}' is not the absolute path of a socket"),
            Self::LongPath(path) => write!(f, "'{path}' is too long for a socket: {SOCKET_PATH_MAX} bytes at most"),
            Self::NoPeer => f.write_str("needs the socket of the peer: unix:PATH,PEER"),
            Self::OneSocket => f.write_str("names one socket twice: the peer has a socket of its own"),
        }
    }
}

impl std::error::Error for AddressError {}

fn interface_name(name: &str) -> Result<String, AddressError> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"/:,".contains(c);
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX || !name.chars().all(is_plain) {
        return Err(AddressError::Interface(name.to_owned()));
    }
    Ok(name.to_owned())
}

fn socket_path(path: &str) -> Result<PathBuf, AddressError> {
    match path.len() {
        _ if !path.starts_with('/') => Err(AddressError::RelativePath(path.to_owned())),
        1..=SOCKET_PATH_MAX => Ok(PathBuf::from(path)),
        _ => Err(AddressError::LongPath(path.to_owned())),
    }
}

impl FromStr for LinkAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(name) = text.strip_prefix("tap:") {
            return interface_name(name).map(Self::Tap);
        }
        if let Some(name) = text.strip_prefix("xdp:") {
            return interface_name(name).map(Self::Xdp);
        }
        let Some(paths) = text.strip_prefix("unix:") else { return interface_name(text).map(Self::Interface) };
        let (path, peer) = paths.split_once(',').ok_or(AddressError::NoPeer)?;
        let (path, peer) = (socket_path(path)?, socket_path(peer)?);
        if path == peer {
            return Err(AddressError::OneSocket);
        }
        Ok(Self::Unix { path, peer })
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Xdp(name) => write!(f, "xdp:{name}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Unix { path, peer } => write!(f, "unix:{},{}", path.display(), peer.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_links_are_read_and_written() {
        for text in ["eth0", "enp0s31f6", "eth0.5", "xdp:eth0", "tap:lunar0", "unix:/run/a,/run/b"] {
            let address: LinkAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in
            ["", "eth0:1", "a/b", "a-name-that-is-too-long", "tap:", "xdp:", "unix:/a", "unix:a,/b", "unix:/a,/a"]
        {
            assert!(text.parse::<LinkAddress>().is_err(), "{text}");
        }
        let long = format!("unix:/{},/b", "x".repeat(SOCKET_PATH_MAX));
        assert!(long.parse::<LinkAddress>().expect_err("too long").to_string().contains("107"));
    }

    #[test]
    fn interfaces_have_addresses_of_their_own() {
        let of = |text: &str| text.parse::<LinkAddress>().expect(text).has_own_mac();
        assert_eq!(["eth0", "xdp:eth0", "tap:t0", "unix:/a,/b"].map(of), [true, true, false, false]);
    }

    #[test]
    fn derived_mac_addresses_are_local_and_differ() {
        let of = |text: &str| text.parse::<LinkAddress>().expect(text).derived_mac();
        assert_eq!(of("unix:/a,/b").0[0], 2);
        assert_eq!(of("unix:/a,/b"), of("unix:/a,/b"));
        assert_ne!(of("unix:/a,/b"), of("unix:/b,/a"));
    }

    #[test]
    fn a_link_names_the_folders_of_its_files() {
        let of = |text: &str| text.parse::<LinkAddress>().expect(text).folders();
        assert_eq!((of("eth0"), of("xdp:eth0")), (Vec::<PathBuf>::new(), Vec::new()));
        assert_eq!(of("unix:/a/x,/b/y"), [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(of("tap:t0"), [PathBuf::from("/dev/net")]);
    }
}
