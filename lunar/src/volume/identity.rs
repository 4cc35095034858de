//! Who a volume is, for ever: initiators find their disks again by it, and join the paths that lead to one.
//! Two volumes with one identity are one disk to them, and they write to whichever they like; so wherever there
//! is a choice, it is for an identity too many.

use lunar_block::Mark as BlockMark;
use lunar_core::unit::Identity;
use lunar_file::mark::Mark;
use sha2::{Digest, Sha256};
use std::path::Path;

/// T10 vendor identification.
const VENDOR: &str = "LUNAR";
/// Product identification: the same for all kinds, so that a volume may change its store and stay what it is.
const PRODUCT: &str = "VOLUME";

/// A volume that lives in this process only.
pub(crate) fn of_memory(spec: &str, index: usize) -> Identity {
    build(derived(&["memory", &machine(), spec, &index.to_string()]))
}

/// A volume in a file.
pub(crate) fn of_file(mark: &Mark) -> Identity {
    match mark {
        Mark::Kept(number) => build(versioned(*number, 4)),
        Mark::Place(place) => build(derived(&["file", &machine(), place])),
    }
}

/// A volume on a block device.
pub(crate) fn of_block(mark: &BlockMark) -> Identity {
    match mark {
        // The same disk seen from two machines is the same disk.
        BlockMark::Named(name) => build(derived(&["device", name])),
        BlockMark::Place(place) => build(derived(&["place", &machine(), place])),
    }
}

/// Who the volume in the file at this path is, if there is one that has been shared before.
pub(crate) fn of_file_at(path: &Path) -> Option<[u8; 16]> {
    lunar_file::mark::at(path).map(|mark| of_file(&mark).uuid)
}

/// Who the volume on the device at this path is.
pub(crate) fn of_device_at(path: &Path) -> Option<[u8; 16]> {
    lunar_block::mark_at(path).map(|mark| of_block(&mark).uuid)
}

/// What volumes have as their revision that are given none.
pub(crate) fn own_revision() -> String {
    revision(env!("CARGO_PKG_VERSION"))
}

/// The identity that goes with a UUID. The serial number is its digits; the locally assigned NAA its last 60 bits,
/// all of which are random.
fn build(uuid: [u8; 16]) -> Identity {
    let digits = u128::from_be_bytes(uuid);
    let naa = 0x3000_0000_0000_0000 | (digits as u64 & 0x0fff_ffff_ffff_ffff);
    Identity {
        vendor: VENDOR.to_owned(),
        product: PRODUCT.to_owned(),
        revision: revision(env!("CARGO_PKG_VERSION")),
        serial: format!("{digits:032x}"),
        uuid,
        naa: naa.to_be_bytes(),
    }
}

/// Major and minor version: a revision has four characters.
fn revision(version: &str) -> String {
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    version[..end].chars().take(4).collect()
}

/// A UUID of version 8 (RFC 9562 5.8): a digest of what does not change.
fn derived(parts: &[&str]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.finalize()[..16]);
    versioned(uuid, 8)
}

/// Puts version and variant (RFC 9562 4.1, 4.2) into sixteen bytes.
fn versioned(mut uuid: [u8; 16], version: u8) -> [u8; 16] {
    uuid[6] = uuid[6] & 0x0f | version << 4;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// What tells this machine from others: its number, or where it has none, as in many containers, its name.
fn machine() -> String {
    let number = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match number.trim() {
        "" | "uninitialized" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        number => number.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_fits_its_fields() {
        let identity = build(versioned([0xff; 16], 4));
        assert_eq!(identity.serial, "ffffffffffff4fffbfffffffffffffff");
        assert_eq!(identity.naa, [0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(identity.vendor.len() <= 8 && identity.product.len() <= 16 && identity.revision.len() <= 4);
        assert_eq!(build([0; 16]).naa, [0x30, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn revisions_are_major_and_minor() {
        for (version, wanted) in [("0.1.0", "0.1"), ("1.12.3", "1.12"), ("10.12.3", "10.1"), ("2", "2")] {
            assert_eq!(revision(version), wanted);
        }
    }

    #[test]
    fn what_differs_differs() {
        let all = [
            of_memory("ram:1G", 0),
            of_memory("ram:1G", 1),
            of_memory("null:1G", 0),
            of_file(&Mark::Place("1 2 /a".into())),
            of_file(&Mark::Kept([7; 16])),
            of_file(&Mark::Kept([8; 16])),
            of_block(&BlockMark::Named("1 2 /a".into())),
            of_block(&BlockMark::Place("1 2 /a".into())),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert!(one.serial != other.serial && one.naa != other.naa && one.uuid != other.uuid);
            }
        }
        assert_eq!(of_memory("ram:1G", 0), of_memory("ram:1G", 0));
    }

    #[test]
    fn identities_never_change() {
        // If this fails, every initiator out there sees new disks after the next update.
        assert_eq!(of_block(&BlockMark::Named("wwid x".into())).serial, "582ae796498383c491bb9db19db53886");
        let kept = Mark::Kept([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(of_file(&kept).serial, "000102030405460788090a0b0c0d0e0f");
    }
}
