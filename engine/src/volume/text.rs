//! The text that names a volume on the command line: `disk.img`, `disk.img:20G`, `/dev/sdb`, `ram:1G`, `null:1T`.
//! `removable:` in front makes it a removable disk, and `cd:install.iso` is a CD or DVD.
//!
//! The prefixes are the names of back ends. A file whose own name looks like a prefix is meant if it exists under the
//! whole name; `./` in front makes any text a path.

use crate::backend::{Backend, TextForm};
use crate::volume::identity;
use lunar_control::names::Uuid;
use lunar_control::value::{Size, Textual, ValueError};
use lunar_core::medium::MediumKind;
use std::fmt;
use std::path::{Path, PathBuf};

/// The keys of a `[volume.NAME]` section that a text on the command line gives.
#[derive(Clone)]
pub struct VolumeKeys {
    /// `kind`: the back end.
    pub backend: &'static dyn Backend,
    /// `medium`.
    pub medium: MediumKind,
    /// `path`.
    pub path: Option<PathBuf>,
    /// `size`, in bytes.
    pub size: Option<u64>,
    /// A key of the back end, with its word.
    pub own: Option<(&'static str, &'static str)>,
}

impl fmt::Debug for VolumeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?} {:?}", self.backend.name(), self.medium, self.path, self.size)
    }
}

impl VolumeKeys {
    /// The UUID (`uuid`) of the volume at this position of the command line, with this text. `None`: a volume that is
    /// not there yet, or has no mark; it takes any new UUID.
    #[must_use]
    pub fn uuid(&self, text: &str, position: usize, read_only: bool) -> Option<Uuid> {
        match &self.path {
            None => Some(Uuid(identity::of_process(text, position).uuid)),
            Some(path) => self.backend.mark_at(path, read_only).map(|mark| identity::uuid_of(&mark)),
        }
    }
}

/// A mistake in the text of a volume, with a message that says what to do.
#[derive(Debug)]
pub struct TextMistake {
    /// The text.
    pub text: String,
    /// The mistake in it.
    pub mistake: Mistake,
}

