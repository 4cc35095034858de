//! The checks of a registry of back ends.

mod common;

use common::BACKENDS;
use lunar_engine::backend::{BACKENDS_MAX, Backend, RegistryMistake, find, verify};
use lunar_file::backend::FileBackend;
use lunar_null::backend::NullBackend;

#[test]
fn a_registry_has_each_name_once() {
    assert_eq!(verify(BACKENDS), Ok(()));
    assert_eq!(verify(&[&FileBackend, &NullBackend, &FileBackend]), Err(RegistryMistake::Taken("file")));
    let many: Vec<&'static dyn Backend> = vec![&NullBackend; BACKENDS_MAX + 1];
    assert_eq!(verify(&many), Err(RegistryMistake::TooMany(65)));
}

#[test]
fn a_back_end_is_found_by_its_name() {
    assert_eq!(find(BACKENDS, "ram").map(|backend| backend.name()), Some("ram"));
    assert!(find(BACKENDS, "tape").is_none());
}
