//! Why a socket cannot be made as it is configured.

use crate::origin::Wording;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// The options of `lunar serve` that choose sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The option that makes a socket.
    pub socket: &'static str,
    /// The option that chooses the folder of sockets.
    pub folder: &'static str,
}

/// A socket cannot be made as it is configured.
#[derive(Debug)]
pub(super) struct SocketError {
    pub(super) path: PathBuf,
    pub(super) mistake: SocketMistake,
    pub(super) wording: Wording,
    pub(super) options: &'static SocketOptions,
}

#[derive(Debug)]
pub(super) enum SocketMistake {
    /// The path is longer than a path of a socket can be.
    TooLong,
    /// It cannot be bound, or not with its permissions.
    Bind(io::Error),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ErrorKind::{AddrInUse, PermissionDenied};
        let (path, SocketOptions { socket, folder }) = (self.path.display(), self.options);
        let why = match &self.mistake {
            SocketMistake::TooLong => {
                return write!(f, "{path} is too long for a socket: say where it is with 'socket'");
            }
            SocketMistake::Bind(why) => why,
        };
        match self.wording {
            Wording::Options => match why.kind() {
                AddrInUse => write!(f, "{path} is served by another process; choose another {socket} or {folder}"),
                PermissionDenied => {
                    write!(f, "{path} cannot be made: choose another {folder}, in which this user may write")
                }
                _ => write!(f, "making {path} ({folder}): {why}"),
            },
            Wording::Keys => match why.kind() {
                AddrInUse => write!(f, "{path} is served by another process"),
                PermissionDenied if rustix::process::geteuid().is_root() => write!(
                    f,
                    "{path} cannot be made, or not given to this user or group: the folder must be configured when \
                     Lunar starts (`folders` in [server]), and the service may lack the capability CAP_CHOWN"
                ),
                PermissionDenied => write!(
                    f,
                    "{path} cannot be made, or not given to this user or group: the folder must be one that Lunar may \
                     write to, and configured when it starts (`folders` in [server]); giving it to another user takes \
                     root"
                ),
                _ => write!(f, "{path}: {why}"),
            },
        }
    }
}

impl std::error::Error for SocketError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_options_of_its_front() {
        let options = &SocketOptions { socket: "--vm", folder: "--vm-folder" };
        let error = |wording, mistake| SocketError { path: "/run/a".into(), mistake, wording, options }.to_string();
        let bind = |kind: ErrorKind| SocketMistake::Bind(kind.into());
        assert_eq!(
            error(Wording::Options, bind(ErrorKind::AddrInUse)),
            "/run/a is served by another process; choose another --vm or --vm-folder"
        );
        assert_eq!(error(Wording::Keys, bind(ErrorKind::AddrInUse)), "/run/a is served by another process");
        assert!(error(Wording::Keys, bind(ErrorKind::PermissionDenied)).contains("`folders` in [server]"));
    }
}