/// The mistakes in texts of volumes.
#[derive(Debug)]
pub enum Mistake {
    /// It names two media; with a text that names one.
    TwoMedia(String),
    /// `cd:` without an image.
    NoImage,
    /// The image of this path has its size already.
    SizeOfImage(PathBuf),
    /// A CD or DVD that is not in a file.
    NotAnImage,
    /// `removable:` without a disk; with examples.
    NoDisk(String),
    /// It names no volume; with examples where no prefix is recognized.
    NoVolume(Option<String>),
    /// The back end of this name needs a size.
    NoSize(&'static str),
    /// The back end of this name needs a path; with an example.
    NoPath(&'static str),
    /// It needs a path and a size; with examples.
    NoPathAndSize(String),
    /// The back end of this name takes nothing behind the colon.
    Surplus(&'static str),
    /// The volume would have no bytes.
    Empty,
    /// This is no size.
    Size(String, ValueError),
}

impl TextMistake {
    fn new(text: &str, mistake: Mistake) -> Self {
        Self { text: text.to_owned(), mistake }
    }
}

impl fmt::Display for TextMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match &self.mistake {
            Mistake::TwoMedia(one) => {
                write!(f, "{text}: a volume is one of cd: and removable:, so one is enough: {one}")
            }
            Mistake::NoImage => write!(f, "{text} needs an image: cd:install.iso (a file of that name: ./{text})"),
            Mistake::SizeOfImage(path) => {
                write!(f, "{text}: an image has its size, and none is made: cd:{}", path.display())
            }
            Mistake::NotAnImage => write!(f, "{text}: a CD or DVD is an image in a file: cd:install.iso"),
            Mistake::NoDisk(examples) => write!(f, "{text} needs a disk: {examples} (a file of that name: ./{text})"),
            Mistake::NoVolume(None) => write!(f, "'{text}' names no volume"),
            Mistake::NoVolume(Some(examples)) => write!(f, "'{text}' names no volume: {examples}"),
            Mistake::NoSize(name) => write!(f, "{text} needs a size: {name}:1G (a file of that name: ./{text})"),
            Mistake::NoPathAndSize(example) => {
                write!(f, "{text} needs a path and a size, or what stands for it: {example}")
            }
            Mistake::NoPath(example) => write!(f, "{text} needs the path of a device: {example}"),
            Mistake::Surplus(name) => write!(f, "{text}: it takes nothing behind the colon: {name}:"),
            Mistake::Empty => write!(f, "{text}: a volume of no bytes cannot be served"),
            Mistake::Size(size, why) => write!(f, "{text}: '{size}' {why}"),
        }
    }
}

impl std::error::Error for TextMistake {}

/// Parses the text of a volume.
///
/// # Errors
/// [`TextMistake`].
pub fn parse(backends: &[&'static dyn Backend], text: &str) -> Result<VolumeKeys, TextMistake> {
    parse_where(backends, text, &Path::exists)
}

/// Parses the text of a volume, where `exists` tells which paths exist.
///
/// # Errors
/// [`TextMistake`].
pub fn parse_where(
    backends: &[&'static dyn Backend],
    text: &str,
    exists: &dyn Fn(&Path) -> bool,
) -> Result<VolumeKeys, TextMistake> {
    let parser = Parser { backends, exists };
    let refused = |why| Err(TextMistake::new(text, why));
    match text.split_once(':') {
        Some((medium @ ("cd" | "removable"), rest)) if rest.starts_with("cd:") || rest.starts_with("removable:") => {
            refused(Mistake::TwoMedia(format!("{medium}:{}", last_part(rest))))
        }
        Some(("cd", "")) => refused(Mistake::NoImage),
        Some(("cd", rest)) => {
            let keys = parser.store(rest)?;
            match (&keys.path, keys.size) {
                (Some(_), None) => Ok(VolumeKeys { medium: MediumKind::Optical, ..keys }),
                (Some(path), _) => refused(Mistake::SizeOfImage(path.clone())),
                (None, _) => refused(Mistake::NotAnImage),
            }
        }
        Some(("removable", "")) => {
            let examples = parser.examples(|backend| Some(format!("removable:{}", backend.examples().first()?)));
            refused(Mistake::NoDisk(examples))
        }
        Some(("removable", rest)) => Ok(VolumeKeys { medium: MediumKind::Removable, ..parser.store(rest)? }),
        _ => parser.store(text),
    }
}

fn last_part(text: &str) -> &str {
    text.trim_start_matches("cd:").trim_start_matches("removable:")
}

struct Parser<'a> {
    backends: &'a [&'static dyn Backend],
    exists: &'a dyn Fn(&Path) -> bool,
}

impl Parser<'_> {
    /// The volume without its medium, as a fixed disk.
    fn store(&self, text: &str) -> Result<VolumeKeys, TextMistake> {
        let (prefix, rest) = text.split_once(':').map_or((text, None), |(prefix, rest)| (prefix, Some(rest)));
        if prefix.is_empty() {
            let examples = self.examples(|backend| Some(backend.examples().join(", ")));
            return Err(TextMistake::new(text, Mistake::NoVolume(Some(examples))));
        }
        let Some(backend) = self.backends.iter().copied().find(|backend| backend.name() == prefix) else {
            return self.path(text);
        };
        let keys = |size| VolumeKeys { backend, medium: MediumKind::Fixed, path: None, size, own: None };
        match (backend.form(), rest) {
            (TextForm::NameAndSize, None | Some("")) => Err(TextMistake::new(text, Mistake::NoSize(backend.name()))),
            (TextForm::NameAndSize, Some(rest)) => Ok(keys(Some(size(text, rest)?))),
            (TextForm::Name, Some("")) => Ok(keys(None)),
            (TextForm::Name, Some(_)) => Err(TextMistake::new(text, Mistake::Surplus(backend.name()))),
            (TextForm::NameAndPath | TextForm::NameAndKey(_) | TextForm::NameAndPathOrPathIf(_), None | Some("")) => {
                let example = backend.examples().first().copied().unwrap_or_default();
                Err(TextMistake::new(text, Mistake::NoPath(example)))
            }
            (TextForm::NameAndPath | TextForm::NameAndKey(_) | TextForm::NameAndPathOrPathIf(_), Some(path)) => {
                Ok(VolumeKeys { path: Some(PathBuf::from(path)), ..keys(None) })
            }
            (TextForm::NameAndPathAndSizeOr(key, words), rest) => {
                let missing = || Mistake::NoPathAndSize(backend.examples().join(", "));
                let parts = rest.and_then(|rest| rest.rsplit_once(':')).filter(|(path, _)| !path.is_empty());
                let (path, last) = parts.ok_or_else(|| TextMistake::new(text, missing()))?;
                let path = Some(PathBuf::from(path));
                match words.iter().find(|(word, _)| *word == last) {
                    Some((word, _)) => Ok(VolumeKeys { path, own: Some((key, word)), ..keys(None) }),
                    None => Ok(VolumeKeys { path, ..keys(Some(size(text, last)?)) }),
                }
            }
            (TextForm::Name | TextForm::PathIf(_) | TextForm::OtherPath, _) => self.path(text),
        }
    }

