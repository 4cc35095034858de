//! Checks the manifests: the allowed dependencies between crates, and the fields that every crate inherits.

use crate::{Finding, Tree, folder_of, resolve};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// The layers: the folder of a crate (`*`: any folder below), and the folders of the crates that it may depend on.
/// Development dependencies are not restricted.
const LAYERS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("durable", &[]),
    ("unit", &["core"]),
    ("scsi", &["core", "unit"]),
    ("nvme", &["core", "unit"]),
    ("block", &["core", "unit"]),
    ("reactor", &["core"]),
    ("stream", &["core", "reactor"]),
    ("guest", &["core"]),
    ("link", &["core", "reactor"]),
    ("st", &["core", "reactor", "link"]),
    ("handler", &["core", "reactor"]),
    ("verbs", &["core"]),
    ("rdma", &["core", "reactor", "link", "verbs"]),
    ("rbd", &["core", "handler", "reactor"]),
    ("tcmu", &["handler"]),
    ("tape", &["core", "durable", "scsi", "handler", "reactor"]),
    ("control", &["core", "durable"]),
    ("engine", &["core", "durable", "unit", "scsi", "nvme", "block", "reactor", "link", "rdma", "control"]),
    ("front/sst", &["core", "scsi", "reactor", "link", "st", "control", "engine"]),
    ("front/*", &["core", "scsi", "nvme", "block", "reactor", "stream", "guest", "link", "rdma", "control", "engine"]),
    ("back/scsi", &["core", "scsi", "reactor", "control", "engine"]),
    ("back/handler", &["core", "scsi", "handler", "reactor", "control", "engine"]),
    ("back/sst", &["core", "reactor", "link", "st", "client/sst", "control", "engine"]),
    ("back/*", &["core", "reactor", "control", "engine"]),
    ("api", &["core", "control"]),
    ("cli", &["core", "durable", "control", "api"]),
    ("client/iscsi", &["core", "front/*"]),
    ("client/nvme", &["core", "nvme", "guest", "front/*"]),
    ("client/isns", &["core"]),
    ("client/aoe", &["core", "link", "front/*"]),
    ("client/fcoe", &["core", "link", "front/*"]),
    ("client/sst", &["core", "st", "front/*"]),
    ("client/rdma", &["core", "rdma"]),
    ("client/vhost-user", &["core", "block", "guest", "front/*"]),
    ("client/ublk", &["core", "block", "guest", "reactor", "front/*", "client/vhost-user"]),
    (
        "client/load",
        &[
            "core",
            "nvme",
            "reactor",
            "guest",
            "link",
            "front/*",
            "client/iscsi",
            "client/nvme",
            "client/aoe",
            "client/fcoe",
            "client/sst",
            "client/rdma",
            "client/vhost-user",
            "st",
            "rdma",
            "block",
        ],
    ),
    (
        "lunar",
        &[
            "core", "unit", "scsi", "nvme", "block", "reactor", "front/*", "back/*", "control", "engine", "api", "cli",
            "client/*",
        ],
    ),
];

/// Crates for development only: they may depend on all crates, and no other crate depends on them.
const DEVELOPMENT: &[&str] = &["check/*", "back/suite"];

/// The fields that every manifest inherits from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "repository", "publish"];

struct Crate<'a> {
    manifest: &'a str,
    folder: &'a str,
    table: Table,
}

/// All findings in the manifests of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let (crates, mut findings) = crates(tree);
    findings.extend(crates.iter().flat_map(|crate_| wrong_dependencies(&crates, crate_)));
    findings.extend(crates.iter().flat_map(|crate_| not_inherited(tree, crate_)));
    findings
}

fn crates(tree: &Tree) -> (Vec<Crate<'_>>, Vec<Finding>) {
    let (mut crates, mut findings) = (Vec::new(), Vec::new());
    for (manifest, text) in tree.texts().filter(|(path, _)| path.rsplit('/').next() == Some("Cargo.toml")) {
        match text.parse::<Table>() {
            Ok(table) if table.contains_key("package") => {
                crates.push(Crate { manifest, folder: folder_of(manifest), table });
            }
            Ok(_) => {}
            Err(why) => findings.push(Finding::new(manifest, 0, format!("cannot be read: {why}"))),
        }
    }
    (crates, findings)
}

