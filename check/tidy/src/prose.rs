//! The prose of a file: the paragraphs of a Markdown page, of Rust comments and of the comments of scripts, makefiles
//! and configuration files, and the string literals of Rust code.
//!
//! The lines of a paragraph are joined, so that a phrase is found across a line break. Code blocks are left out, and
//! text between backticks is replaced with `x`.

/// Where a paragraph comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Sentences of a comment or of a page.
    Text,
    /// A heading or a row of a table, which need not consist of sentences.
    Fragment,
    /// A string literal.
    Literal,
}

/// A piece of prose with single spaces between its words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Paragraph {
    /// Where the text comes from.
    pub(crate) source: Source,
    /// The joined lines.
    pub(crate) text: String,
    /// Each line: the byte in `text` at which it begins, and its number from 1.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn new(source: Source, line: usize, text: &str) -> Self {
        let mut paragraph = Self { source, text: String::new(), lines: Vec::new() };
        paragraph.push(line, text);
        paragraph
    }

    fn push(&mut self, line: usize, text: &str) {
        for word in text.split_whitespace() {
            if !self.text.is_empty() {
                self.text.push(' ');
            }
            if self.lines.last().is_none_or(|(_, last)| *last != line) {
                self.lines.push((self.text.len(), line));
            }
            self.text.push_str(word);
        }
    }

    /// Replaces the text between backticks.
    fn without_code(mut self) -> Self {
        let mut in_code = false;
        let mut text = String::with_capacity(self.text.len());
        for c in self.text.chars() {
            in_code ^= c == '`';
            if in_code && c != '`' {
                text.extend(std::iter::repeat_n('x', c.len_utf8()));
            } else {
                text.push(c);
            }
        }
        self.text = text;
        self
    }

    /// The number of the line that contains the byte `at`.
    #[must_use]
    pub(crate) fn line_at(&self, at: usize) -> usize {
        self.lines.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, line)| *line)
    }

    /// The sentences, each with the byte at which it begins; a sentence keeps its mark at the end.
    #[must_use]
    pub(crate) fn sentences(&self) -> Vec<(usize, &str)> {
        let mut sentences = Vec::new();
        let mut start = 0;
        for (at, _) in self.text.match_indices(' ') {
            let before = self.text[..at].trim_end_matches(['*', '_', ')', '"']);
            if before.ends_with(['.', '!', '?']) {
                sentences.push((start, &self.text[start..at]));
                start = at + 1;
            }
        }
        sentences.push((start, &self.text[start..]));
        sentences
    }
}

/// The prose of a file, by its name and its first line; nothing for files of an unknown kind.
#[must_use]
pub(crate) fn of(path: &str, text: &str) -> Vec<Paragraph> {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => paragraphs(text.lines().enumerate().map(|(at, line)| (at + 1, line))),
        Some("rs") => of_rust(text),
        Some("py" | "sh" | "toml" | "yml" | "yaml" | "service" | "conf" | "dict") => of_script(text),
        _ if name == "Makefile" || text.starts_with("#!") => of_script(text),
        _ => Vec::new(),
    }
}

/// The paragraphs of lines of Markdown.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Paragraph> {
    let mut all: Vec<Paragraph> = Vec::new();
    let mut in_code = false;
    let mut continues = false;
    for (number, line) in lines {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
            continues = false;
        } else if in_code || line.is_empty() {
            continues = false;
        } else if line.starts_with('|') || line.starts_with('#') {
            all.push(Paragraph::new(Source::Fragment, number, line));
            continues = false;
        } else if let Some(item) = list_item(line) {
            all.push(Paragraph::new(Source::Text, number, item));
            continues = true;
        } else if let Some(last) = all.last_mut().filter(|_| continues) {
            last.push(number, line);
        } else {
            all.push(Paragraph::new(Source::Text, number, line));
            continues = true;
        }
    }
    all.into_iter().map(Paragraph::without_code).collect()
}

