//! The requests of the daemon to its program helper.
//!
//! A request to start a process of an image is its code, flags (1 byte: 1 for a read-only image, 2 to stand by), and
//! image, user, configuration file, keyring, format of the encryption, passphrase file, and the size of an image that
//! is made, the image that a clone is made of, and the identity of an image that a snapshot or a clone is made of, with
//! zero bytes between them; an empty one is not given. The connection of the process goes with it.
//!
//! A request for a call of `zfs` is its code, that of the call (1 byte), and its parts, with zero bytes between them:
//! names, and the size of a zvol that is made before its name. The pipe for the output goes with it.
//!
//! Requests to kill a process, and for the result of one that has ended, are their code and the number of the process
//! (4 bytes, little endian).

use lunar_block::zvol::program::{ASKED_BYTES_MAX, Call};
use lunar_block::zvol::schema::Dataset;
use lunar_control::value::Textual;
use lunar_handler_store::rbd::process::{ImageAccess, Order};
use lunar_handler_store::rbd::schema::ImageEncryption;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The bytes of a request at most: three paths, two images and a user.
pub(super) const REQUEST_BYTES_MAX: usize = 14_000;
const START: u8 = 1;
const KILL: u8 = 2;
const ZFS: u8 = 3;
const RESULT: u8 = 4;

const _: () = assert!(ASKED_BYTES_MAX + 2 < REQUEST_BYTES_MAX);

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Start(ImageAccess),
    Kill(i32),
    Zfs(Call),
    Result(i32),
}

impl Request {
    /// Its bytes; `None` if a part has a zero byte, or is too long.
    pub(super) fn emit(&self) -> Option<Vec<u8>> {
        match self {
            Self::Kill(process) => Some([&[KILL][..], &process.to_le_bytes()].concat()),
            Self::Result(process) => Some([&[RESULT][..], &process.to_le_bytes()].concat()),
            Self::Start(access) => emit_start(access),
            Self::Zfs(call) => {
                let (code, parts) = parts_of(call);
                let bytes = [vec![ZFS, code], parts.join("\0").into_bytes()].concat();
                (bytes.len() <= REQUEST_BYTES_MAX).then_some(bytes)
            }
        }
    }

    /// Reads a request; `None` if it is malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |process: &[u8]| process.try_into().map(i32::from_le_bytes).ok();
        match bytes.split_first()? {
            (&KILL, process) => Some(Self::Kill(number(process)?)),
            (&RESULT, process) => Some(Self::Result(number(process)?)),
            (&START, [flags @ 0..=3, rest @ ..]) => Some(Self::Start(parse_start(*flags, rest)?)),
            (&ZFS, [code, rest @ ..]) => Some(Self::Zfs(parse_call(*code, std::str::from_utf8(rest).ok()?)?)),
            _ => None,
        }
    }
}

/// The code of a call of `zfs`, and its parts.
fn parts_of(call: &Call) -> (u8, Vec<String>) {
    let names = |names: &[&Dataset]| names.iter().map(|name| name.text()).collect();
    match call {
        Call::Create(zvol, bytes) => (1, vec![bytes.to_string(), zvol.text()]),
        Call::Snapshot(snapshot) => (2, names(&[snapshot])),
        Call::ShowSnapshots(zvol) => (3, names(&[zvol])),
        Call::Clone(snapshot, zvol) => (4, names(&[snapshot, zvol])),
        Call::Destroy(dataset) => (5, names(&[dataset])),
        Call::DestroyLater(snapshot) => (6, names(&[snapshot])),
        Call::Identity(dataset) => (8, names(&[dataset])),
        Call::Space(zvols) => (7, names(&zvols.iter().collect::<Vec<_>>())),
    }
}

/// Reads a call of `zfs`; `None` if it is malformed, or has another kind of name than it needs.
fn parse_call(code: u8, text: &str) -> Option<Call> {
    let (size, names) = match code {
        1 => text.split_once('\0').map(|(size, names)| (size.parse().ok(), names))?,
        _ => (None, text),
    };
    let names: Option<Vec<_>> = names.split('\0').map(|name| Dataset::parse(name).ok()).collect();
    let is_snapshot = Dataset::is_snapshot;
    match (code, size, &names?[..]) {
        (1, Some(bytes), [zvol]) if !is_snapshot(zvol) => Some(Call::Create(zvol.clone(), bytes)),
        (2, None, [snapshot]) if is_snapshot(snapshot) => Some(Call::Snapshot(snapshot.clone())),
        (3, None, [zvol]) if !is_snapshot(zvol) => Some(Call::ShowSnapshots(zvol.clone())),
        (4, None, [snapshot, zvol]) if is_snapshot(snapshot) && !is_snapshot(zvol) => {
            Some(Call::Clone(snapshot.clone(), zvol.clone()))
        }
        (5, None, [dataset]) => Some(Call::Destroy(dataset.clone())),
        (6, None, [snapshot]) if is_snapshot(snapshot) => Some(Call::DestroyLater(snapshot.clone())),
        (8, None, [dataset]) => Some(Call::Identity(dataset.clone())),
        (7, None, zvols) => Some(Call::Space(zvols.to_vec())),
        _ => None,
    }
}

