//! Where the socket is, and who users and groups of this machine are.

use std::path::{Path, PathBuf};

/// The socket where a service listens that the system started.
pub const SYSTEM_SOCKET: &str = "/run/lunar/api.sock";

/// Where a service listens that was told no path: in the folder that systemd made for it, as root in `/run/lunar`, else
/// in the user's own runtime folder. `None`: there is no place for it.
#[must_use]
pub fn to_listen() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(folder) = folder("RUNTIME_DIRECTORY") {
        return Some(folder.join("api.sock"));
    }
    match rustix::process::geteuid().is_root() {
        true => Some(SYSTEM_SOCKET.into()),
        false => folder("XDG_RUNTIME_DIR").map(|folder| folder.join("lunar/api.sock")),
    }
}

/// Where a client that was told no path finds it: the user's own service if it runs, else the system's.
#[must_use]
pub fn to_call() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("lunar/api.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// The number of a group: it is one, or `/etc/group` has one of this name.
#[must_use]
pub fn group_number(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| third(Path::new("/etc/group"), |entry| entry[0] == name)?.parse().ok())
}

/// The number of a user: it is one, or `/etc/passwd` has one of this name.
#[must_use]
pub fn user_number(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| third(Path::new("/etc/passwd"), |entry| entry[0] == name)?.parse().ok())
}

/// The name of a group, or its number where `/etc/group` has none.
#[must_use]
pub fn group_name(number: u32) -> String {
    first(Path::new("/etc/group"), number).unwrap_or_else(|| number.to_string())
}

/// The name of a user, or `uid.NUMBER` where `/etc/passwd` has none.
#[must_use]
pub fn user_name(number: u32) -> String {
    first(Path::new("/etc/passwd"), number).unwrap_or_else(|| format!("uid.{number}"))
}

fn third(file: &Path, is_it: impl Fn(&[&str]) -> bool) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>()).filter(|entry| entry.len() > 2);
    entries.find(|entry| is_it(entry)).map(|entry| entry[2].to_owned())
}

fn first(file: &Path, number: u32) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let number = number.to_string();
    let mut entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|entry| entry.get(2) == Some(&number.as_str())).map(|entry| entry[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_root() {
        assert_eq!((user_name(0), group_name(0)), ("root".to_owned(), "root".to_owned()));
        assert_eq!(
            (group_number("root"), group_number("77"), group_number("no such group")),
            (Some(0), Some(77), None)
        );
        assert_eq!((user_number("root"), user_number("no such user")), (Some(0), None));
        assert_eq!(user_name(u32::MAX), "uid.4294967295");
    }
}
