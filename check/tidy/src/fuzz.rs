//! Checks that each fuzz target has seeds: without any, a fuzzer spends its first minutes on the outer format.

use crate::{Finding, Tree};

/// The folder of the targets, and that of their seeds.
const TARGETS: &str = "check/fuzz/src/bin/";
const SEEDS: &str = "check/fuzz/seeds/";

/// The fuzz targets of a tree that have no seeds.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let target = |path: &str| path.strip_prefix(TARGETS)?.strip_suffix(".rs").map(str::to_owned);
    let targets = tree.with_extension("rs").filter_map(|(path, _)| Some((path, target(path)?)));
    let bare = targets.filter(|(_, name)| !tree.has(&format!("{SEEDS}{name}")));
    bare.map(|(path, name)| Finding::new(path, 0, format!("has no seeds: add small inputs to {SEEDS}{name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_without_seeds_is_found() {
        let files =
            [("check/fuzz/src/bin/one.rs", ""), ("check/fuzz/src/bin/two.rs", ""), ("check/fuzz/seeds/one/a", "")];
        let found = check(&Tree::of(&files));
        assert_eq!(found.len(), 1);
        assert!(found[0].path.ends_with("two.rs") && found[0].what.contains("seeds/two"));
    }
}
