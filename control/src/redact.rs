//! Redaction of secrets in the text of a configuration. A value is shown only where the schema declares that it is no
//! secret: a misspelled key may still have a secret as its value.

use crate::kind::Kind;
use crate::schema::Schema;
use crate::secret::{HIDDEN, PLACES};
use crate::section::{Shape, Table};
use similar::{Change, ChangeTag, TextDiff};
use std::collections::BTreeSet;
use std::ops::Range;
use toml::de::DeValue;

/// The place of a value.
#[derive(Clone, Copy)]
enum Place {
    /// The whole file.
    Root,
    /// Resources of this kind, by name.
    Resources(Kind),
    /// A resource of this kind.
    Resource(Kind),
    /// A secret, or its location.
    Secret,
    /// Not secret.
    Shown,
    /// Not declared, so it may be secret.
    Unknown,
}

impl Place {
    fn of(self, schema: &'static Schema, key: &str) -> Self {
        match self {
            Self::Root => match schema.kind(key) {
                Some(kind) if kind.is_named() => Self::Resources(kind),
                Some(kind) if kind.is_single() => Self::Resource(kind),
                _ => Self::Unknown,
            },
            Self::Resources(kind) => Self::Resource(kind),
            Self::Resource(kind) => match schema.keys(kind).iter().find(|known| known.is(key)) {
                Some(known) if has_secret(&(known.shape)()) => Self::Secret,
                Some(_) => Self::Shown,
                None => Self::Unknown,
            },
            Self::Secret if PLACES.contains(&key) => Self::Shown,
            Self::Shown => Self::Shown,
            Self::Secret | Self::Unknown => Self::Unknown,
        }
    }
}

/// Whether values of this form may be secrets.
fn has_secret(shape: &Shape) -> bool {
    match shape {
        Shape::Secret => true,
        Shape::Optional(inner) | Shape::List(inner) => has_secret(inner),
        _ => false,
    }
}

/// The quoted and the hidden parts of a text.
struct Spans {
    schema: &'static Schema,
    hidden: Vec<Range<usize>>,
    /// Keys and values: a `#` in them does not start a comment.
    quoted: Vec<Range<usize>>,
    /// The secrets that are in the text.
    secrets: Vec<(Range<usize>, String)>,
}

impl Spans {
    /// The parts of a text; `None` if it has syntax errors.
    fn of(schema: &'static Schema, text: &str) -> Option<Self> {
        let (root, errors) = Table::parse_recoverable(text);
        let mut spans = Self { schema, hidden: Vec::new(), quoted: Vec::new(), secrets: Vec::new() };
        spans.table(root.get_ref(), Place::Root);
        errors.is_empty().then_some(spans)
    }

    fn table(&mut self, table: &Table<'_>, place: Place) {
        for (key, value) in table {
            self.quoted.push(key.span());
            self.value(value.get_ref(), value.span(), place.of(self.schema, key.get_ref()));
        }
    }

    fn value(&mut self, value: &DeValue<'_>, span: Range<usize>, place: Place) {
        match (value, place) {
            (DeValue::Table(table), _) => self.table(table, place),
            (DeValue::Array(all), _) => {
                let place = if matches!(place, Place::Shown) { place } else { Place::Unknown };
                all.iter().for_each(|item| self.value(item.get_ref(), item.span(), place));
            }
            (_, Place::Shown) => self.quoted.push(span),
            _ => {
                if let (DeValue::String(secret), Place::Secret) = (value, place) {
                    self.secrets.push((span.clone(), secret.clone().into_owned()));
                }
                self.quoted.push(span.clone());
                self.hidden.push(span);
            }
        }
    }

    /// Hides comments with `=`, which may be settings with secrets.
    fn comments(&mut self, text: &str) {
        self.quoted.sort_by_key(|span| span.start);
        let (mut at, mut next) = (0, 0);
        while let Some(mark) = text[at..].find('#').map(|found| at + found) {
            next += self.quoted[next..].iter().take_while(|span| span.end <= mark).count();
            if let Some(span) = self.quoted.get(next).filter(|span| span.start <= mark) {
                at = span.end;
                continue;
            }
            at = text[mark..].find('\n').map_or(text.len(), |found| mark + found);
            let words = mark + 1..mark + text[mark..at].trim_end().len();
            if text[words.clone()].contains('=') {
                self.hidden.push(words);
            }
        }
    }
}

