//! Checks the pages: links have targets, the index has all pages, ARCHITECTURE.md stays short, licences are complete,
//! and generated pages are current.

use crate::{Finding, Tree, folder_of, resolve};
use std::collections::BTreeMap;

/// The page that describes the architecture.
const PLAN: &str = "ARCHITECTURE.md";
/// The most lines of that page: a new reader reads all of it.
const PLAN_LINES_MAX: usize = 300;
/// The index of the documentation.
const INDEX: &str = "docs/README.md";
/// The folder of its pages, and those below it that have an index of their own.
const PAGES: &str = "docs/";
const OTHER_INDEXES: &[&str] = &["docs/decisions/", "docs/monitoring/"];
/// The licence files, each with texts that it must contain.
const LICENCES: &[(&str, &[&str])] = &[
    ("LICENSE-MIT", &["the Lunar authors", "Permission is hereby granted", "THE SOFTWARE IS PROVIDED \"AS IS\""]),
    ("LICENSE-APACHE", &["the Lunar authors", "Apache License", "Version 2.0", "END OF TERMS AND CONDITIONS"]),
];

/// All findings in the pages of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = broken_links(tree);
    findings.extend(pages_without_a_link(tree));
    match tree.text(PLAN).map(|text| text.lines().count()) {
        Some(lines) if lines > PLAN_LINES_MAX => {
            findings.push(Finding::new(PLAN, 0, format!("{lines} lines, {PLAN_LINES_MAX} at most")));
        }
        Some(_) => {}
        None => findings.push(Finding::new(PLAN, 0, "is missing")),
    }
    for (path, words) in LICENCES {
        let text = tree.text(path).unwrap_or_default();
        let missing = words.iter().filter(|word| !text.contains(**word));
        findings.extend(missing.map(|word| Finding::new(path, 0, format!("does not contain `{word}`"))));
    }
    findings
}

/// Checks that a generated page is what the code generates now. `how` is the command that regenerates it.
#[must_use]
pub fn check_generated(tree: &Tree, path: &str, fresh: &str, how: &str) -> Vec<Finding> {
    match tree.text(path) {
        Some(text) if text == fresh => Vec::new(),
        Some(_) => vec![Finding::new(path, 0, format!("is not current: run {how}"))],
        None => vec![Finding::new(path, 0, format!("is missing: run {how}"))],
    }
}

fn broken_links(tree: &Tree) -> Vec<Finding> {
    let pages: BTreeMap<&str, &str> = tree.with_extension("md").collect();
    let anchors: BTreeMap<&str, Vec<String>> = pages.iter().map(|(path, text)| (*path, anchors(text))).collect();
    let mut findings = Vec::new();
    for (path, text) in &pages {
        for (line, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(file, at)| (file, Some(at)));
            let resolved = if file.is_empty() { Some((*path).to_owned()) } else { resolve(folder_of(path), file) };
            let there = resolved.filter(|resolved| tree.has(resolved));
            let known = match (&there, anchor) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(page), Some(anchor)) => {
                    anchors.get(page.as_str()).is_none_or(|known| known.iter().any(|name| name == anchor))
                }
            };
            if !known {
                findings.push(Finding::new(path, line, format!("the link `{target}` has no target")));
            }
        }
    }
    findings
}

/// The pages that a reader of the index does not find.
fn pages_without_a_link(tree: &Tree) -> Vec<Finding> {
    let Some(index) = tree.text(INDEX) else { return Vec::new() };
    let targets = links(index).into_iter().map(|(_, target)| target);
    let linked: Vec<String> =
        targets.filter_map(|target| resolve(folder_of(INDEX), target.split('#').next().unwrap_or_default())).collect();
    let is_own = |path: &str| {
        path.starts_with(PAGES) && path != INDEX && OTHER_INDEXES.iter().all(|other| !path.starts_with(other))
    };
    let pages = tree.with_extension("md").map(|(path, _)| path).filter(|path| is_own(path));
    let missing = pages.filter(|path| linked.iter().all(|target| target != path));
    missing.map(|path| Finding::new(path, 0, format!("has no link in {INDEX}"))).collect()
}

