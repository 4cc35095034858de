//! The texts of volumes on the command line, with the back ends of Lunar.

mod common;

use common::BACKENDS;
use lunar_core::medium::MediumKind;
use lunar_engine::volume::text::{VolumeKeys, hint, parse_where};
use std::path::{Path, PathBuf};

/// Kind, path and size.
type Store = (&'static str, Option<PathBuf>, Option<u64>);

fn store(keys: VolumeKeys) -> Store {
    (keys.backend.name(), keys.path, keys.size)
}

fn parsed(text: &str) -> Store {
    let keys = parse_where(BACKENDS, text, &|_| false).expect("a good name");
    assert_eq!(keys.medium, MediumKind::Fixed, "{text}");
    store(keys)
}

fn path(path: &str, size: Option<u64>) -> Store {
    ("file", Some(path.into()), size)
}

#[test]
fn texts_mean_what_they_look_like() {
    assert_eq!(parsed("null:1T"), ("null", None, Some(1 << 40)));
    assert_eq!(parsed("ram:1G"), ("ram", None, Some(1 << 30)));
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
    assert_eq!(store(parse_where(BACKENDS, "disk:20G", &exists).expect("a path")), path("disk:20G", None));
    let sized = store(parse_where(BACKENDS, "disk:20G:1G", &exists).expect("a path and a size"));
    assert_eq!(sized, path("disk:20G", Some(1 << 30)));
}

#[test]
fn media_that_can_be_taken_out() {
    let named = |text: &str| {
        let keys = parse_where(BACKENDS, text, &|_| false).expect("good");
        (keys.medium, store(keys))
    };
    assert_eq!(named("cd:/srv/install.iso"), (MediumKind::Optical, path("/srv/install.iso", None)));
    assert_eq!(named("cd:a:b.iso"), (MediumKind::Optical, path("a:b.iso", None)));
    assert_eq!(named("removable:disk.img"), (MediumKind::Removable, path("disk.img", None)));
    assert_eq!(named("removable:disk.img:1G"), (MediumKind::Removable, path("disk.img", Some(1 << 30))));
    assert_eq!(named("removable:ram:1G"), (MediumKind::Removable, ("ram", None, Some(1 << 30))));
    assert_eq!(named("./cd:x.iso"), (MediumKind::Fixed, path("./cd:x.iso", None)));
    assert_eq!(named("cd"), (MediumKind::Fixed, path("cd", None)));
}

#[test]
fn refusals_say_what_to_do() {
    for (text, words) in [
        ("", "names no volume: disk.img, disk.img:20G, /dev/sdb, ram:1G or null:1T"),
        (":1G", "names no volume"),
        ("ram", "ram:1G (a file of that name: ./ram)"),
        ("null:", "null:1G"),
        ("ram:lots", "'lots' is not a size"),
        ("ram:0", "no bytes"),
        ("disk.img:0", "no bytes"),
        ("disk.img:20GB", "'20GB' is not a size"),
        ("disk.img:1.5G", "'1.5G' is not a size"),
        ("disk.img:", "'' is not a size"),
        ("null:99999P", "is not a size"),
        ("cd:", "cd:install.iso (a file of that name: ./cd:)"),
        ("cd:ram:1G", "an image in a file: cd:install.iso"),
        ("cd:install.iso:1G", "has its size, and none is made: cd:install.iso"),
        ("removable:", "removable:disk.img"),
        ("removable:ram", "ram:1G"),
        ("removable:cd:x.iso", "one is enough: removable:x.iso"),
    ] {
        let why = parse_where(BACKENDS, text, &|_| false).expect_err(text).to_string();
        assert!(why.contains(words), "{text}: {why}");
    }
}

#[test]
fn a_disk_that_looks_like_a_disc_is_asked_about() {
    for name in ["install.iso", "/srv/Install.ISO"] {
        let hint = hint(name).expect("looks like one");
        assert!(hint.contains(&format!("did you mean cd:{name}")), "{hint}");
    }
    for name in ["cd:install.iso", "removable:install.iso", "disk.img", ".iso", "iso", "é.img"] {
        assert_eq!(hint(name), None, "{name}");
    }
}