/// The text of a list item that begins on this line.
fn list_item(line: &str) -> Option<&str> {
    let numbered = || line.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(". ");
    line.strip_prefix("* ").or_else(|| line.strip_prefix("- ")).or_else(|| numbered().filter(|rest| *rest != line))
}

/// The comments of a script, makefile or configuration file that have a line of their own, and docstrings of Python.
fn of_script(text: &str) -> Vec<Paragraph> {
    let mut comments = Comments::default();
    let mut in_docstring = false;
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let quotes = trimmed.matches("\"\"\"").count();
        if in_docstring || quotes > 0 {
            comments.add(at + 1, "\"\"\"", &trimmed.replace("\"\"\"", ""));
            in_docstring ^= quotes % 2 == 1;
        } else if let Some(comment) = trimmed.strip_prefix('#').filter(|comment| !comment.starts_with('!')) {
            comments.add(at + 1, "#", comment);
        }
    }
    comments.finish()
}

/// The comments and string literals of Rust code.
fn of_rust(text: &str) -> Vec<Paragraph> {
    let mut comments = Comments::default();
    let mut literals = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let joins = text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            let whole = rest.split('\n').next().unwrap_or_default();
            let marks = whole.bytes().take_while(|c| matches!(c, b'/' | b'!')).count().min(3);
            let begins = text[..at].rsplit('\n').next().unwrap_or_default();
            // A comment behind code is a paragraph of its own.
            let leader = if begins.trim().is_empty() { &whole[..marks] } else { "" };
            comments.add(line, leader, &whole[marks..]);
            whole.len()
        } else if rest.starts_with("/*") {
            let whole = &rest[..block_comment(rest)];
            for (below, text) in whole.lines().enumerate() {
                let text = text.trim().trim_start_matches('/').trim_end_matches('/').trim_matches('*');
                comments.add(line + below, "/*", text);
            }
            whole.len()
        } else if let Some((open, close)) = raw_string(rest).filter(|_| !joins) {
            let end = rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len());
            literals.push(literal(line, &rest[open..end.saturating_sub(close.len()).max(open)]));
            end
        } else if first == '"' {
            let end = string(rest);
            literals.push(literal(line, &rest[1..end.saturating_sub(1).max(1)]));
            end
        } else if first == '\'' {
            character(rest)
        } else {
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    let mut all = comments.finish();
    all.append(&mut literals);
    all
}

