//! Why a request of a client fails.

use crate::system;
use hyper::http;
use rustix::fs::{Access, access};
use serde_json::Value as Json;
use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, pem};

/// Why a request failed, with a message that says what to do.
#[derive(Debug)]
pub enum ClientError {
    /// No service listens at the address.
    NotRunning(NotRunning),
    /// The caller lacks a right.
    NotAllowed(NotAllowed),
    /// The service refused the request: HTTP status, `detail` of the problem report, and the whole report.
    Refused(u16, String, Json),
    /// The connection failed, or the response is invalid.
    Broken(Broken),
}

/// The address at which no service listens.
#[derive(Debug)]
pub enum NotRunning {
    /// A socket of this host.
    Socket(PathBuf),
    /// A port of a host.
    Network {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// Why it cannot be reached.
        why: Unreachable,
    },
}

/// Why a host cannot be reached.
#[derive(Debug)]
pub enum Unreachable {
    /// The connection timed out.
    ConnectTimeout,
    /// The TLS handshake timed out.
    TlsTimeout,
    /// The connection failed.
    Io(io::Error),
}

/// Why the caller may not make the request.
#[derive(Debug)]
pub enum NotAllowed {
    /// The answer of the service.
    ByService(String),
    /// This user may not use the socket.
    Socket {
        /// The user.
        user: String,
        /// The path of the socket.
        path: PathBuf,
        /// The way to get access.
        remedy: Remedy,
    },
    /// A token is not sent without encryption.
    TokenInClear,
}

/// How a user gets access to the socket.
#[derive(Debug)]
pub enum Remedy {
    /// By joining this group.
    JoinGroup(String),
    /// As root: the user cannot enter the folder of the socket.
    Root,
    /// As root, or by a group that is configured.
    ConfigureGroup,
}

/// Why a connection failed or a response is invalid.
#[derive(Debug)]
pub enum Broken {
    /// The service does not answer in time.
    Timeout,
    /// The connection to this socket failed.
    Socket(PathBuf, io::Error),
    /// The connection broke off.
    Connection(hyper::Error),
    /// The response was interrupted, or is too long.
    Response(Box<dyn Error + Send + Sync>),
    /// The response is not JSON.
    Json(serde_json::Error),
    /// A field of the response has no bytes in the form that was agreed.
    Data,
    /// The event stream was interrupted.
    Stream(hyper::Error),
    /// A line of the event stream is too long.
    LongLine,
    /// The path of the request is invalid.
    Path(String, http::Error),
    /// The name of the host is invalid.
    Host(String, InvalidDnsNameError),
    /// There is no file with trusted certificates.
    NoCertificates,
    /// The file with trusted certificates cannot be read.
    Certificates(PathBuf, pem::Error),
    /// A trusted certificate cannot be used.
    Certificate(PathBuf, rustls::Error),
    /// The runtime cannot start.
    Runtime(io::Error),
}

impl ClientError {
    /// The error of a connection to the socket at this path.
    pub(crate) fn of_socket(socket: &Path, why: io::Error) -> Self {
        let path = socket.to_owned();
        match why.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => NotRunning::Socket(path).into(),
            ErrorKind::PermissionDenied => {
                let user = system::user_name(rustix::process::geteuid().as_raw());
                NotAllowed::Socket { user, path, remedy: Remedy::of(socket) }.into()
            }
            _ => Broken::Socket(path, why).into(),
        }
    }
}

impl Remedy {
    fn of(socket: &Path) -> Self {
        let found = std::fs::metadata(socket).ok().filter(|found| found.mode() & 0o060 == 0o060);
        match found.map(|found| system::group_name(found.gid())) {
            Some(group) => Self::JoinGroup(group),
            None if access(socket.parent().unwrap_or(socket), Access::EXEC_OK).is_err() => Self::Root,
            None => Self::ConfigureGroup,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning(why) => why.fmt(f),
            Self::NotAllowed(why) => why.fmt(f),
            Self::Refused(_, why, _) => f.write_str(why),
            Self::Broken(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for NotRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(
                f,
                "Lunar is not running (no process serves {}): start it with `systemctl start lunar`, or `lunar daemon \
                 --config FILE`",
                path.display()
            ),
            Self::Network { host, port, why } => {
                write!(f, "no service answers at {host} port {port}: {why}; check the address in [api-listener]")
            }
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectTimeout => f.write_str("the connection timed out"),
            Self::TlsTimeout => f.write_str("the TLS handshake timed out"),
            Self::Io(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByService(why) => f.write_str(why),
            Self::TokenInClear => f.write_str("a token is sent to other hosts over https:// only"),
            Self::Socket { user, path, remedy } => {
                write!(f, "{user} may not use {}: ", path.display())?;
                match remedy {
                    Remedy::JoinGroup(group) => {
                        write!(f, "join the group {group} (`sudo usermod -aG {group} {user}`, then log in again)")
                    }
                    Remedy::Root => f.write_str("you cannot enter its folder: use sudo"),
                    Remedy::ConfigureGroup => f.write_str("use sudo, or set `group` in [api] of the configuration"),
                }
            }
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("the service does not answer in time: see `lunar status` and the log"),
            Self::Socket(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Connection(why) => write!(f, "the connection broke off: {why}"),
            Self::Response(why) => write!(f, "the response was interrupted: {why}"),
            Self::Json(why) => write!(f, "the response is not valid JSON: {why}"),
            Self::Data => f.write_str("the response has malformed data: is the service of another version?"),
            Self::Stream(why) => write!(f, "the stream was interrupted: {why}"),
            Self::LongLine => f.write_str("a line of the stream is too long"),
            Self::Path(path, why) => write!(f, "invalid request path {path}: {why}"),
            Self::Host(host, why) => write!(f, "{host}: {why}"),
            Self::NoCertificates => f.write_str("this system has no trusted certificates: give a file with --trust"),
            Self::Certificates(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Certificate(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Runtime(why) => write!(f, "cannot start the runtime: {why}"),
        }
    }
}

impl Error for ClientError {}

impl From<NotRunning> for ClientError {
    fn from(why: NotRunning) -> Self {
        Self::NotRunning(why)
    }
}

impl From<NotAllowed> for ClientError {
    fn from(why: NotAllowed) -> Self {
        Self::NotAllowed(why)
    }
}

impl From<Broken> for ClientError {
    fn from(why: Broken) -> Self {
        Self::Broken(why)
    }
}
