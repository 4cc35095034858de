//! Secrets: never shown, compared in constant time, erased on drop.

pub use lunar_core::access::Secret;

use crate::report::{Mark, Report, did_you_mean};
use crate::section::{Item, Shape, Value, kind_of};
use crate::value::{FilePath, Textual};
use serde_json::{Value as Json, json};
use toml::de::DeValue;

/// The replacement of a redacted secret. It is too short to be a secret.
pub const HIDDEN: &str = "(hidden)";

/// The keys of the location of a secret.
pub(crate) const PLACES: [&str; 2] = ["file", "credential"];

/// The location of a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SecretSource {
    /// In the configuration file, which only its owner may read.
    Inline(Secret),
    /// In a file of its own, which only its owner may read. A newline at its end is not part of the secret.
    File(FilePath),
    /// A credential of systemd, by name.
    Credential(String),
}

impl SecretSource {
    fn from_table(word: &str, text: &str, at: Mark, report: &mut Report) -> Option<Self> {
        match word {
            "file" => match FilePath::parse(text) {
                Ok(path) => return Some(Self::File(path)),
                Err(why) => report.add(at, format!("'{text}' {why}")),
            },
            "credential" => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
                if !text.is_empty() && !text.starts_with('.') && text.bytes().all(plain) {
                    return Some(Self::Credential(text.to_owned()));
                }
                report.add(at, "the name of a credential is made of letters, digits, '.', '_' and '-'");
            }
            _ => {
                let guess = did_you_mean(word, PLACES);
                report.add(at, format!("a secret has no '{word}'{guess}; {FORMS}"));
            }
        }
        None
    }
}

const FORMS: &str = "it is { file = \"/path\" }, { credential = \"name\" }, or the secret itself as a string";

impl Value for SecretSource {
    fn shape() -> Shape {
        Shape::Secret
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let at = Mark::new(item.span());
        match item.get_ref() {
            DeValue::String(text) if text == HIDDEN => {
                report.add(at, "this is what a secret looks like when it is shown, not a secret");
                None
            }
            DeValue::String(text) => Some(Self::Inline(Secret::of_any_length(text.as_bytes().to_vec()))),
            DeValue::Table(table) if table.len() == 1 => {
                let (word, value) = table.iter().next()?;
                let at = Mark::new(value.span());
                let Some(text) = value.get_ref().as_str() else {
                    report.add(at, format!("is {}, not a string", kind_of(value.get_ref())));
                    return None;
                };
                Self::from_table(word.get_ref(), text, at, report)
            }
            other => {
                report.add(at, format!("is {}, no secret; {FORMS}", kind_of(other)));
                None
            }
        }
    }

    fn show(&self) -> Json {
        match self {
            Self::Inline(_) => json!(HIDDEN),
            Self::File(path) => json!({ "file": path.text() }),
            Self::Credential(name) => json!({ "credential": name }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let source = SecretSource::Inline(Secret::of_any_length(b"correct horse battery".to_vec()));
        for shown in [format!("{source:?}"), format!("{source:#?}"), source.show().to_string()] {
            assert!(!shown.contains("horse") && shown.contains(HIDDEN), "{shown}");
        }
    }
}
