//! The API of a daemon: its sockets and tokens follow the configuration while it runs.

use crate::control::ControlHandle;
use crate::listen::{Listener, Thread, Tls, TlsError};
use crate::request::Shared;
use crate::rights::{AccessPolicy, Tokens};
use crate::server::State;
use crate::system;
use lunar_control::check::Checked;
use lunar_control::common_sections::{self, ApiListener};
use lunar_control::secret::Secret;
use lunar_control::value::Textual;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The key of the Unix socket among the sockets of the thread. Names of listeners contain no slash.
const LOCAL: &str = "/socket";

/// The running API.
#[derive(Debug)]
pub struct Api {
    state: Arc<State>,
    thread: Thread,
    socket: Option<Socket>,
    /// The `[api]` section by which the socket is served.
    socket_config: Option<common_sections::Api>,
    /// The listeners on TCP: their configuration, certificate and socket.
    listeners: BTreeMap<String, (ApiListener, Option<Secret>, TcpListener)>,
    prepared: Option<Prepared>,
}

/// Why the API cannot be served as it is configured, with a message that says what to do.
#[derive(Debug)]
pub enum ApiError {
    /// There is no default folder for the socket.
    NoSocketFolder,
    /// There is no group of users of this name.
    NoUserGroup(String),
    /// Another process serves this socket.
    Served(PathBuf),
    /// The file at the path of the socket is not a socket.
    NoSocket(PathBuf),
    /// The socket cannot be made.
    Socket {
        /// Its path.
        path: PathBuf,
        /// The group of users that may connect.
        user_group: Option<String>,
        /// Why.
        why: io::Error,
    },
    /// Lunar cannot listen at an address.
    Listen(SocketAddr, io::Error),
    /// The certificate of a listener cannot be used.
    Tls(TlsError),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocketFolder => f.write_str("there is no default folder for the API socket: set `socket` in [api]"),
            Self::NoUserGroup(name) => {
                write!(f, "there is no group '{name}' for the API socket: create it, or change `group` in [api]")
            }
            Self::Served(path) => {
                write!(f, "another process serves the socket {}: is Lunar already running?", path.display())
            }
            Self::NoSocket(path) => {
                write!(f, "{} exists and is not a socket: remove it, or change `socket` in [api]", path.display())
            }
            Self::Socket { path, user_group: Some(name), why } if why.kind() == ErrorKind::PermissionDenied => {
                let path = path.display();
                write!(f, "the socket {path} for group {name}: {why}; run Lunar as a member of the group")
            }
            Self::Socket { path, why, .. } => write!(f, "the socket {}: {why}", path.display()),
            Self::Listen(address, why) => match why.kind() {
                ErrorKind::AddrInUse => write!(f, "another process listens at {address}"),
                ErrorKind::AddrNotAvailable => write!(f, "{address} is not an address of this host"),
                _ => write!(f, "{address}: {why}"),
            },
            Self::Tls(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ApiError {}

/// The socket file, which is removed on drop.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    /// The inode of the file: another process may have replaced it.
    inode: u64,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.inode) {
            // If the file cannot be removed, the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// A prepared configuration.
#[derive(Debug)]
struct Prepared {
    socket: Option<NewSocket>,
    tokens: Tokens,
    listeners: Vec<(String, ApiListener, TcpListener, Option<Tls>)>,
    removed: Vec<String>,
}

/// A socket that is bound and not served yet: it has a temporary name until the commit renames it.
#[derive(Debug)]
struct NewSocket {
    socket: Socket,
    path: PathBuf,
    listener: UnixListener,
    group: Option<u32>,
}

impl Api {
    /// Starts the API without any socket. Requests are sent to `control_thread`.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(control_thread: ControlHandle, shared: Arc<Shared>) -> io::Result<Self> {
        let owner = rustix::process::geteuid().as_raw();
        let state = State::new(control_thread, shared, AccessPolicy { owner, ..AccessPolicy::default() });
        let thread = Thread::start(&state)?;
        Ok(Self { state, thread, socket: None, socket_config: None, listeners: BTreeMap::new(), prepared: None })
    }

    /// Does everything that can fail of applying a configuration, without visible effect.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn prepare(&mut self, wanted: &Checked) -> Result<(), ApiError> {
        let config = &wanted.config;
        let socket = match self.socket_config.as_ref() == Some(&config.api) {
            true => None,
            false => Some(self.bind_socket(&config.api)?),
        };
        let is_unchanged = |name: &String, listener: &ApiListener| {
            let known = self.listeners.get(name).map(|(known, certificate, _)| (known, certificate.as_ref()));
            known == Some((listener, wanted.certificate(name)))
        };
        let mut listeners = Vec::new();
        for (name, listener) in config.api_listeners.iter().filter(|(name, listener)| !is_unchanged(name, listener)) {
            let (bound, tls) = self.bind(listener)?;
            listeners.push((name.clone(), listener.as_ref().clone(), bound, tls));
        }
        let removed = self.listeners.keys().filter(|name| !config.api_listeners.contains_key(*name)).cloned().collect();
        self.prepared = Some(Prepared { socket, tokens: Tokens::of(wanted), listeners, removed });
        Ok(())
    }

