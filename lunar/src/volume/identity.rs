//! Who a volume is, for ever: initiators find their disks again by it, and join the paths that lead to one.
//! Two volumes with one identity are one disk to them, and they write to whichever they like; so wherever there
//! is a choice, it is for an identity too many.

use lunar_block::Mark as BlockMark;
use lunar_control::model::identity_of;
use lunar_control::names::Uuid;
use lunar_core::unit::Identity;
use lunar_file::mark::Mark;
use sha2::{Digest, Sha256};
use std::path::Path;

/// A volume that lives in this process only.
pub(crate) fn of_memory(spec: &str, index: usize) -> Identity {
    build(derived(&["memory", &machine(), spec, &index.to_string()]))
}

/// A volume in a file.
pub(crate) fn of_file(mark: &Mark) -> Identity {
    match mark {
        Mark::Kept(number) => build(Uuid::of_version(4, *number)),
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
    revision(env!("CARGO_PKG_VERSION")).to_owned()
}

/// The identity that goes with a UUID.
fn build(uuid: Uuid) -> Identity {
    identity_of(uuid, revision(env!("CARGO_PKG_VERSION")))
}

/// Major and minor version: a revision has four characters.
fn revision(version: &str) -> &str {
    version.match_indices('.').nth(1).map_or(version, |(at, _)| &version[..at])
}

/// A UUID of version 8 (RFC 9562 5.8): a digest of what does not change.
fn derived(parts: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.finalize()[..16]);
    Uuid::of_version(8, uuid)
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
        let identity = build(Uuid::of_version(4, [0xff; 16]));
        assert_eq!(identity.serial, "ffffffffffff4fffbfffffffffffffff");
        assert_eq!(identity.naa, [0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(identity.vendor.len() <= 8 && identity.product.len() <= 16 && identity.revision.len() <= 4);
        assert_eq!(build(Uuid([0; 16])).naa, [0x30, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn revisions_are_major_and_minor() {
        for (version, wanted) in [("0.1.0", "0.1"), ("1.12.3", "1.12"), ("10.12.3", "10.12"), ("2", "2")] {
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