impl Crate<'_> {
    fn name(&self) -> Option<&str> {
        self.table.get("package")?.get("name")?.as_str()
    }

    /// The names of its dependencies and build dependencies.
    fn dependencies(&self) -> Vec<&str> {
        let mut tables = vec![&self.table];
        let targets = self.table.get("target").and_then(Value::as_table);
        tables.extend(targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table)));
        let mut names = Vec::new();
        for table in tables {
            for kind in ["dependencies", "build-dependencies"] {
                let entries = table.get(kind).and_then(Value::as_table);
                names.extend(
                    entries
                        .into_iter()
                        .flatten()
                        .map(|(name, entry)| entry.get("package").and_then(Value::as_str).unwrap_or(name)),
                );
            }
        }
        names
    }

    /// The folders of its path dependencies.
    fn paths(&self) -> Vec<String> {
        let entries = self.table.get("dependencies").and_then(Value::as_table);
        let paths = entries.into_iter().flatten().filter_map(|(_, entry)| entry.get("path")?.as_str());
        paths.filter_map(|path| resolve(self.folder, path)).collect()
    }
}

/// The layer of a folder.
fn layer(folder: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    if is_development(folder) {
        return None;
    }
    LAYERS.iter().find(|(layer, _)| matches_layer(folder, layer))
}

fn is_development(folder: &str) -> bool {
    DEVELOPMENT.iter().any(|layer| matches_layer(folder, layer))
}

fn matches_layer(folder: &str, layer: &str) -> bool {
    match layer.strip_suffix("/*") {
        Some(parent) => folder.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/')),
        None => folder == layer,
    }
}

