//! Checks for words that must not appear: reminders of unfinished work, paths of a development machine, and remarks
//! about how the project is made.
//!
//! The words are split in the lists, so that this file does not contain them. On Markdown pages, text between backticks
//! is not checked.

use crate::{Finding, Tree};

/// Reminders, found as whole words in this spelling.
const REMINDERS: &[(&str, &str)] = &[
    (concat!("FIX", "ME"), "correct it"),
    (concat!("TO", "DO"), "do it, or remove it"),
    (concat!("XX", "X"), "describe it"),
    (concat!("HA", "CK"), "do it properly"),
];

/// Calls and attributes that must not appear in code.
const CALLS: &[(&str, &str)] = &[
    (concat!("db", "g!"), "remove it"),
    (concat!("to", "do!"), "write it"),
    (concat!("unimple", "mented!"), "write it"),
    (concat!("#[ign", "ore]"), "give the reason: `= \"...\"`"),
];

/// Paths that exist on a development machine only.
const PLACES: &[&str] = &[concat!("/wo", "rk"), concat!("/ro", "ot/"), concat!("/fa", "rm"), concat!(".lib", "rary")];

/// Remarks about how the project is made, in lower case.
const TALK: &[&str] = &[
    concat!("sub", "agent"),
    concat!("clau", "de"),
    concat!("anthro", "pic"),
    concat!("chat", "gpt"),
    concat!("open", "ai"),
    concat!("copi", "lot"),
    concat!("language ", "model"),
    concat!("as requ", "ested by"),
    concat!("the bri", "ef "),
    concat!("iss", "ue #"),
    concat!("pull req", "uest"),
    concat!("work in pro", "gress"),
    concat!("not yet imple", "mented"),
    concat!("not imple", "mented yet"),
    concat!("will be imple", "mented"),
    concat!("mile", "stone"),
];

/// All findings in the texts of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_ours(path)) {
        for (at, line) in text.lines().enumerate() {
            let line = if path.ends_with(".md") { without_quotes(line) } else { line.to_owned() };
            findings.extend(wrong_words(path, &line).into_iter().map(|what| Finding::new(path, at + 1, what)));
        }
    }
    findings
}

/// Whether to check a file: not if cargo generated it, or if it is a licence.
fn is_ours(path: &str) -> bool {
    !path.ends_with("Cargo.lock") && !path.starts_with("LICENSE-")
}

fn wrong_words(path: &str, line: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (word, instead) in REMINDERS {
        if has_word(line, word, is_name) {
            wrong.push(format!("`{word}`: {instead}"));
        }
    }
    if path.ends_with(".rs") {
        for (call, instead) in CALLS {
            if has_word(line, call, is_name) {
                wrong.push(format!("`{call}`: {instead}"));
            }
        }
    }
    for place in PLACES {
        if has_word(line, place, |c| is_name(c) || "./-$}".contains(c)) {
            wrong.push(format!("`{place}` is a path of a development machine"));
        }
    }
    let small = line.to_lowercase();
    wrong.extend(
        TALK.iter().filter(|talk| small.contains(**talk)).map(|talk| format!("`{talk}`: describe the project only")),
    );
    wrong
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `line` contains `word` as a whole word. A character before it that `joins` makes it a part of a longer word.
fn has_word(line: &str, word: &str, joins: impl Fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(&joins) && !after.is_some_and(|c| is_name(c) && is_name_end(word))
    })
}

/// Whether a longer word may begin with `word`: not if it ends with a mark, as `x!`.
fn is_name_end(word: &str) -> bool {
    word.chars().next_back().is_some_and(is_name)
}

/// A line of Markdown without the text between backticks.
fn without_quotes(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: &str) -> usize {
        check(&Tree::of(&[(path, line)])).len()
    }

    #[test]
    fn reminders_are_found_as_whole_words() {
        for (word, _) in REMINDERS {
            assert_eq!(found("a.rs", &format!("// {word}: later")), 1, "{word}");
            assert_eq!(found("a.sh", &format!("# {word}")), 1, "{word}");
            assert_eq!(found("a.rs", &format!("A{word}B {word}_X x{word}")), 0, "{word}");
        }
    }

    #[test]
    fn calls_are_found_in_code_only() {
        for (call, _) in CALLS {
            assert_eq!(found("a.rs", &format!("    {call}(x)")), 1, "{call}");
            assert_eq!(found("a.toml", &format!("    {call}(x)")), 0, "{call}");
        }
        assert_eq!(found("a.rs", "#[ignore = \"needs a disk\"]"), 0);
    }

    #[test]
    fn paths_are_found_but_not_inside_longer_paths() {
        for place in PLACES {
            assert_eq!(found("a.rs", &format!("open(\"{place}/x\")")), 1, "{place}");
            assert_eq!(found("a.sh", &format!("cd {place} && x")), 1, "{place}");
            assert_eq!(found("a.sh", &format!("a{place}x ${{DIR}}{place} x/y{place}")), 0, "{place}");
        }
        assert_eq!(found("a.sh", "HOME=/root"), 0, "a path of every Linux system");
    }

    #[test]
    fn remarks_are_found_in_any_case() {
        for talk in TALK {
            assert_eq!(found("a.md", &format!("Some {} here", talk.to_uppercase())), 1, "{talk}");
        }
        assert_eq!(found("a.rs", "// The session answers what was asked for now."), 0);
    }

    #[test]
    fn text_between_backticks_on_a_page_is_not_checked() {
        let word = REMINDERS[0].0;
        assert_eq!(found("a.md", &format!("Never write `{word}` or `a {word}`.")), 0);
        assert_eq!(found("a.md", &format!("`a` {word} `b`")), 1);
    }
}
