//! The volumes that a command line names, as sections of its configuration.

use crate::registry::Program;
use lunar_control::check::{LocalHost, Outside, OutsideError};
use lunar_control::names::Uuid;
use lunar_control::report::did_you_mean;
use lunar_control::schema::SizeRule;
use lunar_control::value::{Size, Textual};
use lunar_core::medium::MediumKind;
use lunar_core::protection::Kind as Protection;
use lunar_engine::backend::{Backend, Location, TextForm, UnevenSize};
use lunar_engine::command_line::Draft;
use lunar_engine::volume::command_line::Options;
use lunar_engine::volume::metadata::kept_protection;
use lunar_engine::volume::text::{self, TextMistake, VolumeKeys};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The prefixes of media. The other prefixes are the names of back ends.
const MEDIA: [&str; 2] = ["cd", "removable"];
/// The fewest letters of a prefix that is compared with the known ones: one letter is close to many words.
const PREFIX_LETTERS_MIN: usize = 2;

/// The draft that volumes are added to, and their options.
pub(super) struct Drafting<'a> {
    pub(super) program: &'static Program,
    /// The state folder.
    pub(super) state: &'a Path,
    pub(super) draft: &'a mut Draft,
}

/// The volumes of a draft, in the order of the command line.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// Their names in the draft: sorted, they are in this order.
    pub(super) names: Vec<String>,
    /// Of each, whether it keeps protection information.
    pub(super) are_protected: Vec<bool>,
    /// The UUID of the first.
    pub(super) first: Option<Uuid>,
    /// Hints about names that may mean something else.
    pub(super) hints: Vec<String>,
}

/// A mistake in the volumes of a command line, with a message that says what to do.
#[derive(Debug)]
pub(super) enum VolumeMistake {
    /// The text of a volume is wrong.
    Text(TextMistake),
    /// The prefix of a text is close to a known one; with the text that may be meant.
    Prefix {
        /// The text.
        text: String,
        /// The text with the known prefix.
        meant: String,
    },
    /// The volume of this text is to have protection information, and can be ejected.
    EjectableProtection(String),
    /// The volume of this text is named twice.
    NamedTwice(String),
    /// Two texts name one volume: the later one, and the earlier one.
    SameVolume(String, String),
    /// The size in this text is not a whole number of blocks.
    Uneven(String, UnevenSize),
    /// The device at this path has its size.
    HasSize(PathBuf),
    /// A path cannot be made absolute.
    Path(PathBuf, io::Error),
    /// This text is not UTF-8 as an absolute path.
    NotUtf8(String),
    /// There are no random bytes for a UUID.
    Random(OutsideError),
}

impl fmt::Display for VolumeMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(why) => why.fmt(f),
            Self::Prefix { text, meant } => {
                write!(f, "{text}: did you mean {meant}? (a file of that name: ./{text})")
            }
            Self::EjectableProtection(text) => write!(
                f,
                "{text}: the protection information of blocks stays behind when it is ejected; leave out --protection"
            ),
            Self::NamedTwice(text) => write!(f, "{text} is named twice: a volume is served under one number"),
            Self::SameVolume(text, twin) => write!(f, "{text} is the same volume as {twin}: name it once"),
            Self::Uneven(text, why) => write!(f, "{text}: {why}"),
            Self::HasSize(path) => {
                let path = path.display();
                write!(f, "{path} is a device and has its size: name it without one, {path}")
            }
            Self::Path(path, why) => write!(f, "{}: {why}", path.display()),
            Self::NotUtf8(text) => write!(f, "{text} is not UTF-8"),
            Self::Random(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for VolumeMistake {}

/// The place of a volume, as far as it is known before the volume is opened: two names of one place are one volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// A file that is there: file system and inode.
    File(u64, u64),
    /// A device: its number, independent of the path of its node.
    Device(u64),
    /// A file that will be made: the folder as above, and its name.
    Missing(u64, u64, OsString),
}

