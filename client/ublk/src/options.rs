//! The command line of `lunar ublk-server`.

use clap::Args;
use std::path::PathBuf;

/// The options.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The socket of a disk that Lunar serves over vhost-user, such as /run/lunar/vhost/NAME.sock for [vhost.NAME]
    #[arg(value_name = "SOCKET", required_unless_present_any = ["owner", "remove"])]
    pub socket: Option<PathBuf>,
    /// Name of the disk: a start with the same name takes over the disk that a killed process has left [default: that
    /// of the socket]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// N of /dev/ublkbN [default: the lowest that is free]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=255))]
    pub number: Option<u32>,
    /// Queues of the disk; [vhost.NAME] has at least as many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// Requests in progress in each queue
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Make or replace a symbolic link to the disk at this path
    #[arg(long, value_name = "PATH")]
    pub link: Option<PathBuf>,
    /// For the rules of udev: print the user and the group that own the disk of an unprivileged process, /dev/ublkbN
    #[arg(long, value_name = "N", exclusive = true)]
    pub owner: Option<u32>,
    /// Remove /dev/ublkbN, which a process of Lunar has left, as root; requests that wait in it fail
    #[arg(long, value_name = "N", exclusive = true)]
    pub remove: Option<u32>,
}

/// The most bytes of a name, as for disks of the configuration.
const NAME_MAX: usize = lunar_ublk::schema::NAME_MAX;

fn name(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    match is_plain && (1..=NAME_MAX).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(format!("the name of a disk has letters, digits, '-', '_' and '.', {NAME_MAX} at most")),
    }
}

impl Options {
    /// The name of the disk.
    #[must_use]
    pub fn name(&self) -> String {
        let stem = self.socket.as_ref().and_then(|socket| socket.file_stem());
        let stem = || stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        self.name.clone().unwrap_or_else(stem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        let command = Options::augment_args(Command::new("ublk"));
        Options::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    #[test]
    fn a_disk_has_the_name_of_its_socket() {
        let options = parsed("ublk-server /run/lunar/vhost/data.sock --depth 16").expect("right");
        assert_eq!((options.name(), options.queues, options.depth), ("data".to_owned(), 1, 16));
        assert_eq!(parsed("ublk x.sock --name a.b").expect("right").name(), "a.b");
        assert_eq!(parsed("ublk --owner 3").expect("right").owner, Some(3));
        for wrong in ["ublk", "ublk x --name a/b", "ublk x --depth 0", "ublk x --owner 3", "ublk x --number 256"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
