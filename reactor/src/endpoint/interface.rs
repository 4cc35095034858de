//! Network interfaces of this host.

use super::batch::MacAddress;
use crate::sys::raw;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// Of linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    name: CString,
    index: u32,
}

impl Interface {
    /// The interface of this name.
    ///
    /// # Errors
    /// `NotFound` when this network namespace has none; the message names the command which lists them.
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        let missing = || {
            let what = format!("there is no network interface `{name}`: `ip link` lists the interfaces of this host");
            io::Error::new(io::ErrorKind::NotFound, what)
        };
        let c_name = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the call reads a string that lives until it is over.
        match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
            0 => Err(missing()),
            index => Ok(Self { name: c_name, index }),
        }
    }

    /// The interface that has this address.
    ///
    /// # Errors
    /// `NotFound` when none has.
    pub(crate) fn with_address(address: IpAddr) -> io::Result<Self> {
        let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: the call writes the address of a list, which is freed below.
        if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut found = None;
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an entry of the list, which lives until it is freed; an address is as long as its family says.
            let entry = unsafe { &*at };
            // SAFETY: as above.
            if unsafe { ip_of(entry.ifa_addr) } == Some(address) {
                // SAFETY: the name is a string of the list.
                found = unsafe { CStr::from_ptr(entry.ifa_name) }.to_str().ok().map(str::to_owned);
                break;
            }
            at = entry.ifa_next;
        }
        // SAFETY: the list is from `getifaddrs`, and nothing points into it any more.
        unsafe { libc::freeifaddrs(list) };
        Self::named(&found.ok_or(io::ErrorKind::NotFound)?)
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Its largest IP packet: bytes of a frame behind the 14 of its header.
    ///
    /// # Errors
    /// When the interface was removed.
    pub(crate) fn mtu(&self) -> io::Result<usize> {
        let request = self.request(libc::SIOCGIFMTU)?;
        // SAFETY: the kernel has written this member.
        Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
    }

    /// Its hardware address.
    ///
    /// # Errors
    /// When the interface was removed.
    pub(crate) fn mac(&self) -> io::Result<MacAddress> {
        let request = self.request(libc::SIOCGIFHWADDR)?;
        // SAFETY: the kernel has written this member.
        let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        let mut mac = [0; 6];
        mac.iter_mut().zip(data).for_each(|(to, from)| *to = from as u8);
        Ok(MacAddress(mac))
    }

    /// The number of queues into which its driver sorts received frames; 1 if it cannot say.
    pub(crate) fn queues(&self) -> usize {
        // `struct ethtool_channels`: the command, four maxima, then the queues for receipt, for sending, for other
        // uses, and for both.
        let mut channels = [0_u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        let [.., receiving, _, _, combined] = match self.ask_driver(&mut channels) {
            Ok(()) => channels,
            Err(_) => return 1,
        };
        (receiving as usize + combined as usize).max(1)
    }

    /// Whether its hardware takes VLAN tags off received frames.
    pub(crate) fn strips_tags(&self) -> bool {
        // `struct ethtool_value`.
        let mut value = [ETHTOOL_GFLAGS, 0];
        self.ask_driver(&mut value).is_ok() && value[1] & ETH_FLAG_RXVLAN != 0
    }

    /// Sends a command of linux/ethtool.h, which reads or writes as many words as it has.
    fn ask_driver<const WORDS: usize>(&self, words: &mut [u32; WORDS]) -> io::Result<()> {
        let mut request = self.empty_request();
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.send_request(SIOCETHTOOL, &mut request)
    }

    /// An empty request that names the interface.
    pub(crate) fn empty_request(&self) -> libc::ifreq {
        // SAFETY: zeroes are an empty request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays zero.
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(self.name.as_bytes()) {
            *to = *from as libc::c_char;
        }
        request
    }

    fn request(&self, request: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut ifreq = self.empty_request();
        self.send_request(request, &mut ifreq)?;
        Ok(ifreq)
    }

    fn send_request(&self, request: libc::Ioctl, ifreq: &mut libc::ifreq) -> io::Result<()> {
        // A socket of any family serves; every process may have one of this family.
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the requests used here read and write one `ifreq`, and the words to which one for a driver points.
        if unsafe { libc::ioctl(raw(&socket), request, &raw mut *ifreq) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// The IP address at `address`, if it is one.
///
/// # Safety
/// `address` is null or points to a socket address of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and as long as its family says.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_by_address() {
        let by_name = Interface::named("lo").expect("every Linux has it");
        assert!(by_name.mtu().expect("it is there") >= 1280);
        assert_eq!(by_name.mac().expect("it is there"), MacAddress([0; 6]));
        match Interface::with_address(Ipv4Addr::LOCALHOST.into()) {
            Ok(by_address) => assert_eq!(by_address, by_name),
            Err(why) => eprintln!("skipped: the loopback interface has no address here: {why}"),
        }
    }

    #[test]
    fn a_missing_interface_is_named_with_the_command_that_lists_them() {
        for name in ["none0", "a-name-that-is-too-long", "nul\0"] {
            let error = Interface::named(name).expect_err("there is none");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert!(error.to_string().contains("ip link"), "{error}");
        }
        assert!(Interface::with_address("192.0.2.77".parse().expect("an address")).is_err());
    }
}
