//! The API as a part of what runs: its sockets and tokens change with the configuration, while it runs.

use crate::desk::Desk;
use crate::listen::{Listener, Thread, Tls};
use crate::place;
use crate::rights::{Door, Tokens};
use crate::server::State;
use crate::work::Common;
use lunar_control::check::Checked;
use lunar_control::model::{self, ApiListener};
use lunar_control::secret::Secret;
use lunar_control::value::Textual;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the socket is called among those that the thread serves. No listener can be called so.
const LOCAL: &str = "/socket";

/// The API that runs.
#[derive(Debug)]
pub struct Api {
    state: Arc<State>,
    thread: Thread,
    socket: Option<Socket>,
    /// What the configuration says of the socket that is served.
    asked: Option<model::Api>,
    /// Listeners, as they were configured, with what their certificates are.
    remote: BTreeMap<String, (ApiListener, Option<Secret>, TcpListener)>,
    coming: Option<Coming>,
}

/// The socket's file, which is removed when this drops.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    /// Which file it is: somebody may have put another in its place.
    inode: u64,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.inode) {
            // If it cannot be removed, the next start does it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// What is ready to be in force.
#[derive(Debug)]
struct Coming {
    socket: Option<NewSocket>,
    tokens: Tokens,
    listeners: Vec<(String, ApiListener, TcpListener, Option<Tls>)>,
    gone: Vec<String>,
}

/// A socket that listens, and is not served: under a name of its own until it takes its place.
#[derive(Debug)]
struct NewSocket {
    socket: Socket,
    place: PathBuf,
    listener: UnixListener,
    group: Option<u32>,
}

impl Api {
    /// Starts it, without any socket: requests go to `desk`.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub fn start(desk: Desk, common: Arc<Common>) -> io::Result<Self> {
        let owner = rustix::process::geteuid().as_raw();
        let state = State::new(desk, common, Door { owner, ..Door::default() });
        let thread = Thread::start(&state)?;
        Ok(Self { state, thread, socket: None, asked: None, remote: BTreeMap::new(), coming: None })
    }

    /// Does everything that can fail of what a configuration asks for, so that nobody notices.
    ///
    /// # Errors
    /// Why it cannot be, in words that say what to do.
    pub fn prepare(&mut self, wanted: &Checked) -> Result<(), String> {
        let config = &wanted.config;
        let socket = match self.asked.as_ref() == Some(&config.api) {
            true => None,
            false => Some(self.bind_socket(&config.api)?),
        };
        let is_as_before = |name: &String, listener: &ApiListener| {
            let known = self.remote.get(name).map(|(known, certificate, _)| (known, certificate.as_ref()));
            known == Some((listener, wanted.certificate(name)))
        };
        let mut listeners = Vec::new();
        for (name, listener) in config.api_listeners.iter().filter(|(name, listener)| !is_as_before(name, listener)) {
            let (bound, tls) = self.bind(listener)?;
            listeners.push((name.clone(), listener.clone(), bound, tls));
        }
        let gone = self.remote.keys().filter(|name| !config.api_listeners.contains_key(*name)).cloned().collect();
        self.coming = Some(Coming { socket, tokens: Tokens::of(wanted), listeners, gone });
        Ok(())
    }

    /// Goes by what was prepared. This cannot fail.
    pub fn commit(&mut self, wanted: &Checked) {
        let Some(Coming { socket, tokens, listeners, gone }) = self.coming.take() else { return };
        if let Some(new) = socket {
            self.serve_socket(new);
            self.asked = Some(wanted.config.api.clone());
        }
        self.state.change_door(|door| door.tokens = tokens);
        for name in gone {
            self.remote.remove(&name);
            self.thread.close(&name);
        }
        for (name, listener, bound, tls) in listeners {
            // A second handle keeps the address for whoever takes it over.
            if let Ok(handle) = bound.try_clone() {
                self.remote.insert(name.clone(), (listener, wanted.certificate(&name).cloned(), handle));
            }
            self.thread.open(&name, Listener::Remote(bound, tls));
        }
    }

    /// Lets go of what was prepared, as if nobody had asked.
    pub fn roll_back(&mut self) {
        self.coming = None;
    }

    /// Puts in force what a configuration asks for: the first one.
    ///
    /// # Errors
    /// As [`Api::prepare`].
    pub fn open(&mut self, checked: &Checked) -> Result<(), String> {
        self.prepare(checked)?;
        self.commit(checked);
        Ok(())
    }

    /// The path of the socket that is served.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(|socket| socket.path.as_path())
    }

    /// The address of a listener: that which the system chose if port 0 was asked for.
    #[must_use]
    pub fn address(&self, listener: &str) -> Option<SocketAddr> {
        self.remote.get(listener)?.2.local_addr().ok()
    }

    fn serve_socket(&mut self, new: NewSocket) {
        let NewSocket { mut socket, place, listener, group } = new;
        // In the same folder: it takes the place of whatever was left there.
        if std::fs::rename(&socket.path, &place).is_ok() {
            socket.path = place;
        }
        self.state.change_door(|door| door.group = group);
        self.thread.open(LOCAL, Listener::Local(listener));
        self.socket = Some(socket);
    }

    /// Binds the socket that a configuration asks for: for its owner, and for the members of a group.
    fn bind_socket(&self, wanted: &model::Api) -> Result<NewSocket, String> {
        let place = match &wanted.socket {
            Some(path) => PathBuf::from(path.text()),
            None => place::to_listen().ok_or("there is no folder for the socket of the API: set `socket` in [api]")?,
        };
        let group = wanted.group.as_ref().map(|name| {
            let name = name.text();
            place::group_number(&name).ok_or_else(|| format!("there is no group '{name}' for the socket of the API"))
        });
        let group = group.transpose()?;
        if self.socket() != Some(&place) && UnixStream::connect(&place).is_ok() {
            return Err(format!("another process serves the socket {}: is Lunar running already?", place.display()));
        }
        let mut new = place.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        // It would be replaced, or removed.
        for path in [&place, &new] {
            if std::fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
                return Err(format!("there is something else than a socket at {}: it stays", path.display()));
            }
        }
        let bind = || {
            if let Some(folder) = place.parent() {
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
        let listener = bind().map_err(|why: io::Error| match (why.kind(), &wanted.group) {
            (ErrorKind::PermissionDenied, Some(group)) => format!(
                "the socket {} for group {}: {why}; Lunar has to run as a member of the group",
                place.display(),
                group.text()
            ),
            _ => format!("the socket {}: {why}", place.display()),
        })?;
        let socket = Socket { inode: inode(&new).unwrap_or_default(), path: new };
        Ok(NewSocket { socket, place, listener, group })
    }

    /// A socket for a listener; one that listens there already is shared until its own goes.
    fn bind(&self, wanted: &ApiListener) -> Result<(TcpListener, Option<Tls>), String> {
        let address = wanted.address.0;
        let unable = |why: io::Error| match why.kind() {
            ErrorKind::AddrInUse => format!("somebody else listens at {address}"),
            ErrorKind::AddrNotAvailable => format!("{address} is no address of this machine"),
            _ => format!("{address}: {why}"),
        };
        let there = self.remote.values().find(|(known, ..)| known.address.0 == address);
        let listener = match there {
            Some((.., listener)) => listener.try_clone(),
            None => TcpListener::bind(address),
        };
        let tls = match (&wanted.certificate, &wanted.key) {
            (Some(certificate), Some(key)) => Some(Tls::read(Path::new(&certificate.text()), Path::new(&key.text()))?),
            _ => None,
        };
        Ok((listener.map_err(unable)?, tls))
    }
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