    fn path(&self, text: &str) -> Result<VolumeKeys, TextMistake> {
        let (path, size) = self.path_and_size(text)?;
        let other = |backend: &&&'static dyn Backend| matches!(backend.form(), TextForm::OtherPath);
        let takes = |backend: &&&'static dyn Backend| match backend.form() {
            TextForm::PathIf(takes) | TextForm::NameAndPathOrPathIf(takes) => takes(&path),
            _ => false,
        };
        let backend = self.backends.iter().find(takes).or_else(|| self.backends.iter().find(other));
        let backend = backend.copied().ok_or_else(|| TextMistake::new(text, Mistake::NoVolume(None)))?;
        Ok(VolumeKeys { backend, medium: MediumKind::Fixed, path: Some(path), size, own: None })
    }

    fn path_and_size(&self, text: &str) -> Result<(PathBuf, Option<u64>), TextMistake> {
        let whole = (PathBuf::from(text), None);
        let Some((path, tail)) = text.rsplit_once(':') else { return Ok(whole) };
        if path.is_empty() || path.ends_with('/') || (self.exists)(Path::new(text)) || !is_meant_as_size(tail) {
            return Ok(whole);
        }
        Ok((PathBuf::from(path), Some(size(text, tail)?)))
    }

    /// A list of examples of back ends, in the order of the registry.
    fn examples(&self, example: impl Fn(&dyn Backend) -> Option<String>) -> String {
        let examples: Vec<String> = self.backends.iter().filter_map(|backend| example(*backend)).collect();
        match examples.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => "this program has no back ends".to_owned(),
        }
    }
}

/// Whether the operator meant this as a size, right or wrong; a missing `host:disk.img` is just missing.
fn is_meant_as_size(tail: &str) -> bool {
    let letters = tail.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
    tail.is_empty() || (letters.len() < tail.len() && letters.len() <= 3 && letters.chars().all(char::is_alphabetic))
}

fn size(text: &str, size: &str) -> Result<u64, TextMistake> {
    match Size::parse(size) {
        Ok(Size(0)) => Err(TextMistake::new(text, Mistake::Empty)),
        Ok(Size(size)) => Ok(size),
        Err(why) => Err(TextMistake::new(text, Mistake::Size(size.to_owned(), why))),
    }
}

/// The advice about a volume whose name is that of a CD or DVD, and which is served as a disk.
#[must_use]
pub fn hint(text: &str) -> Option<String> {
    let is_image = text.len() > 4 && text.is_char_boundary(text.len() - 4) && {
        text[text.len() - 4..].eq_ignore_ascii_case(".iso")
    };
    let plain = !text.starts_with("cd:") && !text.starts_with("removable:");
    (is_image && plain).then(|| format!("{text} is served as a disk, as asked; did you mean cd:{text}, a CD or DVD?"))
}
