//! Holds the order of the house: what ARCHITECTURE.md and STYLE.md say and a machine can check.
//!
//! * [`manifests`]: who may depend on whom; what every crate inherits
//! * [`code`]: budgets of files and functions, `unsafe` and its reasons, `unwrap`, opening lines
//! * [`words`]: words that have no place here
//! * [`pages`]: links, licences, generated pages
//!
//! Each check is a function from a [`Tree`] to what it found, so that samples in its tests show that it can fail.
//! There is no list of exemptions.

pub mod circles;
pub mod code;
pub mod manifests;
pub mod pages;
pub mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The file, from the root.
    pub path: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The files of the repository: path from the root, with slashes, and text. Files that are not text have none.
#[derive(Clone, Default, Debug)]
pub struct Tree(BTreeMap<String, Option<String>>);

impl Tree {
    /// What is under `root`, but for what `.gitignore` names, and git's own.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn load(root: &Path) -> io::Result<Self> {
        let ignored = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
        let ignored: Vec<&str> = ignored.lines().map(|line| line.trim().trim_matches('/')).collect();
        let mut tree = Self::default();
        tree.walk(root, "", &ignored)?;
        Ok(tree)
    }

    fn walk(&mut self, root: &Path, folder: &str, ignored: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if name == ".git" || ignored.iter().any(|entry| *entry == path || *entry == name) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.walk(root, &path, ignored)?;
            } else if kind.is_file() {
                self.0.insert(path, String::from_utf8(fs::read(entry.path())?).ok());
            }
        }
        Ok(())
    }

    /// A tree of samples.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect())
    }

    /// The text of a file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path)?.as_deref()
    }

    /// Whether there is such a file or folder.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.0.contains_key(path) || self.0.keys().any(|known| known.starts_with(&folder))
    }

    /// Every text file.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Every text file with this extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| path.rsplit_once('.').is_some_and(|(_, end)| end == extension))
    }
}

/// The folder part of a path; empty for the root.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path relative to a folder, with `.` and `..` resolved; `None` when it leaves the root.
fn resolve(folder: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve() {
        assert_eq!(resolve("a/b", "../c.md").as_deref(), Some("a/c.md"));
        assert_eq!(resolve("", "./docs/x.md").as_deref(), Some("docs/x.md"));
        assert_eq!(resolve("a", "../../x"), None);
        assert_eq!((folder_of("a/b.rs"), folder_of("b.rs")), ("a", ""));
    }

    #[test]
    fn folders_are_known_by_their_files() {
        let tree = Tree::of(&[("a/b/c.rs", "")]);
        assert!(tree.has("a/b") && tree.has("a") && tree.has("a/b/c.rs") && tree.has(""));
        assert!(!tree.has("a/b/c") && !tree.has("b"));
    }
}
