//! A kernel's image without its wrapping: what an emulated processor would take seconds to unpack at each start.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::modules::uncompressed;

/// Where the image's header has the number of sectors before the kernel proper, where it lies from there, and how long
/// it is (the boot protocol of x86, 2.08).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const PAYLOAD: usize = 0x248;
const LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// How the ways to compress it begin, what files of them are called, and how much of the payload is not theirs: the
/// build appends the unpacked length where the format does not end with it.
const WAYS: [(&[u8], &str, usize); 3] =
    [(b"\xfd7zXZ\0", "xz", 4), (b"\x28\xb5\x2f\xfd", "zst", 4), (b"\x1f\x8b", "gz", 0)];
/// What a kernel has that can be started unpacked: the head of a note of Xen's, of type 18 with a word of 4 or 8 bytes.
const ENTRY: [&[u8]; 2] = [b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0", b"\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0"];

/// What an unpacked kernel is called in the folder of its tree.
pub(super) const UNPACKED: &str = "vmlinux";

/// Unpacks `image` into a file of `folder`, which is there whole or not at all.
///
/// # Errors
///
/// An image that is made in another way, or that emulators cannot start unpacked.
pub(super) fn unpack(image: &Path, folder: &Path) -> Result<()> {
    let bytes = std::fs::read(image).with_context(|| format!("{}", image.display()))?;
    let (payload, ending) = payload(&bytes)?;
    let packed = folder.join(format!("{UNPACKED}.{ending}"));
    std::fs::write(&packed, payload)?;
    let kernel = uncompressed(&packed);
    std::fs::remove_file(&packed)?;
    let kernel = kernel?;
    let starts = ENTRY.iter().any(|entry| kernel.windows(entry.len()).any(|window| window == *entry));
    ensure!(starts, "{} has no entry for a start without its wrapping", image.display());
    // A disk that is full in the middle leaves none that guests would start.
    let part = folder.join(format!("{UNPACKED}.part"));
    std::fs::write(&part, kernel)?;
    Ok(std::fs::rename(part, folder.join(UNPACKED))?)
}

/// The compressed kernel in an image, and the ending of its format.
fn payload(image: &[u8]) -> Result<(&[u8], &'static str)> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4).context("the image is too short")?;
        Ok::<usize, anyhow::Error>(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    ensure!(image.get(MAGIC.0..).is_some_and(|rest| rest.starts_with(MAGIC.1)), "this is no image of a kernel");
    let sectors = image.get(SETUP_SECTORS).copied().map_or(0, usize::from);
    // Zero is four, since always.
    let sectors = if sectors == 0 { 4 } else { sectors };
    let start = (sectors + 1) * SECTOR + word(PAYLOAD)?;
    let all = image.get(start..start + word(LENGTH)?).context("the image ends before its kernel does")?;
    let way = WAYS.iter().find(|(begin, ..)| all.starts_with(begin)).context("it is compressed in an unknown way")?;
    let end = all.len().checked_sub(way.2).context("the kernel is too short")?;
    Ok((&all[..end], way.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_what_the_header_says() {
        let mut image = vec![0; 4096];
        image[SETUP_SECTORS] = 1;
        image[MAGIC.0..MAGIC.0 + 4].copy_from_slice(MAGIC.1);
        image[PAYLOAD..PAYLOAD + 4].copy_from_slice(&16_u32.to_le_bytes());
        image[LENGTH..LENGTH + 4].copy_from_slice(&10_u32.to_le_bytes());
        image[1040..1050].copy_from_slice(b"\x28\xb5\x2f\xfdab\x09\0\0\0");
        assert_eq!(payload(&image).unwrap(), (&b"\x28\xb5\x2f\xfdab"[..], "zst"));
        // A format that nobody knows, a kernel beyond the end, and no kernel at all.
        image[1040] = 0;
        assert!(payload(&image).is_err());
        image[LENGTH + 2] = 1;
        assert!(payload(&image).is_err());
        assert!(payload(&image[..0x210]).is_err());
        image[MAGIC.0] = 0;
        assert!(payload(&image).is_err());
    }
}