/// The lines of a page outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((at + 1, line))
    })
}

/// The targets of `[text](target)` and of `[name]: target`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, words) in prose(text) {
        // Text between backticks is code.
        let plain: String = words.split('`').step_by(2).collect::<Vec<_>>().join("x");
        for (at, _) in plain.match_indices("](") {
            if let Some((target, _)) = plain[at + 2..].split_once(')') {
                let target = target.split_whitespace().next().unwrap_or_default();
                links.push((line, target.to_owned()));
            }
        }
        if let Some((_, target)) = plain.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            links.push((line, target.trim().to_owned()));
        }
    }
    links
}

/// The anchors of the headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then_some(title.trim())
    });
    headings
        .map(|title| {
            let kept = title.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let licence = LICENCES.iter().flat_map(|(_, words)| words.iter().copied()).collect::<Vec<_>>().join(" ");
        let mut all = vec![(PLAN, "# Plan"), ("LICENSE-MIT", licence.as_str()), ("LICENSE-APACHE", licence.as_str())];
        all.retain(|(path, _)| files.iter().all(|(other, _)| other != path));
        all.extend(files);
        check(&Tree::of(&all)).into_iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn links_need_targets() {
        let page = "# A page, of sorts\n[a](b.md) [b](../core/src)\n[c](https://x.y) [d](#a-page-of-sorts)\n\
            `[e](f)`\n```\n[g](h)\n```\n[i](b.md#far-off)\n[n]: b.md\n";
        let others = [("docs/b.md", "## Far off"), ("core/src/a.rs", "")];
        assert_eq!(found(&[("docs/a.md", page), others[0], others[1]]), [""; 0]);
        assert_eq!(found(&[("docs/a.md", page)]).len(), 4);
        assert_eq!(found(&[("a.md", "[a](../b)")]), ["a.md:1"]);
        assert_eq!(found(&[("a.md", "x\n[a](#none)")]), ["a.md:2"]);
        assert_eq!(found(&[("a.md", "[a]: none.md")]), ["a.md:1"]);
    }

    #[test]
    fn the_index_has_every_page() {
        let pages = [("docs/a.md", ""), ("docs/b/c.md", ""), ("docs/decisions/d.md", ""), ("e.md", "")];
        let with = |index| {
            let mut all = vec![(INDEX, index)];
            all.extend(pages);
            found(&all)
        };
        assert_eq!(with("[a](a.md) [c](b/c.md)"), [""; 0]);
        assert_eq!(with("[a](a.md)"), ["docs/b/c.md:0"]);
    }

    #[test]
    fn the_architecture_page_exists_and_is_short() {
        assert_eq!(found(&[(PLAN, &"x\n".repeat(PLAN_LINES_MAX))]), [""; 0]);
        assert_eq!(found(&[(PLAN, &"x\n".repeat(PLAN_LINES_MAX + 1))]), ["ARCHITECTURE.md:0"]);
        assert!(check(&Tree::default()).iter().any(|finding| finding.path == PLAN));
    }

    #[test]
    fn licences_exist_and_are_complete() {
        let missing = found(&[("LICENSE-MIT", "Permission is hereby granted")]);
        assert_eq!(missing, ["LICENSE-MIT:0", "LICENSE-MIT:0"]);
    }

    #[test]
    fn generated_pages_must_be_current() {
        let tree = Tree::of(&[("docs/a.md", "old")]);
        assert_eq!(check_generated(&tree, "docs/a.md", "old", "run"), []);
        assert_eq!(check_generated(&tree, "docs/a.md", "new", "run").len(), 1);
        assert_eq!(check_generated(&tree, "docs/b.md", "new", "run").len(), 1);
    }
}
