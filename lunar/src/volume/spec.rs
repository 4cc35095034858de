//! What a volume's name on the command line means: `disk.img`, `disk.img:20G`, `/dev/sdb`, `ram:1G`, `null:1T`; with
//! `removable:` in front a disk that can be taken out, and `cd:install.iso` a CD or DVD.
//!
//! A file whose own name looks like one of these is meant when it exists under the whole name; `./` in front
//! makes anything a path.

use anyhow::{Result, bail};
use lunar_control::value::{Size, Textual};
use lunar_core::medium::MediumKind;
use std::path::{Path, PathBuf};

/// A volume as it was named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spec {
    /// A store of zeroes.
    Null {
        /// Bytes.
        size: u64,
    },
    /// A store in memory.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// A file or a block device.
    Path {
        /// Where.
        path: PathBuf,
        /// Bytes of a file that is made if it is missing.
        size: Option<u64>,
    },
}

/// A volume as it was named, and what it is to initiators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// What sort of medium it is.
    pub medium: MediumKind,
    /// Where it is stored.
    pub spec: Spec,
}

/// Understands a name.
///
/// # Errors
/// In words that say what to do.
pub fn parse(text: &str) -> Result<Named> {
    parse_with(text, &Path::exists)
}

fn parse_with(text: &str, exists: &dyn Fn(&Path) -> bool) -> Result<Named> {
    let named = |medium, spec| Named { medium, spec };
    match text.split_once(':') {
        Some((kind @ ("cd" | "removable"), rest)) if rest.starts_with("cd:") || rest.starts_with("removable:") => {
            bail!("{text}: a volume is one of cd: and removable:, so one is enough: {kind}:{}", last_part(rest))
        }
        Some(("cd", "")) => bail!("{text} needs an image: cd:install.iso (a file of that name: ./{text})"),
        Some(("cd", rest)) => match store(rest, exists)? {
            spec @ Spec::Path { size: None, .. } => Ok(named(MediumKind::Optical, spec)),
            Spec::Path { path, .. } => bail!("{text}: an image has its size, and none is made: cd:{}", path.display()),
            _ => bail!("{text}: a CD or DVD is an image in a file: cd:install.iso"),
        },
        Some(("removable", "")) => {
            bail!("{text} needs a disk: removable:disk.img, removable:ram:1G (a file of that name: ./{text})")
        }
        Some(("removable", rest)) => Ok(named(MediumKind::Removable, store(rest, exists)?)),
        _ => Ok(named(MediumKind::Fixed, store(text, exists)?)),
    }
}

fn last_part(text: &str) -> &str {
    text.trim_start_matches("cd:").trim_start_matches("removable:")
}

/// Where a volume is stored.
fn store(text: &str, exists: &dyn Fn(&Path) -> bool) -> Result<Spec> {
    match text.split_once(':').unwrap_or((text, "")) {
        ("", _) => bail!("'{text}' names no volume: disk.img, disk.img:20G, /dev/sdb, ram:1G or null:1T"),
        (kind @ ("null" | "ram"), "") => {
            bail!("{text} needs a size: {kind}:1G (a file of that name: ./{text})")
        }
        ("null", size) => return Ok(Spec::Null { size: wanted(text, size)? }),
        ("ram", size) => return Ok(Spec::Ram { size: wanted(text, size)? }),
        _ => {}
    }
    let whole = Spec::Path { path: PathBuf::from(text), size: None };
    let Some((path, tail)) = text.rsplit_once(':') else { return Ok(whole) };
    if path.is_empty() || path.ends_with('/') || exists(Path::new(text)) {
        return Ok(whole);
    }
    if is_meant_as_size(tail) {
        return Ok(Spec::Path { path: PathBuf::from(path), size: Some(wanted(text, tail)?) });
    }
    Ok(whole)
}

/// Whether somebody who wrote this meant a size, right or wrong; a missing `host:disk.img` is just missing.
fn is_meant_as_size(tail: &str) -> bool {
    let letters = tail.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
    tail.is_empty() || (letters.len() < tail.len() && letters.len() <= 3 && letters.chars().all(char::is_alphabetic))
}

