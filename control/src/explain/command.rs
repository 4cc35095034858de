//! Commands that an operator can paste into a shell. Names come from clients, so each word is quoted.

/// A word for a shell; `None` if it has control characters, which no name of a client has in earnest.
#[must_use]
pub fn word(text: &str) -> Option<String> {
    if text.chars().any(char::is_control) {
        return None;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:@,/+-=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Some(text.to_owned());
    }
    Some(format!("'{}'", text.replace('\'', r"'\''")))
}

/// A command of these words; `None` if one of them cannot be written.
#[must_use]
pub fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<String> {
    words.into_iter().map(word).collect::<Option<Vec<_>>>().map(|words| words.join(" "))
}

/// The value of an option that is a list.
#[must_use]
pub fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_one_word() {
        assert_eq!(word("iqn.2026-01.org.example:host").as_deref(), Some("iqn.2026-01.org.example:host"));
        for (text, quoted) in [
            ("a; rm -rf /", "'a; rm -rf /'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", r"'it'\''s'"),
            ("iqn.*", "'iqn.*'"),
            ("", "''"),
        ] {
            assert_eq!(word(text).as_deref(), Some(quoted));
        }
        assert_eq!((word("a\nreboot"), word("\u{1b}[2J")), (None, None));
        let command = line(["lunar", "group", "set", "g", "--initiators", "a b"]);
        assert_eq!(command.as_deref(), Some("lunar group set g --initiators 'a b'"));
    }
}
