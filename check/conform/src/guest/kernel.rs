//! Unpacks a compressed kernel image once, which an emulated processor would take seconds for at each boot.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::modules::uncompressed;

/// Offsets in the image's header of the number of setup sectors, of the magic number, of the payload's offset and of
/// its length (x86 boot protocol 2.08).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// The compression formats: magic number, file extension, and how many bytes the build appends to the payload (the
/// unpacked length, where the format does not end with it).
const COMPRESSIONS: [(&[u8], &str, usize); 3] =
    [(b"\xfd7zXZ\0", "xz", 4), (b"\x28\xb5\x2f\xfd", "zst", 4), (b"\x1f\x8b", "gz", 0)];
/// The header of the ELF note by which an unpacked kernel can be booted: name "Xen", type 18 (PVH entry), a value of 4
/// or 8 bytes.
const XEN_ENTRY_NOTES: [&[u8]; 2] = [b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0", b"\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0"];

/// The file name of an unpacked kernel.
pub(super) const UNPACKED: &str = "vmlinux";

/// Unpacks `image` into the file `UNPACKED` of `folder`, which is complete if it exists.
///
/// # Errors
///
/// An image of an unknown format, or a kernel that emulators cannot boot unpacked.
pub(super) fn unpack(image: &Path, folder: &Path) -> Result<()> {
    let bytes = std::fs::read(image).with_context(|| format!("{}", image.display()))?;
    let (payload, extension) = payload(&bytes)?;
    let packed = folder.join(format!("{UNPACKED}.{extension}"));
    std::fs::write(&packed, payload)?;
    let kernel = uncompressed(&packed);
    std::fs::remove_file(&packed)?;
    let kernel = kernel?;
    let starts = XEN_ENTRY_NOTES.iter().any(|entry| kernel.windows(entry.len()).any(|window| window == *entry));
    ensure!(starts, "{} has no PVH entry, so it cannot be booted unpacked", image.display());
    // Rename the complete file, so that no guest boots a kernel that was cut short by a full disk.
    let part = folder.join(format!("{UNPACKED}.part"));
    std::fs::write(&part, kernel)?;
    Ok(std::fs::rename(part, folder.join(UNPACKED))?)
}

/// Returns the compressed kernel in an image and the extension of its format.
fn payload(image: &[u8]) -> Result<(&[u8], &'static str)> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4).context("the image is too short")?;
        Ok::<usize, anyhow::Error>(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    ensure!(image.get(MAGIC.0..).is_some_and(|rest| rest.starts_with(MAGIC.1)), "the file is not a kernel image");
    let sectors = image.get(SETUP_SECTORS).copied().map_or(0, usize::from);
    // The boot protocol defines zero as four.
    let sectors = if sectors == 0 { 4 } else { sectors };
    let start = (sectors + 1) * SECTOR + word(PAYLOAD_OFFSET)?;
    let all = image.get(start..start + word(PAYLOAD_LENGTH)?).context("the image ends before its kernel does")?;
    let compression =
        COMPRESSIONS.iter().find(|(begin, ..)| all.starts_with(begin)).context("its compression format is unknown")?;
    let end = all.len().checked_sub(compression.2).context("the kernel is too short")?;
    Ok((&all[..end], compression.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_found_by_the_header_and_bad_images_are_refused() {
        let mut image = vec![0; 4096];
        image[SETUP_SECTORS] = 1;
        image[MAGIC.0..MAGIC.0 + 4].copy_from_slice(MAGIC.1);
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&10_u32.to_le_bytes());
        image[1040..1050].copy_from_slice(b"\x28\xb5\x2f\xfdab\x09\0\0\0");
        assert_eq!(payload(&image).unwrap(), (&b"\x28\xb5\x2f\xfdab"[..], "zst"));
        // An unknown format, a payload beyond the end, a file that ends in the header, and no magic number.
        image[1040] = 0;
        assert!(payload(&image).is_err());
        image[PAYLOAD_LENGTH + 2] = 1;
        assert!(payload(&image).is_err());
        assert!(payload(&image[..0x210]).is_err());
        image[MAGIC.0] = 0;
        assert!(payload(&image).is_err());
    }
}
