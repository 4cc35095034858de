//! Checks the tables of ARCHITECTURE.md against the tree: the extension table names only files and folders that exist,
//! and the crate table has a row for each crate.

use crate::{Finding, Tree, folder_of};

/// The page.
const PAGE: &str = "ARCHITECTURE.md";
/// The heading above the extension table.
const EXTENSIONS: &str = "## Where does a new thing go?";
/// The beginning of the crate table.
const CRATES: &str = "| folder |";
/// The ends of names that are taken for files.
const FILES: &[&str] = &[".rs", ".md", ".toml", ".json", ".py", ".sh"];

/// All findings in the tables.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let page = tree.text(PAGE).unwrap_or_default();
    let mut findings = extensions(tree, page);
    findings.extend(crates(tree, page));
    findings
}

/// The rows of the first table in or below the line that begins with `start`, with their numbers. A heading ends the
/// search.
fn table<'a>(page: &'a str, start: &str) -> Vec<(usize, &'a str)> {
    let lines = page.lines().enumerate().map(|(at, line)| (at + 1, line));
    let from_start = lines.skip_while(|(_, line)| !line.starts_with(start));
    let section = from_start.enumerate().take_while(|(at, (_, line))| *at == 0 || !line.starts_with('#'));
    let rows = section.map(|(_, line)| line).skip_while(|(_, line)| !line.starts_with('|'));
    // The first two rows are the heading of the table and its rule.
    rows.take_while(|(_, line)| line.starts_with('|')).skip(2).collect()
}

/// The text between backticks.
fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

/// Checks the paths of the extension table. They begin at the root, or in the folder of an earlier path of their row.
fn extensions(tree: &Tree, page: &str) -> Vec<Finding> {
    let rows = table(page, EXTENSIONS);
    let mut findings = Vec::new();
    if rows.is_empty() {
        findings.push(Finding::new(PAGE, 0, format!("has no table under `{EXTENSIONS}`")));
    }
    for (line, row) in rows {
        let mut folders: Vec<Vec<String>> = vec![vec![String::new()]];
        for path in quoted(row).filter(|text| is_path(text)) {
            let found = folders.iter().find_map(|folders| in_folders(tree, folders, path));
            match found {
                Some(of_path) => folders.push(of_path),
                None => findings.push(Finding::new(PAGE, line, format!("no file or folder `{path}`"))),
            }
        }
    }
    findings
}

/// Whether a text between backticks is a path rather than a name in code.
fn is_path(text: &str) -> bool {
    !text.contains(char::is_whitespace) && (text.contains('/') || FILES.iter().any(|end| text.ends_with(end)))
}

/// If each alternative of `path` exists in each of the folders: the folders of all of them.
fn in_folders(tree: &Tree, folders: &[String], path: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for folder in folders {
        for path in alternatives(path) {
            let whole = if folder.is_empty() { path } else { format!("{folder}/{path}") };
            let is_folder = whole.ends_with('/');
            let whole = whole.trim_end_matches('/');
            let found = matches(tree, whole, is_folder);
            if found.is_empty() {
                return None;
            }
            all.extend(found);
        }
    }
    Some(all)
}

/// The paths of a text with alternatives: `a/{b,c}/d` means `a/b/d` and `a/c/d`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (inner, after))) => {
            let after = alternatives(after);
            let joined = |one: &str| after.iter().map(|after| format!("{before}{one}{after}")).collect::<Vec<_>>();
            inner.split(',').flat_map(|one| joined(one.trim())).collect()
        }
        None => vec![path.to_owned()],
    }
}

/// The folders of the files and folders with this path, in which a part `*` stands for any name. A file's folder is the
/// one that contains it, a folder's is itself.
fn matches(tree: &Tree, path: &str, is_folder: bool) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    let mut found: Vec<String> = Vec::new();
    for (known, _) in tree.texts() {
        let names: Vec<&str> = known.split('/').collect();
        let fits =
            names.len() >= parts.len() && parts.iter().zip(&names).all(|(part, name)| *part == "*" || part == name);
        if !fits {
            continue;
        }
        let folder = match names.len() == parts.len() {
            true if is_folder => continue,
            true => folder_of(known).to_owned(),
            false => names[..parts.len()].join("/"),
        };
        if !found.contains(&folder) {
            found.push(folder);
        }
    }
    found
}

