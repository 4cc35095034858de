//! The default paths of the API socket, and the users and groups of this host.

use std::path::{Path, PathBuf};

/// The socket of the system's service.
pub const SYSTEM_SOCKET: &str = "/run/lunar/api.sock";

/// The default path for a daemon: in the folder that systemd created for it, for root in `/run/lunar`, otherwise in the
/// runtime folder of the user. `None` if there is no such folder.
#[must_use]
pub fn daemon_socket() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(folder) = folder("RUNTIME_DIRECTORY") {
        return Some(folder.join("api.sock"));
    }
    match rustix::process::geteuid().is_root() {
        true => Some(SYSTEM_SOCKET.into()),
        false => folder("XDG_RUNTIME_DIR").map(|folder| folder.join("lunar/api.sock")),
    }
}

/// The default path for a client: the socket of the user's own daemon if it exists, otherwise of the system's service.
#[must_use]
pub fn client_socket() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("lunar/api.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// The ID of a group that is given by number or by its name in `/etc/group`.
#[must_use]
pub fn group_number(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| field_3(Path::new("/etc/group"), |entry| entry[0] == name)?.parse().ok())
}

/// The ID of a user that is given by number or by its name in `/etc/passwd`.
#[must_use]
pub fn user_number(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| field_3(Path::new("/etc/passwd"), |entry| entry[0] == name)?.parse().ok())
}

/// The name of a group, or its ID if `/etc/group` does not contain it.
#[must_use]
pub fn group_name(number: u32) -> String {
    name_of(Path::new("/etc/group"), number).unwrap_or_else(|| number.to_string())
}

/// The name of a user, or `uid.NUMBER` if `/etc/passwd` does not contain it.
#[must_use]
pub fn user_name(number: u32) -> String {
    name_of(Path::new("/etc/passwd"), number).unwrap_or_else(|| format!("uid.{number}"))
}

fn field_3(file: &Path, matches: impl Fn(&[&str]) -> bool) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>()).filter(|entry| entry.len() > 2);
    entries.find(|entry| matches(entry)).map(|entry| entry[2].to_owned())
}

fn name_of(file: &Path, number: u32) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let number = number.to_string();
    let mut entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|entry| entry.get(2) == Some(&number.as_str())).map(|entry| entry[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!((user_name(0), group_name(0)), ("root".to_owned(), "root".to_owned()));
        assert_eq!(
            (group_number("root"), group_number("77"), group_number("no such group")),
            (Some(0), Some(77), None)
        );
        assert_eq!((user_number("root"), user_number("no such user")), (Some(0), None));
        assert_eq!(user_name(u32::MAX), "uid.4294967295");
    }
}
