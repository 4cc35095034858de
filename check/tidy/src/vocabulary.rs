//! Checks for retired words: the names and phrases of the table "Retired words" in docs/glossary.md.
//!
//! The table says for each word what kind of word it is and where it is retired:
//!
//! * a `name` must not be the name of a type, function, field, variant or module; names that a trait of another crate
//!   prescribes are checked where the trait is declared
//! * a `phrase` must not occur in comments of code, scripts and configuration files, in string literals and in pages
//! * an `opening` must not begin a sentence of a comment, page or message (a string literal of more than two words);
//!   questions are allowed

use crate::prose::{self, Source};
use crate::{Finding, Tree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// The page with the table.
const GLOSSARY: &str = "docs/glossary.md";
/// The heading of the table.
const HEADING: &str = "## Retired words";

/// A string literal of more words than this is a message. Shorter ones may be keys and labels, such as headings of
/// tables.
const MESSAGE_WORDS: usize = 2;

/// All findings in the words of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let (words, mut findings) = table(tree);
    findings.extend(tree.texts().flat_map(|(path, text)| in_file(path, text, &words)));
    findings
}

/// Whether a path is a folder or file, or is inside of it.
fn is_in(path: &str, entry: &str) -> bool {
    path.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The kind of a retired word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Name,
    Phrase,
    Opening,
}

/// A row of the table.
struct Word {
    text: String,
    kind: Kind,
    /// The folders and files where the word is retired; empty if everywhere.
    places: Vec<String>,
    instead: String,
}

impl Word {
    fn applies_to(&self, path: &str) -> bool {
        self.places.is_empty() || self.places.iter().any(|place| is_in(path, place))
    }

    fn finding(&self, path: &str, line: usize) -> Finding {
        let what = match self.kind {
            Kind::Name => format!("the name `{}` is retired: {}", self.text, self.instead),
            Kind::Phrase => format!("\"{}\" is retired: {}", self.text, self.instead),
            Kind::Opening => format!("a sentence begins with \"{}\": {}", self.text, self.instead),
        };
        Finding::new(path, line, what)
    }
}

/// The lines of the section with the table, with their numbers.
fn section(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = page.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.skip_while(|(_, line)| *line != HEADING).skip(1).take_while(|(_, line)| !line.starts_with("## "))
}

/// Reads the table: its words, and findings for rows that cannot be read.
fn table(tree: &Tree) -> (Vec<Word>, Vec<Finding>) {
    let page = tree.text(GLOSSARY).unwrap_or_default();
    let mut words = Vec::new();
    let mut findings = Vec::new();
    let rows = section(page).filter(|(_, line)| line.starts_with('|'));
    // The first two rows are the heading of the table and its rule.
    for (line, row) in rows.skip(2) {
        match word(tree, row) {
            Ok(word) => words.push(word),
            Err(what) => findings.push(Finding::new(GLOSSARY, line, what)),
        }
    }
    if words.is_empty() {
        findings.push(Finding::new(GLOSSARY, 0, format!("has no table under `{HEADING}`")));
    }
    (words, findings)
}

fn word(tree: &Tree, row: &str) -> Result<Word, String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [text, kind, places, instead] = cells[..] else {
        return Err(format!("{} columns, not 4: retired, kind, where, use", cells.len()));
    };
    let kind = match kind {
        "name" => Kind::Name,
        "phrase" => Kind::Phrase,
        "opening" => Kind::Opening,
        _ => return Err(format!("unknown kind `{kind}`: `name`, `phrase` or `opening`")),
    };
    let places: Vec<String> = match places {
        "everywhere" => Vec::new(),
        places => {
            places.split(',').map(|place| place.trim().trim_matches('`').trim_end_matches('/').to_owned()).collect()
        }
    };
    if let Some(place) = places.iter().find(|place| place.is_empty() || !tree.has(place)) {
        return Err(format!("no folder or file `{place}`: name one, or `everywhere`"));
    }
    if text.is_empty() || instead.is_empty() {
        return Err("the first and the last column must not be empty".to_owned());
    }
    Ok(Word { text: text.trim_matches('`').to_owned(), kind, places, instead: instead.to_owned() })
}

