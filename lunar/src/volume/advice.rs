//! What to do about a volume that cannot be served.

use super::{DISC_BLOCK, Options};
use anyhow::{Result, anyhow, bail};
use lunar_block::Refusal as BlockRefusal;
use lunar_control::value::{Size, Textual};
use lunar_file::Refusal as FileRefusal;
use std::io;
use std::path::Path;

/// Whether a path is where devices are, and not files.
pub(crate) fn in_dev(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// What to say of a disk whose name is that of a CD or DVD.
pub(crate) fn on_name(text: &str) -> Option<String> {
    let is_image = text.len() > 4 && text.is_char_boundary(text.len() - 4) && {
        text[text.len() - 4..].eq_ignore_ascii_case(".iso")
    };
    let plain = !text.starts_with("cd:") && !text.starts_with("removable:");
    (is_image && plain).then(|| format!("{text} is shared as a disk, as asked; did you mean cd:{text}, a CD or DVD?"))
}

/// Refuses a size that is not a whole number of blocks.
pub(crate) fn whole_blocks(text: &str, size: u64, block_size: u32) -> Result<()> {
    if size.is_multiple_of(block_size.into()) {
        return Ok(());
    }
    bail!("{text}: {}", blocks_that_fit(size, block_size))
}

fn blocks_that_fit(size: u64, block_size: u32) -> String {
    if block_size == DISC_BLOCK {
        return format!("{size} bytes are no CD or DVD: its blocks have {DISC_BLOCK} bytes. Is the image complete?");
    }
    let (below, above) =
        (size / u64::from(block_size) * u64::from(block_size), size.next_multiple_of(block_size.into()));
    let mut text = format!("{size} bytes are not a whole number of {block_size}-byte blocks; ");
    if below > 0 {
        text += &format!("{} or ", Size(below).text());
    }
    text += &format!("{} would do", Size(above).text());
    if block_size > 512 && size.is_multiple_of(512) {
        text += ", or --block-size 512";
    }
    text
}

/// The sentence about what a volume keeps besides its data.
pub(crate) fn on_kept(path: &Path) -> String {
    format!("{0} cannot be used; without it, persistent reservations are forgotten: rm -r {0}", path.display())
}

/// The sentence about a file.
pub(crate) fn on_file(path: &Path, why: &FileRefusal, size: Option<u64>, options: &Options) -> anyhow::Error {
    let name = path.display();
    match why {
        FileRefusal::Missing if in_dev(path) => {
            anyhow!("{name}: there is no such device; `lsblk` shows those there are")
        }
        FileRefusal::Missing if options.block_size == DISC_BLOCK => anyhow!("{name} does not exist"),
        FileRefusal::Missing if options.read_only => anyhow!("{name} does not exist, and --read-only makes nothing"),
        FileRefusal::Missing => anyhow!("{name} does not exist; to make it, say how large: {name}:20G"),
        FileRefusal::Gone => anyhow!(
            "its file {name} is gone: is its file system mounted? Nothing is made in its place, for its initiators \
             would find another disk empty. If it shall begin anew, make it: truncate -s {} {name}",
            size.map_or_else(|| "20G".to_owned(), |size| Size(size).text())
        ),
        FileRefusal::NoFolder => anyhow!("{name} {why}; make it first: mkdir -p {}", folder(path).display()),
        FileRefusal::Directory => anyhow!("{name} {why}; name a file in it: {}:20G", path.join("disk.img").display()),
        FileRefusal::NotRegular => anyhow!("{name} {why}"),
        FileRefusal::NotPermitted if !path.exists() => {
            anyhow!("{name} may not be made by this user in {}: choose another folder", folder(path).display())
        }
        FileRefusal::NotPermitted if !options.read_only && is_readable(path) => {
            anyhow!("{name} may not be written by this user: share it with --read-only, or chmod u+w it")
        }
        FileRefusal::NotPermitted => anyhow!("{name} {why}; `ls -l {name}` shows who may"),
        FileRefusal::ReadOnlyFileSystem => anyhow!("{name} {why}: share it with --read-only"),
        FileRefusal::Locked { pid: Some(pid) } => {
            anyhow!("{name} {why}{}: stop that one first, two would destroy each other's data", program(*pid))
        }
        FileRefusal::Locked { pid: None } => anyhow!("{name} {why}: stop that one first"),
        FileRefusal::Empty if options.read_only => anyhow!("{name} {why}: there is nothing to read"),
        FileRefusal::Empty => anyhow!("{name} {why}; say how large it shall be: {name}:20G"),
        FileRefusal::Uneven { size } => anyhow!("{name}: {}", blocks_that_fit(*size, options.block_size)),
        FileRefusal::OtherSize { size: has } => anyhow!(
            "{name} exists with {}, not {}; leave the size out to share it as it is: {name}",
            Size(*has).text(),
            Size(size.unwrap_or(0)).text()
        ),
        FileRefusal::NoDirect => anyhow!("{name} {why}: leave out --direct"),
        FileRefusal::DirectBlocks { needs: 4096 } => {
            anyhow!("{name} {why}: add --block-size 4096, or leave out --direct")
        }
        FileRefusal::DirectBlocks { .. } => anyhow!("{name} {why}: leave out --direct"),
        FileRefusal::Io(why) if why.kind() == io::ErrorKind::FileTooLarge => {
            anyhow!("{name}: its file system has no files of {}", Size(size.unwrap_or(0)).text())
        }
        FileRefusal::Io(why) => anyhow!("{name} cannot be opened: {why}"),
    }
}

/// The same of a file that is configured, and not named on a command line.
pub(crate) fn on_configured(path: &Path, why: &FileRefusal, size: Option<u64>, options: &Options) -> anyhow::Error {
    let name = path.display();
    match why {
        FileRefusal::Missing | FileRefusal::Empty if size.is_none() && !options.read_only => {
            anyhow!("{name} {why}: give it a `size`, and it is made")
        }
        FileRefusal::Directory => anyhow!("{name} {why}; name a file in it: {}", path.join("disk.img").display()),
        FileRefusal::ReadOnlyFileSystem | FileRefusal::NotPermitted => {
            anyhow!("{}{}", on_file(path, why, size, options), crate::jail::of_unit(folder(path)))
        }
        why => on_file(path, why, size, options),
    }
}

/// The sentence about a block device.
pub(crate) fn on_block(path: &Path, why: &BlockRefusal, options: &Options) -> anyhow::Error {
    let name = path.display();
    match why {
        BlockRefusal::NotPermitted if !options.read_only && is_readable(path) => {
            anyhow!("{name} may not be written by this user: share it with --read-only, or as a user who may")
        }
        BlockRefusal::NotPermitted => {
            anyhow!("{name} {why}: run as root, or give this user the right: setfacl -m u:USER:rw {name}")
        }
        BlockRefusal::WriteProtected => anyhow!("{name} {why}: share it with --read-only"),
        BlockRefusal::Busy { by: Some(_) } => anyhow!("{name} {why}. Release it first: what two use, both destroy"),
        BlockRefusal::Busy { by: None } => anyhow!("{name} {why}; `fuser -v {name}` shows which"),
        BlockRefusal::Uneven { size } => anyhow!("{name}: {}", blocks_that_fit(*size, options.block_size)),
        BlockRefusal::NoDirect => anyhow!("{name} {why}: leave out --direct"),
        BlockRefusal::DirectBlocks { needs } => {
            anyhow!("{name} {why}: add --block-size {needs}, or leave out --direct")
        }
        BlockRefusal::NotBlock | BlockRefusal::NoMedium => anyhow!("{name} {why}"),
        BlockRefusal::Io(why) => anyhow!("{name} cannot be opened: {why}"),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn is_readable(path: &Path) -> bool {
    std::fs::File::open(path).is_ok()
}

/// The name of a process, if it can be found out.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim().is_empty() { String::new() } else { format!(" ({})", name.trim()) }
}
