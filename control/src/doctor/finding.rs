//! A finding: a code with its subject, the measured numbers, and a command.

use super::table::{Area, Code, Severity};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::{self, Write as _};

/// A finding.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "finding")]
pub struct Finding {
    /// Its code.
    #[schemars(with = "String")]
    pub code: Code,
    /// The area of its code.
    pub area: Area,
    /// How bad it is.
    pub severity: Severity,
    /// Its subject, such as `volume disk1`.
    pub subject: String,
    /// The finding in words.
    pub words: String,
    /// The numbers and names from which it was concluded.
    pub evidence: Vec<Evidence>,
    /// The remedy in words.
    pub remedy: String,
    /// A command that is the remedy, or that shows more.
    pub command: String,
}

/// A measured number, or a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "evidence")]
pub struct Evidence {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

impl Finding {
    /// A finding of this code.
    pub fn new(code: Code, subject: impl Into<String>) -> Self {
        Self {
            code,
            area: code.area(),
            severity: code.severity(),
            subject: subject.into(),
            words: code.title().to_owned(),
            evidence: Vec::new(),
            remedy: code.remedy().to_owned(),
            command: String::new(),
        }
    }

    /// With words of its own.
    #[must_use]
    pub fn words(mut self, words: impl Into<String>) -> Self {
        self.words = words.into();
        self
    }

    /// With a remedy of its own.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// With evidence.
    #[must_use]
    pub fn shows(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.evidence.push(Evidence { name, value: value.to_string() });
        self
    }

    /// With a command.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// The finding in lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} {}: {}\n", self.code, self.subject, self.words);
        if !self.evidence.is_empty() {
            let all: Vec<_> = self.evidence.iter().map(|Evidence { name, value }| format!("{name} {value}")).collect();
            let _ = writeln!(text, "    {}", all.join(", "));
        }
        let _ = writeln!(text, "    {}", self.remedy);
        if !self.command.is_empty() {
            let _ = writeln!(text, "    $ {}", self.command);
        }
        text
    }
}

/// A word in a command of the shell.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_text_and_json() {
        let finding = Finding::new(Code::FileSystemFull, "file system /srv").shows("free", "1 MiB").command("df /srv");
        let text = finding.text();
        assert!(text.starts_with("file-system-full file system /srv: ") && text.contains("    free 1 MiB\n"), "{text}");
        assert!(text.ends_with("    $ df /srv\n"), "{text}");
        let json = serde_json::json!(finding);
        assert_eq!((&json["code"], &json["severity"]), (&"file-system-full".into(), &"error".into()));
        assert_eq!((&json["area"], &json["evidence"][0]["value"]), (&"stores".into(), &"1 MiB".into()));
    }

    #[test]
    fn names_are_quoted_for_the_shell() {
        assert_eq!(
            (quoted("/srv/disk1.img"), quoted("a b"), quoted("a'b")),
            ("/srv/disk1.img".into(), "'a b'".into(), "'a'\\''b'".into())
        );
        assert_eq!((quoted(""), quoted("$(x)")), ("''".into(), "'$(x)'".into()));
    }
}
