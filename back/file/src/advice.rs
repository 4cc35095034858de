//! Advice to the operator about a file that cannot be a volume.

use crate::open::Refusal as FileRefusal;
use lunar_control::files::{self, Access};
use lunar_control::value::{Size, Textual};
use lunar_engine::backend::{Refusal, StoreRequest};
use lunar_engine::origin::Origin;
use lunar_engine::service_unit;
use std::io;
use std::path::Path;

/// Whether a path is where devices are, and not files.
pub(crate) fn in_dev(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// The sentence about a file.
pub(crate) fn sentence(path: &Path, why: &FileRefusal, request: &StoreRequest<'_>) -> Refusal {
    let name = path.display();
    let StoreRequest { origin, read_only, size, .. } = *request;
    let is_configured = !origin.is_command_line();
    let text = match why {
        FileRefusal::Missing if in_dev(path) => {
            format!("{name}: there is no such device; `lsblk` shows those there are")
        }
        FileRefusal::Missing if request.is_disc => format!("{name} does not exist"),
        FileRefusal::Missing if read_only => {
            format!("{name} does not exist, and with {} no file is made", origin.option("read-only"))
        }
        FileRefusal::Missing | FileRefusal::Empty if is_configured && size.is_none() && !read_only => {
            format!("{name} {why}: give it a `size`, and it is made")
        }
        FileRefusal::Missing => format!("{name} does not exist; to make it, say how large: {name}:20G"),
        FileRefusal::Gone => gone(path, size),
        FileRefusal::NoFolder => format!("{name} {why}; make it first: mkdir -p {}", folder(path).display()),
        FileRefusal::Directory => {
            let size = if is_configured { "" } else { ":20G" };
            format!("{name} {why}; name a file in it: {}{size}", path.join("disk.img").display())
        }
        FileRefusal::NotPermitted => not_permitted(path, why, request),
        FileRefusal::ReadOnlyFileSystem => {
            format!("{name} {why}: {}{}", origin.serve_read_only(), of_unit(path, origin))
        }
        FileRefusal::Locked { pid: Some(pid) } => {
            format!("{name} {why}{}: stop that one first, two would destroy each other's data", program(*pid))
        }
        FileRefusal::Locked { pid: None } => format!("{name} {why}: stop that one first"),
        FileRefusal::Looped { device } => format!(
            "{name} {why}: unmount and detach it first (losetup -d {device}): two writers destroy the data. Or {}",
            origin.serve_read_only()
        ),
        FileRefusal::Empty if read_only => format!("{name} {why}: there is nothing to read"),
        FileRefusal::Empty => format!("{name} {why}; say how large it shall be: {name}:20G"),
        FileRefusal::Uneven { size } => format!("{name}: {}", request.sizes_that_fit(*size)),
        FileRefusal::OtherSize { size: has } => format!(
            "{name} exists with {}, not {}; leave the size out to serve it as it is: {name}",
            Size(*has).text(),
            Size(size.unwrap_or(0)).text()
        ),
        FileRefusal::DirectBlocks { needs: 4096 } => {
            let (larger, direct) = (origin.value("block-size", "4096"), origin.option("direct"));
            format!("{name} {why}: add {larger}, or leave out {direct}")
        }
        FileRefusal::NoDirect | FileRefusal::DirectBlocks { .. } => {
            format!("{name} {why}: leave out {}", origin.option("direct"))
        }
        FileRefusal::Io(why) if why.kind() == io::ErrorKind::FileTooLarge => {
            format!("{name}: its file system has no files of {}", Size(size.unwrap_or(0)).text())
        }
        FileRefusal::Io(why) => format!("{name} cannot be opened: {why}"),
        FileRefusal::NotRegular => format!("{name} {why}"),
    };
    Refusal::new(text)
}

fn gone(path: &Path, size: Option<u64>) -> String {
    let name = path.display();
    let size = size.map_or_else(|| "20G".to_owned(), |size| Size(size).text());
    format!(
        "its file {name} is gone: is its file system mounted? Nothing is made in its place, for its initiators would \
         find another disk empty. If it shall begin anew, make it: truncate -s {size} {name}"
    )
}

fn not_permitted(path: &Path, why: &FileRefusal, request: &StoreRequest<'_>) -> String {
    let (name, origin) = (path.display(), request.origin);
    let advice = if !path.exists() {
        format!("{name} may not be made by this user in {}: choose another folder", folder(path).display())
    } else if !request.read_only && files::open(path, Access::Read).is_ok() {
        format!("{name} may not be written by this user: {}, or chmod u+w it", origin.serve_read_only())
    } else {
        format!("{name} {why}; `ls -l {name}` shows who may")
    };
    advice + &of_unit(path, origin)
}

/// The unit of the service protects folders from writes; a command line has no unit.
fn of_unit(path: &Path, origin: &Origin) -> String {
    match origin {
        Origin::CommandLine(_) => String::new(),
        Origin::Configuration => service_unit::write_advice(folder(path)),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The name of a process, if it is known.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim().is_empty() { String::new() } else { format!(" ({})", name.trim()) }
}
