//! Loop devices: a file that backs one has two writers, if it is served as well.

use rustix::fs::Stat;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The block devices of this host.
pub(crate) const BLOCK_DEVICES: &str = "/sys/block";
/// A suffix that the kernel adds to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The writable loop device that this file backs, if there is one.
pub(crate) fn backed_by(devices: &Path, file: &Stat) -> Option<String> {
    std::fs::read_dir(devices).ok()?.flatten().find_map(|device| {
        let name = device.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix('\n').unwrap_or(&backing);
        let found = std::fs::metadata(backing.strip_suffix(DELETED).unwrap_or(backing)).ok()?;
        let is_read_only = std::fs::read_to_string(device.path().join("ro")).is_ok_and(|flag| flag.trim() == "1");
        ((found.dev(), found.ino()) == (file.st_dev, file.st_ino) && !is_read_only).then(|| format!("/dev/{name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_behind_a_writable_loop_device_is_found() {
        let folder = crate::tests::Folder::new("loops");
        let (file, devices) = (folder.file(), folder.file().with_extension("sysfs"));
        fs::write(&file, [7; 512]).expect("a file");
        let stat = rustix::fs::stat(&file).expect("it is there");
        let device = |name: &str, backing: &str, ro: &str| {
            let device = devices.join(name);
            fs::create_dir_all(device.join("loop")).expect("a folder");
            fs::write(device.join("loop/backing_file"), format!("{backing}\n")).expect("a file");
            fs::write(device.join("ro"), ro).expect("a file");
        };
        assert_eq!(backed_by(&devices, &stat), None);
        device("loop0", "/srv/another.img", "0\n");
        device("loop1", &file.display().to_string(), "1\n");
        fs::create_dir_all(devices.join("loop2")).expect("a device that backs nothing");
        assert_eq!(backed_by(&devices, &stat), None);
        device("loop3", &file.display().to_string(), "0\n");
        assert_eq!(backed_by(&devices, &stat).as_deref(), Some("/dev/loop3"));
        fs::remove_dir_all(&devices).expect("our folder");
    }
}
