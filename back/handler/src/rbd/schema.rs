//! The declaration of images of Ceph for the configuration.

use crate::schema::PATIENCE;
use lunar_control::schema::{KeySet, Location, Serves, SizeRule, StoreSchema, SystemCopies};
use lunar_control::section::{OwnKeys, optional, or, required};
use lunar_control::value::{FilePath, Line, Period, Textual, ValueError};
use lunar_control::{choices, sections};
use std::path::{Path, PathBuf};

/// The key that names the image.
pub(crate) const IMAGE: &str = "image";
/// Bytes of the name of an image at most: RBD_MAX_IMAGE_NAME_SIZE is 96, and pools, namespaces and snapshots are alike.
const IMAGE_BYTES_MAX: usize = 400;
/// The rule for names of images.
const RULE: &str = "is no image of Ceph: it is POOL/IMAGE or POOL/NAMESPACE/IMAGE, perhaps with @SNAPSHOT";
/// Bytes of the name of a user at most.
const USER_BYTES_MAX: usize = 64;

/// The name of an image, perhaps with that of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageName(PathBuf);

impl ImageName {
    /// The name, in the place of a path.
    pub(crate) fn place(&self) -> &Path {
        &self.0
    }
}

/// Whether an image is a snapshot, which is read-only.
pub(crate) fn is_snapshot(image: &Path) -> bool {
    image.as_os_str().as_encoded_bytes().contains(&b'@')
}

impl Textual for ImageName {
    const WHAT: &'static str = "an image of Ceph, POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]: `\"rbd/disk1\"`";
    const PATTERN: Option<&'static str> = Some("^[^/@]+/[^/@]+(/[^/@]+)?(@[^/@]+)?$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (path, snapshot) = text.split_once('@').map_or((text, None), |(path, name)| (path, Some(name)));
        let is_name =
            |name: &str| !name.is_empty() && !name.contains(['/', '@']) && !name.chars().any(char::is_control);
        let parts = path.split('/');
        let is_whole = matches!(parts.clone().count(), 2 | 3) && parts.chain(snapshot).all(is_name);
        if !is_whole || text.len() > IMAGE_BYTES_MAX {
            return Err(ValueError::Declared(RULE));
        }
        Ok(Self(PathBuf::from(text)))
    }

    fn text(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

choices! {
    /// The format of an encrypted image.
    ImageEncryption {
        /// LUKS of the version that the image has, which needs librbd 17
        Luks = "luks",
        /// LUKS, version 1
        Luks1 = "luks1",
        /// LUKS, version 2
        Luks2 = "luks2",
    }
}

impl ImageEncryption {
    /// The format of this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Luks, Self::Luks1, Self::Luks2].into_iter().find(|format| format.word() == word)
    }
}

sections! {
    /// The keys of a volume with an image of Ceph.
    RbdKeys (made: Live, removed: Live) {
        /// The image, for `kind = "rbd"`: `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`. With `@SNAPSHOT`, a snapshot of it,
        /// for a volume with `read-only = true`.
        image: ImageName = required() => EndsSessions;
        /// The user of the cluster, without `client.`, for `kind = "rbd"`; without this key, `admin`.
        user: Option<Line<USER_BYTES_MAX>> = optional() => Live;
        /// The configuration file of Ceph, for `kind = "rbd"`; without this key, where Ceph looks for it:
        /// `/etc/ceph/ceph.conf`. A file outside of `/etc/ceph` that is named later needs a restart.
        ceph_config: Option<FilePath> = optional() => Live;
        /// The file with the key of the user, for `kind = "rbd"`; without this key, as the configuration of Ceph says:
        /// `/etc/ceph/ceph.client.USER.keyring`. A file outside of `/etc/ceph` that is named later needs a restart.
        keyring: Option<FilePath> = optional() => Live;
        /// The format of an image that `rbd encryption format` has encrypted, for `kind = "rbd"`: librbd decrypts it,
        /// with the passphrase in `passphrase-file`.
        encryption: Option<ImageEncryption> = optional() => EndsSessions;
        /// The file with the passphrase of an encrypted image, for `kind = "rbd"`. A line end at its end is not part of
        /// the passphrase. A file outside of `/etc/ceph` that is named later needs a restart.
        passphrase_file: Option<FilePath> = optional() => Live;
        /// Whether this server waits while another client has the lock of the image, for `kind = "rbd"`: the volume is
        /// not ready until then, and is served at once when the lock is free. Without it, the image is tried again from
        /// time to time.
        stand_by: bool = or(false) => Live;
        /// How long a command waits for the cluster, and for the process of the image if that starts again, for
        /// `kind = "rbd"`; afterwards it fails, and new ones fail with NOT READY until both answer.
        cluster_timeout: Period = or(Period(PATIENCE)) => Live;
    }
}

impl RbdKeys {
    /// The files that the process of the image reads, and that are configured.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.ceph_config.iter().chain(&self.keyring).chain(&self.passphrase_file).map(FilePath::path)
    }

    fn brief(&self) -> String {
        self.image.text()
    }
}

fn place(keys: &OwnKeys) -> Option<&Path> {
    keys.get::<RbdKeys>().map(|keys| keys.image.place())
}

/// The place of a snapshot or a clone: `IMAGE@NEW`, or an image of this name beside the source. There is no snapshot of
/// a snapshot.
fn place_of_copy(source: &Path, new: &str, is_snapshot: bool) -> Option<String> {
    let source = source.to_str()?;
    if !is_snapshot {
        let (folder, _) = source.rsplit_once('/')?;
        return Some(format!("{folder}/{new}"));
    }
    (!source.contains('@')).then(|| format!("{source}@{new}"))
}

/// Another server does not stand by for a copy.
static COPIES: SystemCopies = SystemCopies { place: place_of_copy, left_out: &["stand_by"] };

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "rbd",
    doc: "an image of a Ceph cluster, which `lunar-rbd` serves: Lunar starts it",
    noun: "Ceph image",
    location: Location::Remote,
    size: SizeRule::Refused,
    serves: Serves::Blocks,
    keys: Some(KeySet::of::<RbdKeys>().with_place(IMAGE, place).with_copies(&COPIES)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_as_ceph_names_them() {
        for text in ["pool/image", "pool/space/image", "pool/image@before", "a b/c.d-e_f"] {
            assert_eq!(ImageName::parse(text).map(|name| name.text()).as_deref(), Ok(text));
        }
        let long = format!("a/{}", "b".repeat(IMAGE_BYTES_MAX));
        for text in
            ["", "image", "/image", "pool/", "pool//image", "a/b/c/d", "a/b@", "a/b@c@d", "a/b@c/d", "a/\n", &long]
        {
            assert!(ImageName::parse(text).is_err(), "{text}");
        }
        assert!(is_snapshot(Path::new("a/b@c")) && !is_snapshot(Path::new("a/b")));
    }

    #[test]
    fn copies_are_beside_their_source() {
        let copy = |source: &str, is_snapshot| place_of_copy(Path::new(source), "new", is_snapshot);
        assert_eq!(copy("pool/image", true).as_deref(), Some("pool/image@new"));
        assert_eq!(copy("pool/space/image", false).as_deref(), Some("pool/space/new"));
        assert_eq!(copy("pool/image@before", false).as_deref(), Some("pool/new"));
        assert_eq!(copy("pool/image@before", true), None, "a snapshot of a snapshot");
    }
}
