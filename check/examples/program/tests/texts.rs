//! The example back ends on the command line.

use lunar_core::protection::Kind;
use lunar_engine::backend::verify;
use lunar_engine::volume::Volume;
use lunar_engine::volume::command_line::Options;
use lunar_examples::REGISTRY;

fn refused(text: &str, options: &Options) -> String {
    Volume::open_text(REGISTRY.backends, text, options).expect_err(text).to_string()
}

#[test]
fn the_registry_is_consistent() {
    assert_eq!(verify(REGISTRY.backends), Ok(()));
}

#[test]
fn a_device_has_neither_size_nor_medium_nor_protection_information() {
    let tape = Volume::open_text(REGISTRY.backends, "tape:", &Options::PLAIN).expect("a tape drive");
    assert_eq!((tape.size(), tape.opened().store().is_none(), tape.is_direct()), (None, true, false));
    let protected = Options { protection: Some(Kind::One), ..Options::PLAIN };
    assert_eq!(refused("tape:1G", &Options::PLAIN), "tape:1G: it takes nothing behind the colon: tape:");
    assert_eq!(refused("removable:tape:", &Options::PLAIN), "removable:tape:: a device has its own medium");
    assert!(refused("cd:tape:", &Options::PLAIN).contains("an image in a file"));
    assert!(refused("tape:", &protected).ends_with("leave out --protection"));
}

#[test]
fn an_example_in_a_refusal_is_that_of_the_folder() {
    assert!(refused("", &Options::PLAIN).ends_with("ram:1G, null:1T, pattern:1G or tape:"));
    assert_eq!(
        refused("pattern:1000", &Options::PLAIN),
        "pattern:1000: 1000 bytes are not a whole number of 512-byte blocks; 512 or 1K would do"
    );
}