/// The retired words of a file.
fn in_file(path: &str, text: &str, words: &[Word]) -> Vec<Finding> {
    let words: Vec<&Word> = words.iter().filter(|word| word.applies_to(path)).collect();
    let mut findings = Vec::new();
    if path.ends_with(".rs")
        && let Ok(file) = syn::parse_file(text)
    {
        let mut names = Names { path, words: &words, findings: Vec::new() };
        names.visit_file(&file);
        findings.append(&mut names.findings);
    }
    // The section with the table names the words that it retires.
    let left_out: BTreeSet<usize> =
        if path == GLOSSARY { section(text).map(|(line, _)| line).collect() } else { BTreeSet::new() };
    for paragraph in prose::of(path, text) {
        let lower = paragraph.text.to_lowercase();
        for word in words.iter().filter(|word| word.kind == Kind::Phrase) {
            let found = occurrences(&lower, &word.text);
            findings.extend(found.into_iter().map(|at| word.finding(path, paragraph.line_at(at))));
        }
        let is_message = paragraph.source == Source::Literal && paragraph.text.split(' ').count() > MESSAGE_WORDS;
        if paragraph.source != Source::Text && !is_message {
            continue;
        }
        for (at, sentence) in paragraph.sentences() {
            let begins = sentence.trim_start_matches(['*', '_', '(', '"']);
            let word = words.iter().find(|word| word.kind == Kind::Opening && has_opening(begins, &word.text));
            if let Some(word) = word.filter(|_| !is_question(sentence)) {
                findings.push(word.finding(path, paragraph.line_at(at)));
            }
        }
    }
    findings.retain(|finding| !left_out.contains(&finding.line));
    findings
}

/// Where `phrase` occurs as whole words.
fn occurrences(text: &str, phrase: &str) -> Vec<usize> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let found = text.match_indices(phrase).map(|(at, _)| at);
    found
        .filter(|at| {
            let after = at + phrase.len();
            !is_part(text[..*at].chars().next_back()) && !is_part(text[after..].chars().next())
        })
        .collect()
}

fn has_opening(sentence: &str, opening: &str) -> bool {
    sentence.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn is_question(sentence: &str) -> bool {
    sentence.trim_end_matches(['*', '_', ')', '"']).ends_with('?')
}

/// Finds retired names where they are declared.
struct Names<'a> {
    path: &'a str,
    words: &'a [&'a Word],
    findings: Vec<Finding>,
}