/// The text of a configuration in which secrets and comments that may contain secrets are replaced. A text with syntax
/// errors is not shown at all, because the places of its secrets are unknown.
#[must_use]
pub fn without_secrets(schema: &'static Schema, text: &str) -> String {
    let Some(mut spans) = Spans::of(schema, text) else { return "# not shown: it cannot be read\n".into() };
    spans.comments(text);
    spans.hidden.sort_by_key(|span| span.start);
    let (mut shown, mut at) = (String::with_capacity(text.len()), 0);
    for span in spans.hidden {
        // A span may be inside of the one before: a key that is in the file twice has one place only.
        if span.start >= at {
            shown.push_str(&text[at..span.start]);
            let is_comment = shown.ends_with('#');
            shown.push_str(&if is_comment { format!(" {HIDDEN}") } else { format!("\"{HIDDEN}\"") });
        }
        at = at.max(span.end);
    }
    shown.push_str(&text[at..]);
    shown
}

/// The secrets that are in the text of a configuration itself.
#[must_use]
pub(crate) fn secrets_of(schema: &'static Schema, text: &str) -> BTreeSet<String> {
    let secrets = Spans::of(schema, text).map(|spans| spans.secrets).unwrap_or_default();
    secrets.into_iter().map(|(_, secret)| secret).collect()
}

/// The text in which all secrets but these are replaced; `None` if it has no others.
#[must_use]
pub(crate) fn with_secrets(schema: &'static Schema, text: &str, kept: &BTreeSet<String>) -> Option<String> {
    let mut others = Spans::of(schema, text)?.secrets;
    others.retain(|(_, secret)| secret != HIDDEN && !kept.contains(secret));
    others.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut redacted = text.to_owned();
    for (span, _) in &others {
        redacted.replace_range(span.clone(), &format!("\"{HIDDEN}\""));
    }
    (!others.is_empty()).then_some(redacted)
}

/// An edited text with the comments of `present` where it has them as [`without_secrets`] shows them. Secrets are not
/// put back by their lines: two that change places would be exchanged.
pub(crate) fn with_comments(schema: &'static Schema, edited: &str, present: &str) -> String {
    let shown = without_secrets(schema, present);
    let lines: Vec<&str> = present.split_inclusive('\n').collect();
    // A secret may have several lines, and is shown in one.
    if shown.split_inclusive('\n').count() != lines.len() {
        return edited.to_owned();
    }
    let difference = TextDiff::from_lines(&shown, edited);
    let line = |change: Change<&str>| {
        let line = change.value();
        let present = change.old_index().and_then(|at| lines.get(at).copied());
        match (change.tag(), present) {
            (ChangeTag::Delete, _) => String::new(),
            (ChangeTag::Equal, Some(present)) if line.trim_start().starts_with('#') => present.to_owned(),
            _ => line.to_owned(),
        }
    };
    difference.iter_all_changes().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SAMPLE;

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let text = "[user.u]\nsecret = 'correct horse' # mine\n[user.v]\nsecret = { file = '/x' }\n[api-token.t]\n\
                    secret = 'battery staple'\nrole = 'read'\n[volume.\"a#b=c\"]\npath = '/d#e=f' # why\n\
                    [group.g]\ninitiators = [\"iqn.a:b\"]\nluns.0 = { volume = 'a' }\n[server]\nmemory = '1G'\n";
        let wanted = text.replace("'correct horse'", "\"(hidden)\"").replace("'battery staple'", "\"(hidden)\"");
        assert_eq!(without_secrets(&SAMPLE, text), wanted);
    }

    #[test]
    fn whatever_may_be_a_secret_is_hidden() {
        for text in [
            "user = { u = { sceret = 'horse' } }",
            "[user.u]\nsecret = { value = 'horse' }",
            "[user.u]\nsecret = ['horse']",
            "[user]\nsecret = 'horse'",
            "[[user]]\nname = 'u'\nsecret = 'horse'",
            "[api-tokens.admin]\nsecret = 'horse'",
            "[[api-token]]\nsecret = 'horse'",
            "secret = 'horse'",
            "[[secrets]]\nof = [['horse'], { a = 'horse' }]",
            "[user.u]\n# secret = 'horse'\nsecret = { file = '/x' } # was = 'horse'",
            "[user.u]\nsecret = 'horse",
            "user.\"#\".role = \"x\"\nuser.\"#\".secret = \"a long horse, longer than what stands in its place\"",
        ] {
            assert!(!without_secrets(&SAMPLE, text).contains("horse"), "{text}: {}", without_secrets(&SAMPLE, text));
        }
        assert_eq!(
            without_secrets(&SAMPLE, "user = { u = { sceret = 'horse' } }"),
            "user = { u = { sceret = \"(hidden)\" } }"
        );
        assert_eq!(without_secrets(&SAMPLE, "# a = b\r\n# no more\n"), "# (hidden)\r\n# no more\n");
        assert_eq!(without_secrets(&SAMPLE, &"#=\n".repeat(1 << 20)), "# (hidden)\n".repeat(1 << 20), "and soon");
    }
}