fn wanted(text: &str, size: &str) -> Result<u64> {
    match Size::parse(size) {
        Ok(Size(0)) => bail!("{text}: a volume of no bytes cannot be shared"),
        Ok(Size(size)) => Ok(size),
        Err(why) => bail!("{text}: '{size}' {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Spec {
        let named = parse_with(text, &|_| false).expect("a good name");
        assert_eq!(named.medium, MediumKind::Fixed, "{text}");
        named.spec
    }

    fn path(path: &str, size: Option<u64>) -> Spec {
        Spec::Path { path: path.into(), size }
    }

    #[test]
    fn names_mean_what_they_look_like() {
        assert_eq!(parsed("null:1T"), Spec::Null { size: 1 << 40 });
        assert_eq!(parsed("ram:1G"), Spec::Ram { size: 1 << 30 });
        assert_eq!(parsed("disk.img"), path("disk.img", None));
        assert_eq!(parsed("disk.img:20G"), path("disk.img", Some(20 << 30)));
        assert_eq!(parsed("/dev/sdb"), path("/dev/sdb", None));
        assert_eq!(parsed("/srv/a:b/disk.img"), path("/srv/a:b/disk.img", None));
        assert_eq!(parsed("a:b.img:512M"), path("a:b.img", Some(512 << 20)));
        assert_eq!(parsed("host:disk.img"), path("host:disk.img", None));
        let by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1";
        assert_eq!(parsed(by_path), path(by_path, None));
        assert_eq!(parsed("./ram:1G"), path("./ram", Some(1 << 30)));
        assert_eq!(parsed("./null"), path("./null", None));
    }

    #[test]
    fn a_file_that_exists_under_the_whole_name_is_meant() {
        let exists = |path: &Path| path == Path::new("disk:20G");
        assert_eq!(parse_with("disk:20G", &exists).expect("a path").spec, path("disk:20G", None));
        let sized = parse_with("disk:20G:1G", &exists).expect("a path and a size").spec;
        assert_eq!(sized, path("disk:20G", Some(1 << 30)));
    }

    #[test]
    fn media_that_can_be_taken_out() {
        let named = |text: &str| parse_with(text, &|_| false).map(|named| (named.medium, named.spec)).expect("good");
        assert_eq!(named("cd:/srv/install.iso"), (MediumKind::Optical, path("/srv/install.iso", None)));
        assert_eq!(named("cd:a:b.iso"), (MediumKind::Optical, path("a:b.iso", None)));
        assert_eq!(named("removable:disk.img"), (MediumKind::Removable, path("disk.img", None)));
        assert_eq!(named("removable:disk.img:1G"), (MediumKind::Removable, path("disk.img", Some(1 << 30))));
        assert_eq!(named("removable:ram:1G"), (MediumKind::Removable, Spec::Ram { size: 1 << 30 }));
        assert_eq!(named("./cd:x.iso"), (MediumKind::Fixed, path("./cd:x.iso", None)));
        assert_eq!(named("cd"), (MediumKind::Fixed, path("cd", None)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (text, words) in [
            ("", "names no volume"),
            (":1G", "names no volume"),
            ("ram", "ram:1G (a file of that name: ./ram)"),
            ("null:", "null:1G"),
            ("ram:lots", "'lots' is no size"),
            ("ram:0", "no bytes"),
            ("disk.img:0", "no bytes"),
            ("disk.img:20GB", "'20GB' is no size"),
            ("disk.img:1.5G", "'1.5G' is no size"),
            ("disk.img:", "'' is no size"),
            ("null:99999P", "is no size"),
            ("cd:", "cd:install.iso (a file of that name: ./cd:)"),
            ("cd:ram:1G", "an image in a file: cd:install.iso"),
            ("cd:install.iso:1G", "has its size, and none is made: cd:install.iso"),
            ("removable:", "removable:disk.img"),
            ("removable:ram", "ram:1G"),
            ("removable:cd:x.iso", "one is enough: removable:x.iso"),
        ] {
            let why = parse_with(text, &|_| false).expect_err(text).to_string();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
