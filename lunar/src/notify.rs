//! Notifications of the service to the service manager (sd_notify(3)): ready, reloading, stopping, and the watchdog of
//! the cores. Without `NOTIFY_SOCKET`, nothing is sent.

use lunar_engine::core_set::cores::Cores;
use rustix::time::{ClockId, clock_gettime};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The connection to the manager. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Notify {
    socket: Option<Arc<UnixDatagram>>,
    /// The watchdog timeout of the manager.
    patience: Option<Duration>,
}

impl Notify {
    /// The manager in the environment (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`). Called before the
    /// confinement.
    #[must_use]
    pub fn from_environment() -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_meant = number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
        let patience = number("WATCHDOG_USEC").filter(|_| is_meant).map(Duration::from_micros);
        let name = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        Self { socket: connected(name.as_bytes()).map(Arc::new), patience }
    }

    /// The service is ready.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=");
    }

    /// The service reloads its file, until it is ready again.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1000));
    }

    /// The present work, for `systemctl status`.
    pub fn status(&self, words: &str) {
        self.tell(&format!("STATUS={}", words.replace('\n', " ")));
    }

    /// It stops.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, what: &str) {
        // A failed send is ignored: the manager has gone.
        let _ = self.socket.as_ref().map(|socket| socket.send(what.as_bytes()));
    }

    /// Sends watchdog notifications while all of these cores answer, if the manager asks for them. A core never blocks,
    /// so a core that does not answer hangs.
    pub(crate) fn watch(&self, cores: &Cores) -> Option<Watch> {
        let (notify, cores, every) = (self.clone(), cores.clone(), self.patience? / 3);
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let asked: Vec<_> =
                    (0..cores.count()).map(|core| cores.ask(core, |_| std::future::ready(()))).collect();
                if asked.into_iter().all(|answer| answer.wait_for(every).is_some()) {
                    notify.tell("WATCHDOG=1");
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(watch).ok()?;
        Some(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

/// The watchdog thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        // A panic of the thread was reported already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A socket to this name: a path, or an abstract one that begins with `@`.
fn connected(name: &[u8]) -> Option<UnixDatagram> {
    let address = match name {
        [] => return None,
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        name => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(name))),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect_addr(&address.ok()?).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 200];
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it is one");
        let length = socket.recv(&mut bytes).expect("it is told");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn the_manager_is_told_by_a_path_or_an_abstract_name() {
        let name = format!("lunar-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("a socket");
        for (manager, name) in [(by_path, path.display().to_string()), (by_name, format!("@{name}"))] {
            let socket = connected(name.as_bytes()).map(Arc::new);
            let notify = Notify { socket, patience: None };
            notify.ready();
            assert_eq!(heard(&manager), "READY=1\nSTATUS=");
            notify.status("waiting for volume disk:\nit is away");
            assert_eq!(heard(&manager), "STATUS=waiting for volume disk: it is away");
            notify.reloading();
            let said = heard(&manager);
            let time = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|time| time.parse::<u64>().ok());
            assert!(time.is_some_and(|time| time > 0), "{said}");
            notify.stopping();
            assert_eq!(heard(&manager), "STOPPING=1");
        }
        std::fs::remove_file(path).expect("it is ours");
        Notify::default().ready();
    }
}
