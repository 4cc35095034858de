//! The declaration of volumes of ZFS for the configuration.

use lunar_control::schema::{KeySet, Location, Serves, SizeRule, StoreSchema, SystemCopies};
use lunar_control::section::{OwnKeys, required};
use lunar_control::sections;
use lunar_control::value::{Textual, ValueError};
use std::path::{Path, PathBuf};

/// The key that names the dataset.
pub(crate) const DATASET: &str = "dataset";
/// Bytes of a name at most: ZFS_MAX_DATASET_NAME_LEN is 256, with the zero byte at its end.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The folder in which udev names the devices of zvols.
const DEVICES: &str = "/dev/zvol";
/// The rule for names of datasets.
const RULE: &str = "is no zvol: it is POOL/VOLUME or POOL/FOLDER/VOLUME, perhaps with @SNAPSHOT";

/// The name of a zvol, or of a snapshot of one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dataset(String);

impl Dataset {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name, in the place of a path.
    pub(crate) fn place(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The dataset of this place.
    pub(crate) fn at(place: &Path) -> Option<Self> {
        Self::parse(place.to_str()?).ok()
    }

    /// Whether it is a snapshot, which is read-only.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.0.contains('@')
    }

    /// The zvol of a snapshot; the zvol itself if it is none.
    pub(crate) fn zvol(&self) -> Self {
        Self(self.0.split('@').next().unwrap_or_default().to_owned())
    }

    /// The snapshot of this name of the zvol; `None` if that is no name, or if this is a snapshot.
    pub(crate) fn snapshot(&self, name: &str) -> Option<Self> {
        Self::parse(&format!("{}@{name}", self.0)).ok()
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    /// The link to its device: udev writes a space as a plus sign.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        Path::new(DEVICES).join(self.0.replace(' ', "+"))
    }
}

/// The rule of zfs(8) for the components of names, without names that are folders of a path.
fn is_component(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte);
    !name.is_empty() && name.bytes().all(is_allowed) && !matches!(name, "." | "..")
}

impl Textual for Dataset {
    const WHAT: &'static str = "a zvol, POOL/VOLUME[@SNAPSHOT]: `\"tank/disk1\"`";
    const PATTERN: Option<&'static str> = Some("^[A-Za-z][^/@]*(/[^/@]+)+(@[^/@]+)?$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (path, snapshot) = text.split_once('@').map_or((text, None), |(path, name)| (path, Some(name)));
        // A pool has a letter first, so no name is an option of a program.
        let is_whole = text.starts_with(|first: char| first.is_ascii_alphabetic()) && path.contains('/');
        if !is_whole || text.len() > NAME_BYTES_MAX || !path.split('/').chain(snapshot).all(is_component) {
            return Err(ValueError::Declared(RULE));
        }
        Ok(Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

sections! {
    /// The keys of a volume with a zvol.
    ZvolKeys (made: Live, removed: Live) {
        /// The zvol, for `kind = "zvol"`: `POOL/VOLUME`, or with folders between. With `@SNAPSHOT`, a snapshot of it,
        /// for a volume with `read-only = true`.
        dataset: Dataset = required() => EndsSessions;
    }
}

impl ZvolKeys {
    fn brief(&self) -> String {
        self.dataset.text()
    }
}

fn place(keys: &OwnKeys) -> Option<&Path> {
    keys.get::<ZvolKeys>().map(|keys| keys.dataset.place())
}

/// The place of a snapshot or a clone: `ZVOL@NEW`, or a zvol of this name beside the source. There is no snapshot of a
/// snapshot.
fn place_of_copy(source: &Path, new: &str, is_snapshot: bool) -> Option<String> {
    let source = Dataset::at(source)?;
    if is_snapshot {
        return source.snapshot(new).map(|snapshot| snapshot.text());
    }
    let zvol = source.zvol();
    let (folder, _) = zvol.name().rsplit_once('/')?;
    Some(format!("{folder}/{new}"))
}

static COPIES: SystemCopies = SystemCopies { place: place_of_copy, left_out: &[] };

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "zvol",
    doc: "a volume of ZFS (zvol), with its snapshots, clones and space",
    noun: "zvol",
    location: Location::Remote,
    size: SizeRule::Refused,
    serves: Serves::Blocks,
    keys: Some(KeySet::of::<ZvolKeys>().with_place(DATASET, place).with_copies(&COPIES)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zvols_are_named_as_zfs_names_them() {
        for text in ["tank/a", "tank/vm/disk-1.b_c:d", "t/a b", "tank/a@before", "tank/vm/a@b:c"] {
            assert_eq!(Dataset::parse(text).map(|name| name.text()).as_deref(), Ok(text));
        }
        let long = format!("a/{}", "b".repeat(NAME_BYTES_MAX));
        for text in [
            "",
            "tank",
            "/tank/a",
            "tank/",
            "tank//a",
            "1tank/a",
            "-o/a",
            "tank/a@",
            "tank/a@b@c",
            "tank/a@b/c",
            "tank/../a",
            "tank/.",
            "tank/a\n",
            "tank/ä",
            "tank@a",
            "tank/a\0b",
            &long,
        ] {
            assert!(Dataset::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_device_is_where_udev_puts_it() {
        let device = |name| Dataset::parse(name).expect("a name").device();
        assert_eq!(device("tank/my disk"), Path::new("/dev/zvol/tank/my+disk"));
        assert_eq!(device("tank/a@b"), Path::new("/dev/zvol/tank/a@b"));
    }

    #[test]
    fn copies_are_beside_their_source() {
        let copy = |source: &str, is_snapshot| place_of_copy(Path::new(source), "new", is_snapshot);
        assert_eq!(copy("tank/vm/a", true).as_deref(), Some("tank/vm/a@new"));
        assert_eq!(copy("tank/vm/a", false).as_deref(), Some("tank/vm/new"));
        assert_eq!(copy("tank/a@before", false).as_deref(), Some("tank/new"));
        assert_eq!(copy("tank/a@before", true), None, "a snapshot of a snapshot");
    }
}
