//! Why a device cannot be used.

use rustix::io::Errno;
use std::fmt;
use std::io;
use std::net::IpAddr;

/// The device file of the connection manager.
pub const MANAGER: &str = "/dev/infiniband/rdma_cm";

/// Why a device cannot be used, with a message that says what to do.
#[derive(Debug)]
pub enum DeviceError {
    /// A library cannot be loaded: its file name, the Debian package that has it, and the reason.
    Library(&'static str, &'static str, String),
    /// The kernel has no RDMA device.
    NoDevice,
    /// There are devices, but the connection manager of the kernel cannot be used.
    NoManager(io::Error),
    /// No RDMA device has the address.
    NoAddress(IpAddr, io::Error),
    /// Another device has the address: the names of both.
    OtherDevice(IpAddr, String, String),
    /// The device (of this name) is not one of InfiniBand or RoCE.
    OtherTransport(String),
    /// Another program, or another section, serves this TCP port of the RDMA connection manager.
    InUse(IpAddr, u16),
    /// The memory of the data path cannot be registered with the device: the bytes, and the reason.
    Memory(usize, io::Error),
    /// Another call of the libraries has failed.
    Call(&'static str, io::Error),
}

impl DeviceError {
    /// The kind of the error, for an [`io::Error`].
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Library(..) | Self::NoDevice => io::ErrorKind::NotFound,
            Self::NoManager(why) | Self::Memory(_, why) | Self::Call(_, why) => why.kind(),
            Self::NoAddress(..) => io::ErrorKind::AddrNotAvailable,
            Self::OtherDevice(..) => io::ErrorKind::InvalidInput,
            Self::OtherTransport(_) => io::ErrorKind::Unsupported,
            Self::InUse(..) => io::ErrorKind::AddrInUse,
        }
    }
}

impl From<DeviceError> for io::Error {
    fn from(why: DeviceError) -> Self {
        Self::new(why.kind(), why)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(file, package, why) => write!(
                f,
                "the library {file} cannot be loaded ({why}): install it (Debian: apt install {package} \
                 ibverbs-providers), and restart Lunar, which loads libraries at its start"
            ),
            Self::NoDevice => f.write_str(
                "this machine has no RDMA device: `rdma link` lists them; a device in software is made by `modprobe \
                 rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE`; Lunar serves RoCE without a device if the \
                 section has no `link`",
            ),
            Self::NoManager(why) if matches!(Errno::from_io_error(why), Some(Errno::ACCESS | Errno::PERM)) => write!(
                f,
                "{MANAGER} cannot be used ({why}): the user of Lunar needs access to it, and to \
                 /dev/infiniband/uverbs*, also by DeviceAllow= of the systemd unit; a running Lunar reaches devices \
                 only if its configuration named one at its start: restart it"
            ),
            Self::NoManager(why) => {
                write!(f, "the RDMA connection manager of the kernel cannot be used ({why}): modprobe rdma_ucm")
            }
            Self::NoAddress(address, why) => write!(
                f,
                "no RDMA device has the address {address} ({why}): give it to the network interface of a device; \
                 `rdma link` shows which interface each device has"
            ),
            Self::OtherDevice(address, has, wanted) => write!(
                f,
                "{address} is an address of the RDMA device {has}, not of {wanted}: write `verbs:{has}`, or use an \
                 address of {wanted}"
            ),
            Self::OtherTransport(name) => write!(
                f,
                "the RDMA device {name} has another transport than InfiniBand or RoCE: with iWARP, all memory of \
                 Lunar would be writable for peers"
            ),
            Self::InUse(address, port) => write!(
                f,
                "the port {port} of the RDMA connection manager at {address} is in use: stop the program that serves \
                 it (a target of the kernel, or another section), or use another `port`"
            ),
            Self::Memory(bytes, why) => write!(
                f,
                "{} MiB of data memory cannot be registered with the RDMA device ({why}): allow the process to lock \
                 memory (LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited), or reduce `memory` in \
                 [server]",
                bytes >> 20
            ),
            Self::Call(what, why) => write!(f, "{what} has failed: {why}"),
        }
    }
}

impl std::error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_to_do() {
        let why = || io::Error::from(Errno::NODEV);
        let at: IpAddr = [192, 0, 2, 1].into();
        for (error, kind, words) in [
            (DeviceError::NoDevice, io::ErrorKind::NotFound, "modprobe rdma_rxe"),
            (DeviceError::NoManager(why()), why().kind(), "modprobe rdma_ucm"),
            (DeviceError::NoManager(Errno::ACCESS.into()), io::ErrorKind::PermissionDenied, "restart it"),
            (DeviceError::NoAddress(at, why()), io::ErrorKind::AddrNotAvailable, "`rdma link`"),
            (
                DeviceError::OtherDevice(at, "mlx5_0".into(), "rxe0".into()),
                io::ErrorKind::InvalidInput,
                "write `verbs:mlx5_0`",
            ),
            (DeviceError::OtherTransport("siw0".into()), io::ErrorKind::Unsupported, "iWARP"),
            (DeviceError::InUse(at, 4420), io::ErrorKind::AddrInUse, "another `port`"),
            (DeviceError::Memory(64 << 20, Errno::NOMEM.into()), io::ErrorKind::OutOfMemory, "64 MiB"),
        ] {
            let error = io::Error::from(error);
            assert!(error.kind() == kind && error.to_string().contains(words), "{error}");
        }
    }
}
