//! Texts of configurations for those who may not know the secrets in them. Only what is known to be none is shown, in
//! the place where it is known: a slip of the pen does not make a secret less secret.

use crate::config::Kind;
use crate::secret::{HIDDEN, PLACES};
use crate::value::Shape;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// Where a value lies.
#[derive(Clone, Copy)]
enum Place {
    /// All there is.
    Root,
    /// Things of this kind, by their names.
    Things(Kind),
    /// One of them.
    Thing(Kind),
    /// What is a secret, or tells where it is.
    Secret,
    /// What everybody may see.
    Shown,
    /// What nobody knows.
    Unknown,
}

impl Place {
    fn of(self, key: &str) -> Self {
        match self {
            Self::Root => match Kind::of_section(key) {
                Some(kind) if kind.is_named() => Self::Things(kind),
                Some(kind) if kind.is_single() => Self::Thing(kind),
                _ => Self::Unknown,
            },
            Self::Things(kind) => Self::Thing(kind),
            Self::Thing(kind) => match kind.keys().iter().find(|known| known.is(key)) {
                Some(known) if (known.shape)() == Shape::Secret => Self::Secret,
                Some(_) => Self::Shown,
                None => Self::Unknown,
            },
            Self::Secret if PLACES.contains(&key) => Self::Shown,
            Self::Shown => Self::Shown,
            Self::Secret | Self::Unknown => Self::Unknown,
        }
    }
}

/// What of a text is quoted or hidden.
#[derive(Default)]
struct Spans {
    hidden: Vec<Range<usize>>,
    /// Keys and values: what looks like a comment in them is none.
    quoted: Vec<Range<usize>>,
}

impl Spans {
    fn table(&mut self, table: &DeTable<'_>, place: Place) {
        for (key, value) in table {
            self.quoted.push(key.span());
            self.value(value.get_ref(), value.span(), place.of(key.get_ref()));
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
                self.quoted.push(span.clone());
                self.hidden.push(span);
            }
        }
    }

    /// Comments that may be settings that were taken out: what stands behind their marks.
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

/// The text of a configuration with something else in the place of secrets, and of comments that may hold some. What
/// cannot be read is not shown at all: nobody could know what in it is secret.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return "# not shown: it cannot be read\n".into();
    }
    let mut spans = Spans::default();
    spans.table(root.get_ref(), Place::Root);
    spans.comments(text);
    spans.hidden.sort_by_key(|span| span.start);
    let (mut shown, mut at) = (String::with_capacity(text.len()), 0);
    for span in spans.hidden {
        // One may lie within the last: a key that is named twice has one place only.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let text = "[user.u]\nsecret = 'correct horse' # mine\n[user.v]\nsecret = { file = '/x' }\n[api-token.t]\n\
                    secret = 'battery staple'\nrole = 'read'\n[volume.\"a#b=c\"]\npath = '/d#e=f' # why\n\
                    [group.g]\ninitiators = [\"iqn.a:b\"]\nluns.0 = { volume = 'a' }\n[server]\nmemory = '1G'\n";
        let wanted = text.replace("'correct horse'", "\"(hidden)\"").replace("'battery staple'", "\"(hidden)\"");
        assert_eq!(without_secrets(text), wanted);
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
            assert!(!without_secrets(text).contains("horse"), "{text}: {}", without_secrets(text));
        }
        assert_eq!(without_secrets("user = { u = { sceret = 'horse' } }"), "user = { u = { sceret = \"(hidden)\" } }");
        assert_eq!(without_secrets("# a = b\r\n# no more\n"), "# (hidden)\r\n# no more\n");
        assert_eq!(without_secrets(&"#=\n".repeat(1 << 20)), "# (hidden)\n".repeat(1 << 20), "and soon");
    }
}