/// Checks that each crate has a row, and that each row names a folder.
fn crates(tree: &Tree, page: &str) -> Vec<Finding> {
    let rows: Vec<(usize, &str)> =
        table(page, CRATES).into_iter().filter_map(|(line, row)| Some((line, quoted(row).next()?))).collect();
    let mut findings = Vec::new();
    let manifests = tree.with_extension("toml").filter(|(path, _)| path.ends_with("/Cargo.toml"));
    for (manifest, _) in manifests.filter(|(_, text)| text.lines().any(|line| line.trim() == "[package]")) {
        let folder = folder_of(manifest);
        let parent = folder_of(folder);
        let is_row = |row: &str| row.strip_suffix('/') == Some(folder) || row.strip_suffix("/*") == Some(parent);
        if !rows.iter().any(|(_, row)| is_row(row)) {
            findings.push(Finding::new(PAGE, 0, format!("the crate table has no row for `{folder}/`")));
        }
    }
    for (line, row) in rows {
        let folder = row.strip_suffix("/*").or_else(|| row.strip_suffix('/'));
        if !folder.is_some_and(|folder| tree.has(folder)) {
            findings.push(Finding::new(PAGE, line, format!("no folder `{row}`: write `folder/` or `folder/*`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page whose tables have these rows.
    fn page(crates: &[&str], extensions: &[&str]) -> String {
        let crates: String = crates.iter().map(|row| format!("| `{row}` | text |\n")).collect();
        let extensions: String = extensions.iter().map(|row| format!("| thing | {row} |\n")).collect();
        format!(
            "# Plan\n\n## Picture\n\n| folder | what |\n|---|---|\n{crates}\nText.\n\n{EXTENSIONS}\n\n\
            | new | files |\n|---|---|\n{extensions}\n## Limits\n\n| a | `none/` |\n"
        )
    }

    fn found(crates: &[&str], extensions: &[&str]) -> Vec<String> {
        let page = page(crates, extensions);
        let files = [
            (PAGE, page.as_str()),
            ("Cargo.toml", "[workspace]"),
            ("a/Cargo.toml", "[package]"),
            ("a/src/b.rs", ""),
            ("a/src/c/b.rs", ""),
            ("a/src/d/b.rs", ""),
            ("back/e/Cargo.toml", "[package]"),
        ];
        check(&Tree::of(&files)).into_iter().map(|finding| finding.what).collect()
    }

    const GOOD: &[&str] = &["a/", "back/*"];

    #[test]
    fn paths_of_the_extension_table_must_exist() {
        for row in [
            "`a/src/b.rs`, then `c/b.rs`, `a/`",
            "`a/src/{c,d}/b.rs`, `a/src/*/b.rs`, `a/src/{c,d}/`, then `b.rs`",
            "`Name`, `[section]`, `name()`, `an a/b`, none",
        ] {
            assert_eq!(found(GOOD, &[row]), [""; 0], "{row}");
        }
        for (row, path) in [
            ("`a/src/x.rs`", "a/src/x.rs"),
            ("`b.rs`", "b.rs"),
            ("`a/src/b.rs/`", "a/src/b.rs/"),
            ("`a/src/c/b.rs`, `d/b.rs`", "d/b.rs"),
            ("`a/src/{c,x}/b.rs`", "a/src/{c,x}/b.rs"),
            ("`a/*/x.rs`", "a/*/x.rs"),
            ("`a/src/c`, then `x.rs`", "x.rs"),
        ] {
            assert_eq!(found(GOOD, &[row]), [format!("no file or folder `{path}`")], "{row}");
        }
    }

    #[test]
    fn the_extension_table_must_exist() {
        assert_eq!(found(GOOD, &[]).len(), 1);
    }

    #[test]
    fn each_crate_has_a_row_and_each_row_a_folder() {
        let rows = &["`a/`"];
        assert_eq!(found(&["a/", "back/e/"], rows), [""; 0]);
        assert_eq!(found(&["a/"], rows), ["the crate table has no row for `back/e/`"]);
        assert_eq!(found(&["back/*"], rows), ["the crate table has no row for `a/`"]);
        assert_eq!(found(&["a/", "back/*", "x/"], rows).len(), 1);
        assert_eq!(found(&["a/", "back/*", "a/src/b.rs"], rows).len(), 1);
        assert_eq!(found(&[], rows).len(), 2);
    }
}
