//! The process of an image, `lunar-rbd`. Its standard input is its connection to Lunar, so it ends with Lunar, and
//! no other process can be the handler of the image.
//!
//! A daemon cannot start programs from its sandbox: then a [`Starter`] does it.

use super::schema::ImageEncryption;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The program. It is beside that of Lunar.
const PROGRAM: &str = "lunar-rbd";

/// The work of a process that makes something in the cluster, instead of serving its image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The image, of so many bytes.
    Image(u64),
    /// The snapshot, of the image with this identity.
    Snapshot(OsString),
    /// The image, as a clone of this image or snapshot, which has this identity.
    Clone(OsString, OsString),
}

/// The image, and the way to its cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImageAccess {
    /// `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.
    pub image: OsString,
    /// The user; `None`: that of the program.
    pub user: Option<OsString>,
    /// The configuration file of Ceph; `None`: where Ceph looks for it.
    pub config: Option<PathBuf>,
    /// The file with the key of the user; `None`: as the configuration says.
    pub keyring: Option<PathBuf>,
    /// The format of an encrypted image, and the file with its passphrase.
    pub encryption: Option<(ImageEncryption, PathBuf)>,
    /// The process waits while another client has the lock of the image.
    pub stand_by: bool,
    /// The image is not written to, nor locked.
    pub read_only: bool,
    /// The image, snapshot or clone that the process makes, instead of serving the image.
    pub order: Option<Order>,
}

impl ImageAccess {
    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let passphrase = self.encryption.iter().map(|(_, file)| file);
        self.config.iter().chain(&self.keyring).chain(passphrase).map(PathBuf::as_path)
    }

    /// The arguments of the program.
    fn arguments(&self) -> Vec<OsString> {
        let option = |name: &str, value: &OsStr| {
            let mut text = OsString::from(name);
            text.push(value);
            text
        };
        let user = self.user.iter().map(|user| option("--user=", user));
        let config = self.config.iter().map(|file| option("--conf=", file.as_os_str()));
        let keyring = self.keyring.iter().map(|file| option("--keyring=", file.as_os_str()));
        let encryption = self.encryption.iter().flat_map(|(format, file)| {
            [option("--encryption=", format.word().as_ref()), option("--passphrase-file=", file.as_os_str())]
        });
        let stand_by = self.stand_by.then(|| "--stand-by".into());
        let read_only = self.read_only.then(|| "--read-only".into());
        let order = match &self.order {
            None => Vec::new(),
            Some(Order::Image(size)) => vec![OsString::from(format!("--create={size}"))],
            Some(Order::Snapshot(identity)) => vec![option("--identity=", identity)],
            Some(Order::Clone(source, identity)) => {
                vec![option("--clone-of=", source), option("--identity=", identity)]
            }
        };
        // `-`: the connection is the standard input.
        let rest = ["--".into(), "-".into(), self.image.clone()];
        user.chain(config)
            .chain(keyring)
            .chain(encryption)
            .chain(stand_by)
            .chain(read_only)
            .chain(order)
            .chain(rest)
            .collect()
    }

    /// Starts the process, with this end of a connection.
    ///
    /// # Errors
    /// When the program is missing or cannot be started.
    pub fn spawn(&self, connection: OwnedFd) -> io::Result<Child> {
        let program = program()?;
        let mut command = Command::new(&program);
        command
            .args(self.arguments())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // Signals of a terminal are for Lunar, which ends the process.
        command.process_group(0).spawn().map_err(|why| {
            let place = program.display();
            io::Error::new(why.kind(), format!("{place} cannot be started ({why}): install it beside `lunar`"))
        })
    }
}

/// The place of the program.
///
/// # Errors
/// When this process does not know its own program.
pub fn program() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(PROGRAM))
}

/// A process that was started.
#[derive(Debug)]
pub struct Started {
    /// Its number.
    pub id: Pid,
    /// The process, which is readable when it has ended.
    pub handle: OwnedFd,
    /// Its standard error.
    pub errors: OwnedFd,
    /// The child, if it is one of this process.
    pub child: Option<Child>,
}

/// Starts processes for a process that cannot do it.
pub trait Starter: Send + Sync + fmt::Debug {
    /// Starts the process of an image, with this end of a connection.
    ///
    /// # Errors
    /// When the program cannot be started.
    fn start(&self, access: &ImageAccess, connection: OwnedFd) -> io::Result<Started>;

    /// Ends a process that was started, at once.
    fn kill(&self, process: Pid);
}

static STARTER: OnceLock<Box<dyn Starter>> = OnceLock::new();

/// Sets the starter of this process; the first one stays.
pub fn set_starter(starter: Box<dyn Starter>) {
    // A process enters its sandbox once, so it has one.
    let _ = STARTER.set(starter);
}

/// Starts the process of an image.
pub(crate) fn start(access: &ImageAccess, connection: OwnedFd) -> io::Result<Started> {
    if let Some(starter) = STARTER.get() {
        return starter.start(access, connection);
    }
    let mut child = access.spawn(connection)?;
    let id = Pid::from_child(&child);
    let errors = child.stderr.take().ok_or_else(|| io::Error::other("the process has no standard error"))?.into();
    Ok(Started { id, handle: pidfd_open(id, PidfdFlags::empty())?, errors, child: Some(child) })
}

/// Ends a process at once.
pub(crate) fn kill(started: &mut Started) {
    // It may have ended.
    match (&mut started.child, STARTER.get()) {
        (Some(child), _) => drop(child.kill()),
        (None, Some(starter)) => starter.kill(started.id),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_becomes_an_option() {
        let access = ImageAccess {
            image: "--read-only/image".into(),
            user: Some("--conf".into()),
            config: Some("/etc/ceph/a.conf".into()),
            keyring: Some("/k".into()),
            encryption: Some((ImageEncryption::Luks2, "/p".into())),
            stand_by: true,
            read_only: true,
            order: None,
        };
        let files: Vec<_> = access.files().collect();
        assert_eq!(files, ["/etc/ceph/a.conf", "/k", "/p"].map(Path::new));
        let words = ["--user=--conf", "--conf=/etc/ceph/a.conf", "--keyring=/k", "--encryption=luks2"];
        let more = ["--passphrase-file=/p", "--stand-by", "--read-only", "--", "-", "--read-only/image"];
        let words = words.into_iter().chain(more).map(OsString::from);
        assert_eq!(access.arguments(), words.collect::<Vec<_>>());
        let access = ImageAccess { image: "p/i".into(), ..ImageAccess::default() };
        assert_eq!(access.arguments(), ["--", "-", "p/i"].map(OsString::from));
        for (order, options) in [
            (Order::Image(1024), vec!["--create=1024"]),
            (Order::Snapshot("7/2/a".into()), vec!["--identity=7/2/a"]),
            (Order::Clone("--o/i@s".into(), "7/2/a@1".into()), vec!["--clone-of=--o/i@s", "--identity=7/2/a@1"]),
        ] {
            let access = ImageAccess { order: Some(order), ..access.clone() };
            assert_eq!(
                access.arguments()[..options.len()],
                options.into_iter().map(OsString::from).collect::<Vec<_>>()
            );
        }
    }
}