impl Names<'_> {
    fn declared(&mut self, name: &syn::Ident) {
        let word = self.words.iter().find(|word| word.kind == Kind::Name && name == &word.text);
        self.findings.extend(word.map(|word| word.finding(self.path, name.span().start().line)));
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.declared(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.declared(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.declared(&item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.declared(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.declared(&item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.declared(&item.ident);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.declared(&item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for inner in &item.items {
            // The names of a trait's functions are the trait's.
            if let syn::ImplItem::Fn(function) = inner
                && item.trait_.is_none()
            {
                self.declared(&function.sig.ident);
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.declared(&item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.declared(name);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.declared(&variant.ident);
        visit::visit_variant(self, variant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A glossary that retires two names, a phrase and an opening.
    const TABLE: &str = "# Glossary\n\n## Retired words\n\n| retired | kind | where | use |\n|---|---|---|---|\n\
        | `Shop` | name | `a`, `b.rs` | Store |\n\
        | `fetch` | name | everywhere | read |\n\
        | go around | phrase | everywhere | bypass |\n\
        | Which is | opening | everywhere | name it |\n";

    fn found_in(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(GLOSSARY, TABLE), ("a/lib.rs", ""), ("b.rs", "")];
        all.retain(|(path, _)| files.iter().all(|(other, _)| other != path));
        all.extend(files);
        let findings = check(&Tree::of(&all));
        findings.into_iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        found_in(&[(path, text)])
    }

    #[test]
    fn retired_names_are_found_where_they_are_declared() {
        for code in [
            "struct Shop;",
            "enum Shop { A }",
            "union Shop { a: u8 }",
            "trait Shop {}",
            "type Shop = u8;",
            "enum A { Shop }",
            "mod inner { struct Shop; }",
            "fn fetch() {}",
            "mod fetch;",
            "mod fetch {}",
            "struct A { fetch: u8 }",
            "enum A { B { fetch: u8 } }",
            "impl A { fn fetch(&self) {} }",
            "trait A { fn fetch(&self); }",
            "fn f() { struct Shop; }",
        ] {
            assert_eq!(found("a/x.rs", &format!("\n{code}\n")), ["a/x.rs:2"], "{code}");
        }
    }

    #[test]
    fn names_that_are_used_or_prescribed_by_a_trait_are_not_found() {
        for code in [
            "use other::Shop;",
            "fn f(shop: Shop) { let fetch = shop.fetch(); }",
            "impl Other for A { fn fetch(&self) {} }",
            "struct Shops; fn fetched() {}",
            "struct SHOP;",
        ] {
            assert_eq!(found("a/x.rs", code), [""; 0], "{code}");
        }
    }

    #[test]
    fn a_name_is_retired_in_the_places_of_its_row() {
        assert_eq!(found("b.rs", "struct Shop;"), ["b.rs:1"]);
        assert_eq!(found("c/x.rs", "struct Shop;"), [""; 0]);
        assert_eq!(found("ab/x.rs", "struct Shop;"), [""; 0]);
        assert_eq!(found("c/x.rs", "fn fetch() {}"), ["c/x.rs:1"]);
    }

    #[test]
    fn retired_phrases_are_found_in_comments_literals_and_pages() {
        assert_eq!(found("x.rs", "// One.\n//\n// They go\n// around it.\n"), ["x.rs:3"]);
        assert_eq!(found("x.rs", "const A: &str = \"Go around\";"), ["x.rs:1"]);
        assert_eq!(found("x.md", "# How to go around\n\n| go around |\n"), ["x.md:1", "x.md:3"]);
        assert_eq!(found("x.sh", "a\n# go around\n"), ["x.sh:2"]);
        assert_eq!(found("x.md", "They `go around`; ago around; go arounds.\n"), [""; 0]);
        assert_eq!(found("x.json", "go around"), [""; 0]);
    }

    #[test]
    fn retired_openings_are_found_at_the_beginning_of_sentences() {
        assert_eq!(found("x.rs", "/// One. Which\n/// is two.\nstruct A;"), ["x.rs:1"]);
        assert_eq!(found("x.md", "One.\n\n* **Which is** two\n"), ["x.md:3"]);
        assert_eq!(found("x.md", "One. Which is it? The one which is two. Which isolates.\n"), [""; 0]);
        assert_eq!(found("x.md", "# Which is\n\n| Which is |\n"), [""; 0]);
        assert_eq!(found("x.rs", "//! One. Which is two.\n"), ["x.rs:1"]);
        assert_eq!(found("x.rs", "// One.\n// Which is two.\n"), ["x.rs:2"]);
        assert_eq!(found("x.rs", "struct A; // Which is two.\n"), ["x.rs:1"]);
    }

    #[test]
    fn retired_openings_are_found_in_messages() {
        assert_eq!(found("x.rs", "const A: &str = \"Which is one\";"), ["x.rs:1"]);
        assert_eq!(found("x.rs", "const A: &str = \"One. Which is two.\";"), ["x.rs:1"]);
        assert_eq!(found("x.rs", "const A: &str = \"Which is one?\";"), [""; 0]);
        assert_eq!(found("x.rs", "const A: &str = \"Which is\";"), [""; 0]);
    }

    #[test]
    fn the_section_with_the_table_is_not_checked_and_the_rest_of_its_page_is() {
        assert_eq!(found_in(&[]), [""; 0]);
        assert_eq!(
            found(GLOSSARY, &format!("go around\n{TABLE}\n## More\n\ngo around\n")),
            ["docs/glossary.md:1", "docs/glossary.md:15"]
        );
    }

    #[test]
    fn rows_that_cannot_be_read_are_findings() {
        assert_eq!(found(GLOSSARY, "# Glossary\n"), ["docs/glossary.md:0"]);
        for row in [
            "| a | name | everywhere |",
            "| a | word | everywhere | b |",
            "| a | name | `none` | b |",
            "| a | name | | b |",
            "| | name | everywhere | b |",
            "| a | name | everywhere | |",
        ] {
            assert_eq!(found(GLOSSARY, &format!("{TABLE}{row}\n")), ["docs/glossary.md:11"], "{row}");
        }
        assert!(check(&Tree::default()).iter().any(|finding| finding.path == GLOSSARY));
    }
}
