//! Checks that errors are types: no `Result` whose error is a `String`, and no parser whose error is one.
//!
//! A value parser of clap may return a text, by clap's convention. It is recognized by `value_parser = NAME` in its
//! file, or by `value_parser = MODULE::NAME` anywhere.

use crate::code::{is_test_only, test_files};
use crate::{Finding, Tree};
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The folders, files and functions (`FILE::NAME`) that may return a text as an error, each with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("check/", "programs for developers print the text, and nothing else is done with it"),
    ("client/load/", "the load generator prints the text, and nothing else is done with it"),
];

/// All findings in the Rust files of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_except(tree, EXCEPTIONS)
}

fn check_except(tree: &Tree, exceptions: &[(&str, &str)]) -> Vec<Finding> {
    // The check of code reports files that cannot be parsed.
    let parse = |(path, text)| Some((path, syn::parse_file(text).ok()?));
    let parsed: Vec<(&str, syn::File)> = tree.with_extension("rs").filter_map(parse).collect();
    let tests = test_files(&parsed.iter().map(|(path, file)| (*path, file)).collect::<Vec<_>>());
    let parsers: BTreeSet<(String, String)> =
        tree.with_extension("rs").flat_map(|(path, text)| value_parsers(path, text)).collect();
    let (mut findings, mut used) = (Vec::new(), BTreeSet::new());
    for (path, file) in parsed.iter().filter(|(path, _)| !tests.contains(*path)) {
        let mut look = Look { functions: Vec::new(), found: Vec::new() };
        look.visit_file(file);
        for (line, function) in look.found {
            let is_parser = |(place, name): &(String, String)| *name == function && is_module(path, place);
            let place = format!("{path}::{function}");
            let excepted = exceptions.iter().position(|(at, _)| *at == place || path.starts_with(at));
            if parsers.iter().any(is_parser) {
                continue;
            }
            match excepted {
                Some(at) => drop(used.insert(at)),
                None => findings.push(Finding::new(
                    path,
                    line,
                    "an error is a `String`: make it a type that implements `Error` and says what can fail",
                )),
            }
        }
    }
    for (at, (place, _)) in exceptions.iter().enumerate().filter(|(at, _)| !used.contains(at)) {
        findings.push(Finding::new(place, 0, format!("exception {at} of the check of errors is not needed any more")));
    }
    findings
}

/// Whether a file is this file, or the module of this name.
fn is_module(path: &str, place: &str) -> bool {
    let module = path.strip_suffix(".rs").map(|path| path.strip_suffix("/mod").unwrap_or(path));
    path == place || module.is_some_and(|module| module.rsplit('/').next() == Some(place))
}

/// The functions that this file names as value parsers: their file or module, and their name.
fn value_parsers(path: &str, text: &str) -> Vec<(String, String)> {
    let is_part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let parser = |rest: &str| {
        let rest = rest.trim_start_matches([' ', '=', '(']);
        let named = &rest[..rest.find(|c| !is_part_of_path(c)).unwrap_or(rest.len())];
        let (module, name) = named
            .rsplit_once("::")
            .map_or((path, named), |(module, name)| (module.rsplit("::").next().unwrap_or(module), name));
        (module.to_owned(), name.to_owned())
    };
    text.split("value_parser").skip(1).map(parser).collect()
}

/// Collects the places of errors that are strings, with the names of the functions that contain them.
struct Look {
    functions: Vec<String>,
    found: Vec<(usize, String)>,
}

impl Look {
    fn find(&mut self, at: &impl Spanned) {
        self.found.push((at.span().start().line, self.functions.last().cloned().unwrap_or_default()));
    }
}

fn is_string(kind: &syn::Type) -> bool {
    matches!(kind, syn::Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "String"))
}

impl<'ast> Visit<'ast> for Look {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test_only(&function.attrs) {
            self.functions.push(function.sig.ident.to_string());
            visit::visit_item_fn(self, function);
            self.functions.pop();
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.functions.push(function.sig.ident.to_string());
        visit::visit_impl_item_fn(self, function);
        self.functions.pop();
    }

    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "Result"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(syn::GenericArgument::Type(error)) = arguments.args.iter().nth(1)
            && is_string(error)
        {
            self.find(segment);
        }
        visit::visit_path_segment(self, segment);
    }

    fn visit_impl_item_type(&mut self, item: &'ast syn::ImplItemType) {
        if (item.ident == "Err" || item.ident == "Error") && is_string(&item.ty) {
            self.find(item);
        }
        visit::visit_impl_item_type(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, code: &str) -> usize {
        check_except(&Tree::of(&[(path, code)]), &[]).len()
    }

    #[test]
    fn an_error_is_no_string() {
        let file = "lunar/src/a.rs";
        for code in [
            "fn a() -> Result<(), String> {}",
            "impl A { async fn a() -> std::result::Result<(), std::string::String> {} }",
            "struct A { end: Option<Result<(), String>> }",
            "fn a() { let b = |c| -> Result<u8, String> { c }; }",
            "impl FromStr for A { type Err = String; }",
        ] {
            assert_eq!(found(file, code), 1, "{code}");
        }
        for code in [
            "fn a() -> Result<String, Mistake> {}",
            "#[cfg(test)] mod tests { fn a() -> Result<(), String> {} }",
            "impl Iterator for A { type Item = String; }",
        ] {
            assert_eq!(found(file, code), 0, "{code}");
        }
    }

    #[test]
    fn a_value_parser_may_return_a_string() {
        let parser = "fn size(text: &str) -> Result<u64, String> {}";
        let options = |place: &str| format!("struct A {{ #[arg(long, value_parser = {place})] b: u64 }}");
        assert_eq!(found("lunar/src/a.rs", &format!("{} {parser}", options("size"))), 0);
        assert_eq!(found("lunar/src/a.rs", &format!("{} {parser}", options("other"))), 1);
        let elsewhere = |place: &str| {
            let options = options(place);
            check_except(&Tree::of(&[("a/src/sizes.rs", parser), ("b/src/b.rs", &options)]), &[]).len()
        };
        assert_eq!((elsewhere("sizes::size"), elsewhere("lengths::size"), elsewhere("size")), (0, 1, 1));
    }

    #[test]
    fn an_exception_has_a_place_and_is_needed() {
        let tree = Tree::of(&[("a/src/b.rs", "fn c() -> Result<(), String> {}")]);
        for place in ["a/", "a/src/b.rs", "a/src/b.rs::c"] {
            assert_eq!(check_except(&tree, &[(place, "a reason")]), [], "{place}");
        }
        assert_eq!(check_except(&tree, &[("a/src/b.rs::d", "a reason")]).len(), 2, "a finding and a stale exception");
        assert!(EXCEPTIONS.iter().all(|(_, reason)| reason.len() > 20));
    }
}