/// The bytes of a request to start a process of an image; `None` if a part has a zero byte, or is too long.
fn emit_start(access: &ImageAccess) -> Option<Vec<u8>> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.as_os_str().to_owned());
    let (format, passphrase) = access.encryption.as_ref().map(|(format, file)| (format.word().into(), file)).unzip();
    let passphrase = path(&passphrase.cloned());
    let [config, keyring] = [&access.config, &access.keyring].map(path);
    let (size, source, identity) = match access.order.clone() {
        None => (None, None, None),
        Some(Order::Image(size)) => (Some(size.to_string().into()), None, None),
        Some(Order::Snapshot(identity)) => (None, None, Some(identity)),
        Some(Order::Clone(source, identity)) => (None, Some(source), Some(identity)),
    };
    let (image, user) = (Some(access.image.clone()), access.user.clone());
    let parts = [image, user, config, keyring, format, passphrase, size, source, identity];
    let parts = parts.map(|part| part.unwrap_or_default().into_vec());
    let bytes = [vec![START, (u8::from(access.stand_by) << 1) | u8::from(access.read_only)], parts.join(&0)].concat();
    (bytes.len() <= REQUEST_BYTES_MAX && !parts.iter().any(|part| part.contains(&0))).then_some(bytes)
}

/// Reads a request to start a process of an image; `None` if it is malformed.
fn parse_start(flags: u8, bytes: &[u8]) -> Option<ImageAccess> {
    let parts: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
    let [image, user, config, keyring, format, passphrase, size, source, identity] = parts[..] else {
        return None;
    };
    let given = |part: &[u8]| (!part.is_empty()).then(|| OsStr::from_bytes(part).to_owned());
    let encryption = match (given(format), given(passphrase)) {
        (None, None) => None,
        (Some(format), Some(file)) => Some((ImageEncryption::of_word(format.to_str()?)?, file.into())),
        _ => return None,
    };
    let order = match (given(size), given(source), given(identity)) {
        (None, None, None) => None,
        (Some(size), None, None) => Some(Order::Image(size.to_str()?.parse().ok()?)),
        (None, None, Some(identity)) => Some(Order::Snapshot(identity)),
        (None, Some(source), Some(identity)) => Some(Order::Clone(source, identity)),
        _ => return None,
    };
    Some(ImageAccess {
        image: given(image)?,
        user: given(user),
        config: given(config).map(PathBuf::from),
        keyring: given(keyring).map(PathBuf::from),
        encryption,
        stand_by: flags & 2 != 0,
        read_only: flags & 1 != 0,
        order,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let access = ImageAccess { image: "rbd/disk".into(), ..ImageAccess::default() };
        let whole = ImageAccess {
            image: "rbd/disk@a".into(),
            user: Some("lunar".into()),
            config: Some("/etc/ceph/a.conf".into()),
            keyring: Some("/k".into()),
            encryption: Some((ImageEncryption::Luks2, "/p".into())),
            stand_by: true,
            read_only: true,
            order: None,
        };
        let orders =
            [Order::Image(1 << 40), Order::Snapshot("7/2/a".into()), Order::Clone("p/o@s".into(), "7/2/a".into())];
        let made = orders.map(|order| Request::Start(ImageAccess { order: Some(order), ..whole.clone() }));
        let others = [Request::Start(access.clone()), Request::Start(whole), Request::Kill(7)];
        for request in made.into_iter().chain(others) {
            assert_eq!(Request::parse(&request.emit().expect("it is short")), Some(request));
        }
        let zero = ImageAccess { user: Some(OsString::from_vec(b"a\0b".to_vec())), ..access.clone() };
        let long = ImageAccess { image: "a".repeat(REQUEST_BYTES_MAX).into(), ..access };
        assert_eq!((Request::Start(zero).emit(), Request::Start(long).emit()), (None, None));
        let malformed: [&[u8]; 12] = [
            b"",
            b"\x03",
            b"\x01",
            b"\x01\x04a\0\0\0\0\0\0\0\0",
            b"\x01\x00a\0\0\0\0\0\0\0",
            b"\x01\x00\0\0\0\0\0\0\0\0",
            b"\x01\x00a\0\0\0\0luks3\0/p\0\0\0",
            b"\x01\x00a\0\0\0\0luks\0\0\0\0",
            b"\x01\x00a\0\0\0\0\0\0x\0\0",
            b"\x01\x00a\0\0\0\0\0\x001\0\x00i",
            b"\x01\x00a\0\0\0\0\0\0\0p/o\0",
            b"\x02\0\0\0",
        ];
        for bytes in malformed {
            assert_eq!(Request::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn calls_of_zfs_are_read_as_they_are_written() {
        let dataset = |name: &str| Dataset::parse(name).expect("a name");
        let (a, snapshot) = (dataset("tank/my disk"), dataset("tank/a@b"));
        for call in [
            Call::Create(a.clone(), 1 << 40),
            Call::Snapshot(snapshot.clone()),
            Call::ShowSnapshots(a.clone()),
            Call::Clone(snapshot.clone(), a.clone()),
            Call::Destroy(snapshot.clone()),
            Call::DestroyLater(snapshot.clone()),
            Call::Identity(a.clone()),
            Call::Space(vec![a, snapshot]),
        ] {
            let request = Request::Zfs(call);
            assert_eq!(Request::parse(&request.emit().expect("it is short")), Some(request));
        }
        let malformed: [&[u8]; 11] = [
            b"\x03",
            b"\x03\x01tank/a",
            b"\x03\x01x\0tank/a",
            b"\x03\x011\0tank/a@b",
            b"\x03\x02tank/a",
            b"\x03\x03tank/a@b",
            b"\x03\x04tank/a\0tank/b",
            b"\x03\x05-r",
            b"\x03\x06tank/a",
            b"\x03\x07",
            b"\x03\x09tank/a",
        ];
        for bytes in malformed {
            assert_eq!(Request::parse(bytes), None, "{bytes:?}");
        }
    }
}