/// The length of the block comment at the beginning of `text`.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(mark) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if mark.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if mark.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += mark.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// If `text` begins with a raw string: the length of its beginning, and its end.
fn raw_string(text: &str) -> Option<(usize, String)> {
    let begins = ["r", "br", "cr"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = begins.len() - begins.trim_start_matches('#').len();
    begins[hashes..].starts_with('"').then(|| {
        let open = text.len() - begins.len() + hashes + 1;
        (open, format!("\"{}", "#".repeat(hashes)))
    })
}

/// The length of the string literal at the beginning of `text`.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the character literal or of the apostrophe of the lifetime at the beginning of `text`.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = at + escaped.len_utf8();
            text[after..].find('\'').map_or(text.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// The paragraph of a string literal: escaped line breaks become spaces.
fn literal(line: usize, text: &str) -> Paragraph {
    let text = text.replace("\\\n", "\n").replace("\\n", "\n").replace("\\\"", "\"");
    let mut lines = text.lines().enumerate();
    let (_, first) = lines.next().unwrap_or_default();
    let mut paragraph = Paragraph::new(Source::Literal, line, first);
    lines.for_each(|(below, text)| paragraph.push(line + below, text));
    paragraph.without_code()
}

/// Collects comments line by line.
#[derive(Default)]
struct Comments<'a> {
    done: Vec<Paragraph>,
    /// Lines that follow each other and have the same leader.
    lines: Vec<(usize, String)>,
    leader: &'a str,
}

impl<'a> Comments<'a> {
    /// Adds a line. An empty leader never continues the lines before it.
    fn add(&mut self, line: usize, leader: &'a str, text: &str) {
        let continues = self.lines.last().is_some_and(|(last, _)| last + 1 == line) && leader == self.leader;
        if !continues || leader.is_empty() {
            self.end();
        }
        self.leader = leader;
        self.lines.push((line, text.to_owned()));
    }

    fn end(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.done.extend(paragraphs(lines.iter().map(|(line, text)| (*line, text.as_str()))));
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &str, text: &str) -> Vec<String> {
        of(path, text).into_iter().map(|paragraph| paragraph.text).collect()
    }

    #[test]
    fn lines_of_a_page_are_joined_to_paragraphs() {
        let page = "# Title\n\none\ntwo\n* three\n  four\n1. five\n\n```\ncode\n```\n| a | b |\n- six\n";
        let expected = ["# Title", "one two", "three four", "five", "| a | b |", "six"];
        assert_eq!(texts("a.md", page), expected);
        let sources: Vec<Source> = of("a.md", page).iter().map(|paragraph| paragraph.source).collect();
        assert_eq!((sources[0], sources[1], sources[4]), (Source::Fragment, Source::Text, Source::Fragment));
    }

    #[test]
    fn text_between_backticks_is_replaced_across_lines() {
        assert_eq!(texts("a.md", "a `b ü\nc` d"), ["a `xxxxxx` d"]);
    }

    #[test]
    fn comments_of_rust_are_found_by_kind() {
        let code = "//! one\n//! two\n/// three\n///\n/// four\nfn f() {} // five\n// six\n/* seven\n * eight */\n";
        assert_eq!(texts("a.rs", code), ["one two", "three", "four", "five", "six", "seven eight"]);
    }

    #[test]
    fn literals_of_rust_hide_no_comments_and_are_no_comments() {
        let code = r##"let a = "// b \" c"; let d = r#"// " e"#; let f = '"'; let g: &'a str = "\
            h"; let i = '\''; let r = br"j"; // k"##;
        let found = of("a.rs", code);
        let literals: Vec<&str> =
            found.iter().filter(|one| one.source == Source::Literal).map(|one| one.text.as_str()).collect();
        assert_eq!(literals, ["// b \" c", "// \" e", "h", "j"]);
        let comments: Vec<&str> =
            found.iter().filter(|one| one.source == Source::Text).map(|one| one.text.as_str()).collect();
        assert_eq!(comments, ["k"]);
    }

    #[test]
    fn comments_and_docstrings_of_scripts_are_found() {
        assert_eq!(texts("a.sh", "#!/bin/sh\n# one\n# two\nx=1\n  # three\n"), ["one two", "three"]);
        assert_eq!(texts("a.py", "\"\"\"One\ntwo.\"\"\"\nx = 1\n\"\"\"Three.\"\"\"\n"), ["One two.", "Three."]);
        assert_eq!(texts("a.json", "# one"), [""; 0]);
        assert_eq!(texts("Makefile", "# one\nall:\n\ttrue\n"), ["one"]);
        assert_eq!(texts("a/Makefile", "## all: one\nall:\n"), ["# all: one"]);
        assert_eq!(texts(".ci/run", "#!/bin/sh\n# one\n"), ["one"]);
        assert_eq!((texts("a.d/run", "# one\n"), texts("a.conf", "# one\n")), (vec![], vec!["one".to_owned()]));
    }

    #[test]
    fn a_paragraph_knows_its_lines_and_sentences() {
        let page = of("a.md", "\n\nOne two. Three\nfour? **Five.** Six");
        let sentences: Vec<(usize, &str)> =
            page[0].sentences().into_iter().map(|(at, text)| (page[0].line_at(at), text)).collect();
        assert_eq!(sentences, [(3, "One two."), (3, "Three four?"), (4, "**Five.**"), (4, "Six")]);
    }
}
