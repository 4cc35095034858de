//! The identity of a volume: initiators recognize disks by it, and join the paths that lead to one disk.
//!
//! Two volumes with one identity are one disk with two paths to a multipath initiator, which then writes to either. So
//! wherever it is uncertain whether two volumes are the same, they get different identities.

use crate::backend::Mark;
use lunar_control::common_sections::identity_of;
use lunar_control::names::Uuid;
use lunar_core::unit::Identity;
use sha2::{Digest, Sha256};

/// The identity of a volume that exists in this process only: of the volume at this position of the command line with
/// this text.
pub(crate) fn of_process(text: &str, position: usize) -> Identity {
    let parts = vec![text.to_owned(), position.to_string()];
    of_mark(&Mark::Local { space: "memory", parts })
}

/// The identity of the volume with this mark.
#[must_use]
pub fn of_mark(mark: &Mark) -> Identity {
    of_uuid(uuid_of(mark))
}

/// The UUID of the volume with this mark.
#[must_use]
pub fn uuid_of(mark: &Mark) -> Uuid {
    match mark {
        Mark::Number(number) => Uuid::of_version(4, *number),
        // A disk that two servers see is one disk.
        Mark::Global { space, name } => derived(&[space, name]),
        Mark::Local { space, parts } => {
            let server = server();
            let parts = parts.iter().map(String::as_str);
            derived(&[*space, &server].into_iter().chain(parts).collect::<Vec<_>>())
        }
    }
}

/// The revision of volumes for which the configuration gives none.
#[must_use]
pub fn own_revision() -> String {
    revision(env!("CARGO_PKG_VERSION")).to_owned()
}

/// The identity that follows from a UUID.
fn of_uuid(uuid: Uuid) -> Identity {
    identity_of(uuid, revision(env!("CARGO_PKG_VERSION")))
}

/// Major and minor version: a revision has four characters.
fn revision(version: &str) -> &str {
    version.match_indices('.').nth(1).map_or(version, |(at, _)| &version[..at])
}

/// A UUID of version 8 (RFC 9562 5.8): a digest of parts that do not change.
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

/// The machine ID of this server; the host name where there is none, as in many containers.
fn server() -> String {
    let number = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match number.trim() {
        "" | "uninitialized" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        number => number.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(space: &'static str, place: &str) -> Mark {
        Mark::Local { space, parts: vec![place.to_owned()] }
    }

    #[test]
    fn an_identity_fits_its_fields() {
        let identity = of_uuid(Uuid::of_version(4, [0xff; 16]));
        assert_eq!(identity.serial.as_str(), "ffffffffffff4fffbfffffffffffffff");
        assert_eq!(identity.naa, [0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(of_uuid(Uuid([0; 16])).naa, [0x30, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn revisions_are_major_and_minor() {
        for (version, wanted) in [("0.1.0", "0.1"), ("1.12.3", "1.12"), ("10.12.3", "10.12"), ("2", "2")] {
            assert_eq!(revision(version), wanted);
        }
    }

    #[test]
    fn volumes_that_differ_have_identities_that_differ() {
        let all = [
            of_process("ram:1G", 0),
            of_process("ram:1G", 1),
            of_process("null:1G", 0),
            of_mark(&local("file", "1 2 /a")),
            of_mark(&Mark::Number([7; 16])),
            of_mark(&Mark::Number([8; 16])),
            of_mark(&Mark::Global { space: "device", name: "1 2 /a".into() }),
            of_mark(&local("place", "1 2 /a")),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert!(one.serial != other.serial && one.naa != other.naa && one.uuid != other.uuid);
            }
        }
        assert_eq!(of_process("ram:1G", 0), of_process("ram:1G", 0));
    }

    #[test]
    fn identities_never_change() {
        // If this fails, all initiators see new disks after the next update.
        let named = Mark::Global { space: "device", name: "wwid x".into() };
        assert_eq!(of_mark(&named).serial.as_str(), "582ae796498383c491bb9db19db53886");
        let number = Mark::Number([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(of_mark(&number).serial.as_str(), "000102030405460788090a0b0c0d0e0f");
    }
}
