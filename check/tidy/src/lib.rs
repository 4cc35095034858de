//! Checks the rules of ARCHITECTURE.md, STYLE.md and docs/glossary.md that a program can check.
//!
//! * [`manifests`]: dependencies between crates, and the fields that every crate inherits
//! * [`code`]: lengths of files and functions, `unsafe` and its reasons, `unwrap`, module documentation
//! * [`errors`]: errors that are strings
//! * [`circles`]: import circles
//! * [`words`]: words that must not appear
//! * [`vocabulary`]: retired words
//! * [`architecture`]: the tables of ARCHITECTURE.md
//! * [`fuzz`]: fuzz targets without seeds
//! * [`pages`]: links, licences, generated pages
//!
//! Each check is a function from a [`Tree`] to its findings; tests with samples show that it can fail.

pub mod architecture;
pub mod circles;
pub mod code;
pub mod errors;
pub mod fuzz;
pub mod manifests;
pub mod pages;
mod prose;
pub mod vocabulary;
pub mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// A violation of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The path of the file from the root.
    pub path: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// The violation, and how to correct it.
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

/// The files of the repository: paths from the root with slashes, and texts. Files that are not UTF-8 have no text.
#[derive(Clone, Default, Debug)]
pub struct Tree(BTreeMap<String, Option<String>>);

impl Tree {
    /// Reads the files below `root`, without those of git and those that `.gitignore` names.
    ///
    /// # Errors
    /// If a file cannot be read.
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

    /// A tree of sample files, for tests.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect())
    }

    /// The text of a file; `None` if it does not exist or is not UTF-8.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path)?.as_deref()
    }

    /// Whether a file or folder exists.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.0.contains_key(path) || self.0.keys().any(|known| known.starts_with(&folder))
    }

    /// All text files: path and text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// All text files with this extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| path.rsplit_once('.').is_some_and(|(_, end)| end == extension))
    }
}

/// The folder of a path; empty for the root.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path relative to a folder, with `.` and `..` resolved; `None` if it leads out of the root.
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
    fn relative_paths_are_resolved() {
        assert_eq!(resolve("a/b", "../c.md").as_deref(), Some("a/c.md"));
        assert_eq!(resolve("", "./docs/x.md").as_deref(), Some("docs/x.md"));
        assert_eq!(resolve("a", "../../x"), None);
        assert_eq!((folder_of("a/b.rs"), folder_of("b.rs")), ("a", ""));
    }

    #[test]
    fn a_folder_exists_if_it_contains_a_file() {
        let tree = Tree::of(&[("a/b/c.rs", "")]);
        assert!(tree.has("a/b") && tree.has("a") && tree.has("a/b/c.rs") && tree.has(""));
        assert!(!tree.has("a/b/c") && !tree.has("b"));
    }
}
