//! `lunar ublk-server`: the process of a disk of this machine, in a sandbox of its own.

use crate::jail::{self, Paths};
use anyhow::{Context, Result};
use lunar_reactor::endpoint::ublk::owner;
use lunar_reactor::log;
use lunar_reactor::log::Severity;
use lunar_ublk::wire::disk_at;
use lunar_ublk_server::{Options, ServerError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// Why there is no disk.
pub fn run(options: &Options) -> Result<()> {
    if let Some(number) = options.owner {
        let (user, group) = owner(number).with_context(|| disk_at(number))?.ok_or(ServerError::Privileged(number))?;
        writeln!(io::stdout(), "{user} {group}")?;
        return Ok(());
    }
    if let Some(number) = options.remove {
        return Ok(lunar_ublk_server::serve::remove(number)?);
    }
    log::set_up(Severity::Info, log::text_format());
    jail::forbid_core_dumps()?;
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, signalled.try_clone()?)?;
    }
    jail::shut(paths(options))?;
    Ok(lunar_ublk_server::run(options, stop.into())?)
}

/// The allowed paths. The kernel makes the node of a device when the device is made, so the folder is allowed, for
/// opening devices alone.
fn paths(options: &Options) -> Paths {
    let folder = |path: &Path| path.parent().map(Path::to_owned);
    let socket = options.socket.as_deref().and_then(folder);
    Paths {
        read: ["/proc", "/sys"].map(Into::into).into_iter().chain(socket).collect(),
        devices: vec!["/dev".into()],
        links: options.link.as_deref().and_then(folder).into_iter().collect(),
        ..Paths::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_few_paths() {
        let options = Options {
            socket: Some("/run/lunar/vhost/data.sock".into()),
            link: Some("/run/disks/data".into()),
            ..Options::default()
        };
        let paths = paths(&options);
        assert!(paths.write.is_empty() && paths.keep.is_empty() && !paths.loads_programs);
        assert_eq!(paths.read, ["/proc", "/sys", "/run/lunar/vhost"].map(Path::new));
        assert_eq!((paths.devices, paths.links), (vec!["/dev".into()], vec!["/run/disks".into()]));
    }
}