    /// Applies the prepared configuration. This cannot fail.
    pub fn commit(&mut self, wanted: &Checked) {
        let Some(Prepared { socket, tokens, listeners, removed }) = self.prepared.take() else { return };
        if let Some(new) = socket {
            self.serve_socket(new);
            self.socket_config = Some(wanted.config.api.clone());
        }
        self.state.change_policy(|policy| policy.tokens = tokens);
        for name in removed {
            self.listeners.remove(&name);
            self.state.shared().set_expiry(&name, None);
            self.thread.close(&name);
        }
        for (name, listener, bound, tls) in listeners {
            self.state.shared().set_expiry(&name, tls.as_ref().and_then(|tls| tls.expiry.clone()));
            // A second handle keeps the address bound for a listener that takes it over.
            if let Ok(handle) = bound.try_clone() {
                self.listeners.insert(name.clone(), (listener, wanted.certificate(&name).cloned(), handle));
            }
            self.thread.open(&name, Listener::Remote(bound, tls));
        }
    }

    /// Discards the prepared configuration.
    pub fn roll_back(&mut self) {
        self.prepared = None;
    }

    /// Applies the first configuration.
    ///
    /// # Errors
    /// As [`Api::prepare`].
    pub fn open(&mut self, checked: &Checked) -> Result<(), ApiError> {
        self.prepare(checked)?;
        self.commit(checked);
        Ok(())
    }

    /// The path of the socket that is served.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(|socket| socket.path.as_path())
    }

    /// The bound address of a listener; with a configured port 0 it has the port that the system chose.
    #[must_use]
    pub fn address(&self, listener: &str) -> Option<SocketAddr> {
        self.listeners.get(listener)?.2.local_addr().ok()
    }

    fn serve_socket(&mut self, new: NewSocket) {
        let NewSocket { mut socket, path, listener, group } = new;
        // Replace a socket that an earlier process left. Both names are in the same folder, so the rename is atomic.
        if std::fs::rename(&socket.path, &path).is_ok() {
            socket.path = path;
        }
        self.state.change_policy(|policy| policy.group = group);
        self.thread.open(LOCAL, Listener::Local(listener));
        self.socket = Some(socket);
    }

    /// Binds the socket of a configuration with access for its owner and, if configured, for a group.
    fn bind_socket(&self, wanted: &common_sections::Api) -> Result<NewSocket, ApiError> {
        let path = match &wanted.socket {
            Some(path) => PathBuf::from(path.text()),
            None => system::daemon_socket().ok_or(ApiError::NoSocketFolder)?,
        };
        let group = wanted.group.as_ref().map(|name| {
            let name = name.text();
            system::group_number(&name).ok_or_else(|| ApiError::NoUserGroup(name))
        });
        let group = group.transpose()?;
        if self.socket() != Some(&path) && UnixStream::connect(&path).is_ok() {
            return Err(ApiError::Served(path));
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        // Replacing or removing the path is safe only for a socket: anything else may be a user's file.
        for path in [&path, &new] {
            if std::fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
                return Err(ApiError::NoSocket(path.clone()));
            }
        }
        let bind = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            match std::fs::remove_file(&new) {
                Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
                _ => {}
            }
            let listener = UnixListener::bind(&new)?;
            std::os::unix::fs::chown(&new, None, group)?;
            std::fs::set_permissions(&new, Permissions::from_mode(if group.is_some() { 0o660 } else { 0o600 }))?;
            Ok(listener)
        };
        let user_group = || wanted.group.as_ref().map(|name| name.text());
        let listener = bind().map_err(|why| ApiError::Socket { path: path.clone(), user_group: user_group(), why })?;
        let socket = Socket { inode: inode(&new).unwrap_or_default(), path: new };
        Ok(NewSocket { socket, path, listener, group })
    }

    /// Binds the socket of a listener. An address that is already bound is shared with its present listener.
    fn bind(&self, wanted: &ApiListener) -> Result<(TcpListener, Option<Tls>), ApiError> {
        let address = wanted.address.0;
        let there = self.listeners.values().find(|(known, ..)| known.address.0 == address);
        let listener = match there {
            Some((.., listener)) => listener.try_clone(),
            None => TcpListener::bind(address),
        };
        let tls = match (&wanted.certificate, &wanted.key) {
            (Some(certificate), Some(key)) => {
                Some(Tls::read(Path::new(&certificate.text()), Path::new(&key.text())).map_err(ApiError::Tls)?)
            }
            _ => None,
        };
        Ok((listener.map_err(|why| ApiError::Listen(address, why))?, tls))
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
