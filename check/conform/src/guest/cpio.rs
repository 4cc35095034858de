//! Writer of the archive that a kernel unpacks as its initramfs: format "newc" as in
//! Documentation/driver-api/early-userspace of the Linux kernel.

use std::io::{Result, Write};
use std::path::Path;

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// The name of an archive's last entry.
const TRAILER: &str = "TRAILER!!!";

/// Writes entries in the order of the calls; folders must precede their contents.
pub(crate) struct Archive<W> {
    out: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, entries: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) -> Result<()> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, data: &[u8]) -> Result<()> {
        self.entry(name, FILE | permissions, (0, 0), data)
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name, LINK | 0o777, (0, 0), target.as_bytes())
    }

    pub(crate) fn character_device(&mut self, name: &str, major: u32, minor: u32) -> Result<()> {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Adds a folder of this machine with its files, as executables, and its folders.
    pub(crate) fn folder(&mut self, name: &str, source: &Path) -> Result<()> {
        self.directory(name)?;
        let mut files: Vec<_> = std::fs::read_dir(source)?.collect::<Result<_>>()?;
        files.sort_by_key(std::fs::DirEntry::file_name);
        for file in files {
            let (kind, name) = (file.file_type()?, format!("{name}/{}", file.file_name().to_string_lossy()));
            if kind.is_file() {
                self.file(&name, 0o755, &std::fs::read(file.path())?)?;
            } else if kind.is_dir() {
                self.folder(&name, &file.path())?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> Result<()> {
        self.entries += 1;
        let too_big = |_| std::io::Error::other(format!("{name} is too big for the archive"));
        let size = u32::try_from(data.len()).map_err(too_big)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_big)?;
        // Inode, mode, owner, group, links, time, size, device of the file system (2), device number (2), name size,
        // checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08x}"));
        }
        head.push_str(name);
        head.push('\0');
        self.out.write_all(head.as_bytes())?;
        self.pad(head.len())?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, length: usize) -> Result<()> {
        self.out.write_all(&[0; 3][..length.next_multiple_of(4) - length])
    }

    pub(crate) fn finish(mut self) -> Result<W> {
        self.entry(TRAILER, 0, (0, 0), &[])?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_data_are_padded_to_four_bytes() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("a").unwrap();
        archive.file("a/b", 0o644, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let starts: Vec<usize> = (0..bytes.len() - 6).filter(|at| &bytes[*at..at + 6] == b"070701").collect();
        // Header 110 + "a\0" = 112; header 110 + "a/b\0" = 114, padded 116, and 5 bytes padded to 8.
        assert_eq!(starts, [0, 112, 112 + 116 + 8]);
        assert_eq!(&bytes[112 + 116..112 + 121], b"hello");
    }
}
