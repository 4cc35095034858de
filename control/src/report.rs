//! The mistakes in a configuration: all at once, each with its place.

use crate::schema::Schema;
use std::fmt;
use std::ops::Range;

/// The most problems that are listed: more have a common cause.
const PROBLEMS_MAX: usize = 200;

/// The place of a value: its first byte in the file. All places compare equal, so that equal values at different places
/// are equal.
#[derive(Clone, Copy, Default, Debug)]
pub struct Mark(u32);

impl Mark {
    /// The place of these bytes. No file is longer than 4 GiB.
    #[must_use]
    pub fn new(range: Range<usize>) -> Self {
        Self(u32::try_from(range.start).unwrap_or(u32::MAX))
    }

    /// Offset of the first byte.
    #[must_use]
    pub fn start(self) -> usize {
        self.0 as usize
    }
}

impl PartialEq for Mark {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Mark {}

/// Collects the mistakes in a configuration, with the key of each. Knows the schema of the configuration.
#[derive(Debug)]
pub struct Report {
    schema: &'static Schema,
    path: Vec<String>,
    found: Vec<(Mark, String, String)>,
    more: usize,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(schema: &'static Schema) -> Self {
        Self { schema, path: Vec::new(), found: Vec::new(), more: 0 }
    }

    /// The schema of the configuration.
    #[must_use]
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Reads the key `name` of the present object.
    pub fn within<T>(&mut self, name: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(quoted(name));
        let value = look(self);
        self.path.pop();
        value
    }

    /// Adds a problem with the present key.
    pub fn add(&mut self, at: Mark, what: impl Into<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push((at, self.path.join("."), what.into()));
        } else {
            self.more += 1;
        }
    }

    /// Whether further problems are only counted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.found.len() >= PROBLEMS_MAX
    }

    /// Whether there is no problem.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    /// The problems of the file with this name and text, in the order of the file.
    #[must_use]
    pub fn finish(mut self, file: &str, text: &str) -> Problems {
        self.found.sort_by_key(|(at, ..)| at.start());
        let lines = Lines::new(text);
        let list = self.found.into_iter().map(|(at, key, what)| {
            let (line, column) = lines.place(at.start());
            Problem { line, column, key, what }
        });
        Problems { file: file.to_owned(), list: list.collect(), more: self.more }
    }
}

/// A key as it is written in a file: without quotes where possible.
#[must_use]
pub fn quoted(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if bare { name.to_owned() } else { format!("{name:?}") }
}

/// The starts of the lines of a text.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { text, starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// Line and column of a byte, both from 1; columns count characters.
    fn place(&self, at: usize) -> (usize, usize) {
        let at = at.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line - 1];
        let before = self.text.get(start..at).map_or(at - start, |before| before.chars().count());
        (line, before + 1)
    }
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// The key, from the root: `volume.disk1.size`. Empty for the file as a whole.
    pub key: String,
    /// The problem, and what to do. Never a secret.
    pub what: String,
}

/// All problems of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    /// The file, as the user named it; empty if the text is in no file.
    pub file: String,
    /// In the order of the file.
    pub list: Vec<Problem>,
    /// How many more there are.
    pub more: usize,
}

impl Problems {
    /// A single problem with the file as a whole.
    #[must_use]
    pub fn whole(file: &str, what: impl Into<String>) -> Self {
        let problem = Problem { line: 1, column: 1, key: String::new(), what: what.into() };
        Self { file: file.to_owned(), list: vec![problem], more: 0 }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Problem { line, column, key, what }) in self.list.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            let colon = if key.is_empty() { "" } else { ": " };
            f.write_str(end)?;
            if !self.file.is_empty() {
                write!(f, "{}:{line}:{column}: ", self.file)?;
            }
            write!(f, "{key}{colon}{what}")?;
        }
        if self.more > 0 { write!(f, "\nand {} more", self.more) } else { Ok(()) }
    }
}

impl std::error::Error for Problems {}

/// `: did you mean ...?` if one of the names is similar to the written one, else nothing.
#[must_use]
pub fn did_you_mean<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = plain(written);
    // Up to a third of the letters wrong is a misspelling; more is another word.
    let most = wanted.chars().count().div_ceil(3);
    let likely = names.into_iter().filter(|name| name.len().abs_diff(written.len()) <= most);
    let near = likely.map(|name| (strsim::damerau_levenshtein(&wanted, &plain(name)), name));
    match near.filter(|(distance, _)| *distance <= most).min() {
        Some((_, name)) => format!(": did you mean '{name}'?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters() {
        let lines = Lines::new("a\nüb\n\nc");
        let places = [(0, (1, 1)), (1, (1, 2)), (2, (2, 1)), (4, (2, 2)), (6, (3, 1)), (7, (4, 1)), (99, (4, 2))];
        for (at, place) in places {
            assert_eq!(lines.place(at), place, "{at}");
        }
    }

    #[test]
    fn slips_are_guessed_and_other_words_are_not() {
        let names = ["size", "path", "block-size", "read-only"];
        for (written, guess) in [
            ("siez", "size"),
            ("Size", "size"),
            ("block_size", "block-size"),
            ("readonly", "read-only"),
            ("pth", "path"),
        ] {
            assert_eq!(did_you_mean(written, names), format!(": did you mean '{guess}'?"));
        }
        assert_eq!(did_you_mean("colour", names), "");
    }

    #[test]
    fn problems_come_in_the_order_of_the_file_and_are_bounded() {
        let mut report = Report::new(&crate::schema::EMPTY);
        report.within("volume", |report| {
            report.within("a b", |report| {
                for at in (0..=PROBLEMS_MAX).rev() {
                    report.add(Mark::new(at..at), "is wrong");
                }
            });
        });
        let problems = report.finish("x.toml", &"\n".repeat(300));
        assert!(problems.list.is_sorted_by_key(|problem| problem.line));
        assert_eq!((problems.list.len(), problems.more), (PROBLEMS_MAX, 1));
        assert!(problems.to_string().starts_with("x.toml:2:1: volume.\"a b\": is wrong\n"), "{problems}");
        assert!(problems.to_string().ends_with("and 1 more"));
    }
}