fn wrong_dependencies(crates: &[Crate<'_>], crate_: &Crate<'_>) -> Vec<Finding> {
    if is_development(crate_.folder) {
        return Vec::new();
    }
    let Some((_, allowed)) = layer(crate_.folder) else {
        let what = format!("`{}` has no layer: add it to LAYERS", crate_.folder);
        return vec![Finding::new(crate_.manifest, 0, what)];
    };
    let by_name: BTreeMap<&str, &str> = crates.iter().filter_map(|other| Some((other.name()?, other.folder))).collect();
    let mut used: Vec<String> =
        crate_.dependencies().into_iter().filter_map(|name| by_name.get(name)).map(|folder| (*folder).into()).collect();
    used.extend(crate_.paths());
    used.sort();
    used.dedup();
    used.retain(|folder| is_development(folder) || !allowed.iter().any(|layer| matches_layer(folder, layer)));
    used.into_iter()
        .map(|folder| Finding::new(crate_.manifest, 0, format!("`{}` must not depend on `{folder}`", crate_.folder)))
        .collect()
}

/// Checks that a crate inherits the common fields and the lints from the workspace.
fn not_inherited(tree: &Tree, crate_: &Crate<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let package = crate_.table.get("package");
    for field in INHERITED {
        let value = package.and_then(|package| package.get(*field));
        if value.and_then(|value| value.get("workspace")) != Some(&Value::Boolean(true)) {
            findings.push(Finding::new(crate_.manifest, 0, format!("`{field}` is not inherited from the workspace")));
        }
    }
    let lints = crate_.table.get("lints");
    if lints.and_then(|lints| lints.get("workspace")) != Some(&Value::Boolean(true)) {
        findings.push(Finding::new(crate_.manifest, 0, "`[lints]` are not inherited from the workspace"));
    }
    // Searching comments for doc tests takes longer than all unit tests.
    let is_library = tree.text(&format!("{}/src/lib.rs", crate_.folder)).is_some();
    let examples = crate_.table.get("lib").and_then(|lib| lib.get("doctest"));
    if is_library && examples != Some(&Value::Boolean(false)) {
        findings.push(Finding::new(
            crate_.manifest,
            0,
            "`doctest` is not off: write a unit test instead of a doc test",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = []\n[workspace.package]\nversion = '1'\nedition = '2024'\n\
        rust-version = '1'\nlicense = 'MIT'\nrepository = 'x'\npublish = false\n\
        [workspace.lints.rust]\nunsafe_code = 'deny'\n";

    fn manifest(name: &str, dependencies: &str) -> String {
        let inherited: String = INHERITED.iter().map(|field| format!("{field}.workspace = true\n")).collect();
        format!("[package]\nname = '{name}'\n{inherited}\n[lints]\nworkspace = true\n{dependencies}")
    }

    fn found(files: &[(&str, String)]) -> Vec<String> {
        let mut all = vec![("Cargo.toml", ROOT)];
        all.extend(files.iter().map(|(path, text)| (*path, text.as_str())));
        check(&Tree::of(&all)).into_iter().map(|finding| finding.what).collect()
    }

    fn used(folder: &str, other: &str) -> Vec<String> {
        let manifests = (format!("{folder}/Cargo.toml"), format!("{other}/Cargo.toml"));
        found(&[
            (&manifests.0, manifest("one", "[dependencies]\nother.workspace = true\n")),
            (&manifests.1, manifest("other", "")),
        ])
    }

    #[test]
    fn dependencies_keep_to_the_layers() {
        for (folder, other) in [
            ("core", "unit"),
            ("core", "scsi"),
            ("unit", "scsi"),
            ("unit", "reactor"),
            ("control", "unit"),
            ("core", "reactor"),
            ("scsi", "reactor"),
            ("scsi", "back/ram"),
            ("scsi", "nvme"),
            ("reactor", "scsi"),
            ("front/iscsi", "front/nvme-tcp"),
            ("front/iscsi", "back/file"),
            ("back/file", "back/block"),
            ("back/file", "scsi"),
            ("back/file", "back/suite"),
            ("lunar", "check/sim"),
            ("lunar", "check/bench/floor"),
            ("client/iscsi", "reactor"),
            ("stream", "front/iscsi"),
            ("stream", "scsi"),
            ("client/nvme", "client/iscsi"),
            ("client/load", "scsi"),
            ("client/isns", "reactor"),
        ] {
            assert_eq!(used(folder, other), [format!("`{folder}` must not depend on `{other}`")]);
        }
        for (folder, other) in [
            ("scsi", "core"),
            ("unit", "core"),
            ("scsi", "unit"),
            ("nvme", "unit"),
            ("front/iscsi", "scsi"),
            ("front/iscsi", "reactor"),
            ("front/iscsi", "stream"),
            ("back/file", "reactor"),
            ("lunar", "back/file"),
            ("check/sim", "lunar"),
            ("client/iscsi", "front/iscsi"),
            ("client/nvme", "nvme"),
            ("client/load", "client/nvme"),
        ] {
            assert_eq!(used(folder, other), [""; 0], "{folder} {other}");
        }
    }

    #[test]
    fn renamed_path_build_and_target_dependencies_are_checked() {
        let core = ("core/Cargo.toml", manifest("other", ""));
        let paths = [
            "[dependencies]\nx = { path = '../../core', package = 'other' }\n",
            "[build-dependencies]\nx = { workspace = true, package = 'other' }\n",
            "[target.'cfg(unix)'.dependencies]\nother.workspace = true\n",
        ];
        for dependencies in paths {
            let tidy = found(&[core.clone(), ("back/a/Cargo.toml", manifest("a", dependencies))]);
            assert_eq!(tidy, [""; 0]);
            let wrong = found(&[core.clone(), ("core/sub/Cargo.toml", manifest("a", dependencies))]);
            assert!(wrong.iter().any(|what| what.contains("no layer")), "{wrong:?}");
        }
        let back = ("back/b/Cargo.toml", manifest("b", ""));
        let by_path = manifest("a", "[dependencies]\nx = { path = '../b' }\n");
        assert_eq!(found(&[back, ("back/a/Cargo.toml", by_path)]), ["`back/a` must not depend on `back/b`"]);
    }

    #[test]
    fn development_dependencies_are_not_restricted() {
        let dev = manifest("one", "[dev-dependencies]\nother.workspace = true\n");
        assert_eq!(found(&[("back/a/Cargo.toml", dev), ("back/suite/Cargo.toml", manifest("other", ""))]), [""; 0]);
    }

    #[test]
    fn libraries_have_no_doc_tests() {
        let library = |more: &str| {
            let manifest = manifest("other", more);
            found(&[("core/Cargo.toml", manifest), ("core/src/lib.rs", String::new())])
        };
        assert_eq!(library("[lib]\ndoctest = false\n"), [""; 0]);
        assert_eq!((library("").len(), library("[lib]\ndoctest = true\n").len()), (1, 1));
    }

    #[test]
    fn every_crate_inherits_the_fields_of_the_workspace() {
        let bare = "[package]\nname = 'x'\nversion = '1'\n".to_owned();
        let missing = found(&[("core/Cargo.toml", bare.clone())]);
        assert_eq!(missing.len(), INHERITED.len() + 1, "{missing:?}");
        let alone = format!("{bare}[workspace]\n[lints.rust]\nunsafe_code = 'deny'\n");
        assert_eq!(found(&[("check/fuzz/Cargo.toml", alone)]).len(), INHERITED.len() + 1);
        assert_eq!(found(&[("core/Cargo.toml", "[".to_owned())]).len(), 1);
    }
}
