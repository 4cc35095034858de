//! Control commands, through the reactor.

use crate::life::Kernel;
use crate::wire::{ControlCommand, NO_QUEUE};
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::SgMut;
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request, UblkControl};
use lunar_reactor::op::Handle;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The control device of the kernel, on one core.
pub(super) struct ControlDevice {
    reactor: Reactor,
    handle: Handle,
}

impl ControlDevice {
    /// The control device that was opened.
    ///
    /// # Errors
    /// When the driver of the core gives no such commands.
    pub(super) fn new(reactor: &Reactor, endpoint: Endpoint) -> io::Result<Self> {
        Ok(Self { reactor: reactor.clone(), handle: reactor.attach(endpoint)? })
    }
}

impl Kernel for ControlDevice {
    async fn call(&self, command: ControlCommand, memory: &mut [u8]) -> Result<u32, Fault> {
        let data = match memory.is_empty() {
            true => Data::None,
            false => {
                let mut buf = self.reactor.arena().take(memory.len()).ok_or(Fault::NoMemory)?;
                buf.write(0, memory);
                let mut sg = SgMut::default();
                sg.push(buf);
                Data::In(sg)
            }
        };
        let ControlCommand { number, device, data: value } = command;
        let only_reads = number.only_reads();
        let request = UblkControl { number: number.0, only_reads, device, queue: NO_QUEUE, data: value, path_len: 0 };
        let (command, mut completion) = (Command::new(Request::UblkControl(request), data), Completion::new());
        let (result, back) = self.reactor.command(&self.handle, command, &mut completion).await;
        if let Some(Data::In(filled)) = back.map(|command| command.data) {
            filled.copy_to(0, memory);
        }
        result
    }

    async fn pause(&self, time: Duration) {
        self.reactor.sleep(time).await;
    }

    fn lives(&self, pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn user_of(&self, number: u32) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        user_in(Path::new("/sys/block"), &format!("ublkb{number}"), &mounts, &swaps)
    }
}

/// The user of a disk or of a partition of it, by the folder of block devices, the table of mounts and that of swaps.
fn user_in(blocks: &Path, disk: &str, mounts: &str, swaps: &str) -> Option<String> {
    let whole = blocks.join(disk);
    let parts = fs::read_dir(&whole).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(disk)) && path.join("dev").exists()
    };
    for device in std::iter::once(whole.clone()).chain(parts.filter(is_part)) {
        let name = device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = fs::read_to_string(device.join("dev")).unwrap_or_default();
        // A line is `36 35 98:0 /root /mountpoint options`.
        let place = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(2);
            (words.next()? == number.trim()).then(|| words.nth(1)).flatten()
        });
        if let Some(place) = place {
            return Some(format!("{name} is mounted at {place}"));
        }
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&*format!("/dev/{name}"))) {
            return Some(format!("{name} is swapped to"));
        }
        let holder = fs::read_dir(device.join("holders")).into_iter().flatten().flatten().next();
        if let Some(holder) = holder {
            return Some(format!("{} uses {name}", holder.file_name().to_string_lossy()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_disk_and_of_its_partitions_are_found() {
        let blocks = std::env::temp_dir().join(format!("lunar-ublk-{}", std::process::id()));
        let part = blocks.join("ublkb3/ublkb3p1");
        fs::create_dir_all(part.join("holders")).expect("room");
        fs::write(blocks.join("ublkb3/dev"), "259:4\n").expect("room");
        fs::write(part.join("dev"), "259:5\n").expect("room");
        let user = |mounts: &str, swaps: &str| user_in(&blocks, "ublkb3", mounts, swaps);
        assert_eq!(user("36 35 259:6 / /mnt rw - ext4 /dev/ublkb31 rw", "/dev/ublkb31 partition 1 0 -2"), None);
        assert_eq!(user("36 35 259:5 / /mnt rw - ext4 x rw", "").as_deref(), Some("ublkb3p1 is mounted at /mnt"));
        assert_eq!(user("", "Filename\n/dev/ublkb3 partition").as_deref(), Some("ublkb3 is swapped to"));
        fs::create_dir_all(part.join("holders/dm-0")).expect("room");
        assert_eq!(user("", "").as_deref(), Some("dm-0 uses ublkb3p1"));
        fs::remove_dir_all(&blocks).expect("it is ours");
    }
}
