//! The API as a part of what runs: its sockets and tokens change with the configuration, while it runs.

use crate::desk::Desk;
use crate::listen::{Listener, Thread, Tls};
use crate::place;
use crate::rights::{Door, Tokens};
use crate::server::State;
use crate::work::Common;
use lunar_control::apply::Running;
use lunar_control::check::Checked;
use lunar_control::config::Kind;
use lunar_control::model::ApiListener;
use lunar_control::plan::{Action, Change};
use lunar_control::value::Textual;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    remote: BTreeMap<String, (SocketAddr, TcpListener)>,
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

/// A step that is ready to be made.
#[derive(Debug)]
pub enum Ready {
    /// Nothing of it is the API's.
    Nothing,
    /// Another socket, and whom it lets in.
    Socket(Box<NewSocket>),
    /// Other tokens.
    Tokens(Tokens),
    /// A listener that comes, or changes.
    Listener(String, SocketAddr, TcpListener, Option<Tls>),
    /// A listener that goes.
    Gone(String),
}

/// A socket that listens, and is not served: under a name of its own until it takes its place.
#[derive(Debug)]
pub struct NewSocket {
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
        Ok(Self { state, thread, socket: None, remote: BTreeMap::new() })
    }

    /// Opens the socket where the configuration says nothing else about it. To be called when the first configuration
    /// is in force.
    ///
    /// # Errors
    /// Why it cannot be opened, in words that say what to do.
    pub fn open_socket(&mut self, checked: &Checked) -> Result<(), String> {
        if self.socket.is_none() {
            let new = self.bind_socket(checked)?;
            self.serve_socket(new);
        }
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
        self.remote.get(listener)?.1.local_addr().ok()
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
    fn bind_socket(&self, checked: &Checked) -> Result<NewSocket, String> {
        let wanted = &checked.config.api;
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
        let there = self.remote.values().find(|(known, _)| *known == address);
        let listener = match there {
            Some((_, listener)) => listener.try_clone(),
            None => TcpListener::bind(address),
        };
        let tls = match (&wanted.certificate, &wanted.key) {
            (Some(certificate), Some(key)) => Some(Tls::read(Path::new(&certificate.text()), Path::new(&key.text()))?),
            _ => None,
        };
        Ok((listener.map_err(unable)?, tls))
    }
}

impl Running for Api {
    type Prepared = Ready;

    fn prepare(&mut self, change: &Change, wanted: &Checked) -> Result<Ready, String> {
        let name = &change.object.name;
        Ok(match (change.object.kind, &change.action) {
            (Kind::Api, _) => Ready::Socket(Box::new(self.bind_socket(wanted)?)),
            (Kind::ApiToken, _) => Ready::Tokens(Tokens::of(wanted)),
            (Kind::ApiListener, Action::Remove) => Ready::Gone(name.clone()),
            (Kind::ApiListener, _) => {
                let listener = wanted.config.api_listeners.get(name);
                let listener = listener.ok_or_else(|| format!("there is no API listener {name}"))?;
                let (socket, tls) = self.bind(listener)?;
                Ready::Listener(name.clone(), listener.address.0, socket, tls)
            }
            _ => Ready::Nothing,
        })
    }

    fn commit(&mut self, _: &Change, prepared: Ready) {
        match prepared {
            Ready::Nothing => {}
            Ready::Socket(new) => self.serve_socket(*new),
            Ready::Tokens(tokens) => self.state.change_door(|door| door.tokens = tokens),
            Ready::Listener(name, address, listener, tls) => {
                // A second handle keeps the address for whoever takes it over.
                if let Ok(handle) = listener.try_clone() {
                    self.remote.insert(name.clone(), (address, handle));
                }
                self.thread.open(&name, Listener::Remote(listener, tls));
            }
            Ready::Gone(name) => {
                self.remote.remove(&name);
                self.thread.close(&name);
            }
        }
    }

    fn roll_back(&mut self, _: &Change, prepared: Ready) {
        drop(prepared);
    }
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
