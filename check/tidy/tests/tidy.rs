//! Checks the repository itself.

use lunar_tidy::{Finding, Tree, architecture, circles, code, errors, fuzz, manifests, pages, vocabulary, words};
use std::path::Path;

fn tree() -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::load(&root).expect("the repository can be read");
    assert!(tree.texts().count() > 20, "not the repository");
    tree
}

fn none(findings: Vec<Finding>) {
    let list: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(list.is_empty(), "{} findings:\n{}", list.len(), list.join("\n"));
}

#[test]
fn manifests_keep_to_the_layers() {
    none(manifests::check(&tree()));
}

#[test]
fn code_keeps_to_the_limits() {
    none(code::check(&tree()));
}

#[test]
fn errors_are_types() {
    none(errors::check(&tree()));
}

#[test]
fn no_forbidden_words() {
    none(words::check(&tree()));
}

#[test]
fn pages_are_complete() {
    none(pages::check(&tree()));
}

#[test]
fn generated_pages_are_current() {
    let how = "LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs";
    none(pages::check_generated(&tree(), "docs/commands.md", &lunar_scsi::docs::commands(), how));
}

#[test]
fn fuzz_targets_have_seeds() {
    none(fuzz::check(&tree()));
}

#[test]
fn no_large_import_circles() {
    none(circles::check(&tree()));
}

#[test]
fn no_retired_words() {
    none(vocabulary::check(&tree()));
}

#[test]
fn the_architecture_page_names_files_that_exist_and_all_crates() {
    none(architecture::check(&tree()));
}