fn place(path: &Path) -> Option<Place> {
    if let Ok(found) = std::fs::metadata(path) {
        let is_device = found.file_type().is_block_device();
        return Some(if is_device { Place::Device(found.rdev()) } else { Place::File(found.dev(), found.ino()) });
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let found = std::fs::metadata(folder).ok()?;
    Some(Place::Missing(found.dev(), found.ino(), path.file_name()?.to_owned()))
}

/// Refuses a prefix that is close to a known one: `nul:1T` would make a file of that name.
fn check_prefix(backends: &[&'static dyn Backend], text: &str) -> Result<(), VolumeMistake> {
    let Some((prefix, rest)) = text.split_once(':') else { return Ok(()) };
    let is_word = prefix.len() >= PREFIX_LETTERS_MIN && prefix.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_prefix =
        |backend: &&&'static dyn Backend| !matches!(backend.form(), TextForm::PathIf(_) | TextForm::OtherPath);
    let known = || backends.iter().filter(is_prefix).map(|backend| backend.name()).chain(MEDIA);
    if known().any(|known| known == prefix) {
        // After `removable:` another volume text follows.
        return if prefix == "removable" { check_prefix(backends, rest) } else { Ok(()) };
    }
    // A name of two letters is close to every short word.
    let guessed = known().filter(|known| MEDIA.contains(known) || known.len() > PREFIX_LETTERS_MIN);
    let guess = did_you_mean(prefix, guessed);
    let meant = known().find(|known| guess.contains(&format!("'{known}'")));
    let is_there = |name: &str| Path::new(name).exists();
    match meant {
        Some(meant) if is_word && !is_there(text) && !is_there(prefix) => {
            Err(VolumeMistake::Prefix { text: text.to_owned(), meant: format!("{meant}:{rest}") })
        }
        _ => Ok(()),
    }
}

/// The metadata of the volume says whether it keeps protection information already.
fn protection_of(state: &Path, uuid: Option<Uuid>, options: &Options) -> Option<Protection> {
    options.protection.or_else(|| kept_protection(state, uuid?.0)).filter(|_| !options.read_only)
}

impl Volumes {
    /// Adds the volumes to a draft.
    ///
    /// # Errors
    /// A mistake in one of them.
    pub(super) fn configure(texts: &[String], options: &Options, to: &mut Drafting<'_>) -> Result<Self, VolumeMistake> {
        let (mut volumes, mut places, mut uuids) = (Self::default(), HashMap::new(), HashMap::new());
        let backends = to.program.registry.backends;
        for (position, text) in texts.iter().enumerate() {
            check_prefix(backends, text)?;
            let keys = text::parse(backends, text).map_err(VolumeMistake::Text)?;
            if keys.medium != MediumKind::Fixed && options.protection.is_some() {
                return Err(VolumeMistake::EjectableProtection(text.clone()));
            }
            let place = keys.path.as_deref().and_then(place);
            if place.is_some_and(|place| places.insert(place, position).is_some()) {
                return Err(VolumeMistake::NamedTwice(text.clone()));
            }
            let volume = Volume::of((position, text), keys, options, to)?;
            if let Some(twin) = volume.known.and_then(|uuid| uuids.insert(uuid.0, text)) {
                return Err(VolumeMistake::SameVolume(text.clone(), twin.clone()));
            }
            let protection = protection_of(to.state, volume.known, options);
            let name = format!("lun-{position:05}");
            let uuid = volume.write((text, &name), options, protection, to.draft)?;
            volumes.first.get_or_insert(uuid);
            volumes.names.push(name);
            volumes.are_protected.push(protection.is_some());
            volumes.hints.extend(text::hint(text));
        }
        Ok(volumes)
    }
}

/// A volume before it is opened.
struct Volume {
    keys: VolumeKeys,
    /// Its UUID, if it has one already.
    known: Option<Uuid>,
}

impl Volume {
    fn of(
        (position, text): (usize, &str),
        keys: VolumeKeys,
        options: &Options,
        to: &Drafting<'_>,
    ) -> Result<Self, VolumeMistake> {
        let read_only = options.read_only || keys.medium == MediumKind::Optical;
        let is_of_process = keys.backend.location() == Location::Process;
        let is_uneven = |size: &u64| is_of_process && !size.is_multiple_of(options.block_size.into());
        if let Some(size) = keys.size.filter(is_uneven) {
            let (block_size, wording) = (options.block_size, to.draft.origin().wording());
            return Err(VolumeMistake::Uneven(
                text.to_owned(),
                UnevenSize { size, block_size, is_disc: false, wording },
            ));
        }
        let has_own_size = keys.backend.schema().size == SizeRule::Refused;
        if let (true, Some(_), Some(path)) = (has_own_size, keys.size, &keys.path) {
            return Err(VolumeMistake::HasSize(path.clone()));
        }
        let known = keys.uuid(text, position, read_only);
        Ok(Self { keys, known })
    }

    /// Writes its section; returns its UUID. A new volume gets a random one.
    fn write(
        &self,
        (text, name): (&str, &str),
        options: &Options,
        protection: Option<Protection>,
        draft: &mut Draft,
    ) -> Result<Uuid, VolumeMistake> {
        let uuid = self
            .known
            .map_or_else(|| LocalHost { config: PathBuf::new() }.random().map(Uuid::from_random), Ok)
            .map_err(VolumeMistake::Random)?;
        let key = match self.keys.backend.form() {
            TextForm::NameAndKey(key) => Some(key),
            _ => None,
        };
        let absolute = self.keys.path.as_ref().filter(|_| key.is_none()).map(|path| {
            let absolute = std::path::absolute(path).map_err(|why| VolumeMistake::Path(path.clone(), why))?;
            absolute.into_os_string().into_string().map_err(|_| VolumeMistake::NotUtf8(text.to_owned()))
        });
        let is_disc = self.keys.medium == MediumKind::Optical;
        let mut keys = draft.object_of(text, "volume", name);
        keys.set("kind", self.keys.backend.name()).set("uuid", uuid.text()).set_some("path", absolute.transpose()?);
        let place = key.and(self.keys.path.as_ref());
        if let (Some(key), Some(place)) = (key, place) {
            keys.set(key, place.to_str().ok_or_else(|| VolumeMistake::NotUtf8(text.to_owned()))?);
        }
        keys.set_some("size", self.keys.size.map(|size| Size(size).text()));
        self.keys.own.into_iter().for_each(|(key, word)| _ = keys.set(key, word));
        keys.set(
            "medium",
            match self.keys.medium {
                MediumKind::Fixed => "disk",
                MediumKind::Removable => "removable",
                MediumKind::Optical => "cd",
            },
        );
        keys.set_some("block-size", (!is_disc).then(|| options.block_size.to_string()));
        keys.set("read-only", options.read_only).set("shared", options.shared);
        // A device to which commands are forwarded has its own cache.
        let is_forwarded = matches!(self.keys.backend.form(), TextForm::NameAndPath) || self.keys.own.is_some();
        keys.set("write-through", options.write_through && !is_forwarded);
        // A disc is read through the page cache, memory has none, and a handler decides itself.
        let is_elsewhere =
            is_forwarded || key.is_some() || matches!(self.keys.backend.form(), TextForm::NameAndPathAndSizeOr(..));
        keys.set("direct", options.direct && !is_disc && !is_elsewhere && self.keys.path.is_some());
        keys.set_some("protection", protection.map(|kind| format!("type-{}", kind as u8)));
        Ok(uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{PROGRAM, REGISTRY};

    #[test]
    fn a_prefix_that_is_close_to_a_known_one_is_questioned() {
        for (text, meant) in [
            ("nul:1T", "did you mean null:1T? (a file of that name: ./nul:1T)"),
            ("rma:1G", "did you mean ram:1G?"),
            ("removeable:disk.img", "did you mean removable:disk.img?"),
            ("removable:nul:1T", "did you mean null:1T?"),
        ] {
            assert!(check_prefix(REGISTRY.backends, text).expect_err(text).to_string().contains(meant), "{text}");
        }
        for text in
            ["null:1T", "./nul:1T", "disk.img:20G", "disk:20G", "host:disk.img", "c:1G", "/dev/sdb", "removable:a"]
        {
            assert!(check_prefix(REGISTRY.backends, text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_handler_is_named_by_its_socket_and_its_size_or_device_type() {
        let keys = text::parse(REGISTRY.backends, "handler:/run/a:b.sock:20G").expect("a path and a size");
        assert_eq!((keys.backend.name(), keys.size), ("handler", Some(20 << 30)));
        assert_eq!((keys.path.as_deref(), keys.own), (Some(Path::new("/run/a:b.sock")), None));
        let keys = text::parse(REGISTRY.backends, "handler:/run/a.sock:changer").expect("a path and a device type");
        assert_eq!((keys.path.as_deref(), keys.size), (Some(Path::new("/run/a.sock")), None));
        assert_eq!(keys.own, Some(("device-type", "changer")));
        for wrong in ["handler:", "handler:/run/a.sock", "handler::1G", "handler:/run/a.sock:large"] {
            assert!(text::parse(REGISTRY.backends, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_partition_of_an_nvme_disk_is_named_with_a_prefix() {
        let keys = text::parse(REGISTRY.backends, "nvme:/dev/nvme0n1p2").expect("a path");
        assert_eq!((keys.backend.name(), keys.path.as_deref()), ("nvme", Some(Path::new("/dev/nvme0n1p2"))));
        for wrong in ["nvme", "nvme:"] {
            assert!(text::parse(REGISTRY.backends, wrong).is_err(), "{wrong}");
        }
        // A missing path names no namespace.
        let keys = text::parse(REGISTRY.backends, "/dev/ng99n99").expect("a path");
        assert_eq!(keys.backend.name(), "file");
    }

    #[test]
    fn an_image_of_ceph_is_named_by_a_key_of_its_own() {
        let mut draft = Draft::default();
        let mut to = Drafting { program: &PROGRAM, state: Path::new("/nowhere"), draft: &mut draft };
        let options = Options { read_only: true, ..Options::PLAIN };
        Volumes::configure(&["rbd:pool/image@before".to_owned()], &options, &mut to).expect("an image");
        let checked = draft.check(PROGRAM.schema).expect("right keys");
        let volume = checked.config.volumes.values().next().expect("a volume");
        assert_eq!((volume.place(), volume.path.as_ref()), (Some(Path::new("pool/image@before")), None));
        for wrong in ["rbd", "rbd:", "rbd:image"] {
            let mut draft = Draft::default();
            let mut to = Drafting { program: &PROGRAM, state: Path::new("/nowhere"), draft: &mut draft };
            let configured = Volumes::configure(&[wrong.to_owned()], &options, &mut to);
            assert!(configured.is_err() || draft.check(PROGRAM.schema).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_volume_is_named_once() {
        let folder = std::env::temp_dir().join(format!("lunar-serve-volumes-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).expect("a folder");
        let (one, same) = (folder.join("a.img:1M"), folder.join("sub/../a.img:1M"));
        let texts = [one, same].map(|path| path.display().to_string());
        let configure = |texts: &[String]| {
            let mut to = Drafting { program: &PROGRAM, state: &folder, draft: &mut Draft::default() };
            Volumes::configure(texts, &Options::PLAIN, &mut to).map(|volumes| volumes.names)
        };
        assert!(matches!(configure(&texts), Err(VolumeMistake::NamedTwice(_))));
        let texts = ["ram:1M", "ram:1M"].map(str::to_owned);
        assert_eq!(configure(&texts).expect("each is its own"), ["lun-00000", "lun-00001"]);
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
