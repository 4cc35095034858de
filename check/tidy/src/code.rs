//! Checks Rust code: the lengths of files, functions and lines, `unsafe`, `unwrap`, module documentation, the use of
//! the reactor by front ends, printing in the daemon, and policies of commands that take fields from another one.

use crate::{Finding, Tree, folder_of, resolve};
use proc_macro2::{Spacing, Span, TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The most lines of a file without its tests.
const FILE_LINES_MAX: usize = 800;
/// The most lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// The most characters of a line.
const COLUMNS_MAX: usize = 120;
/// Files and folders in which `unsafe` is allowed.
const UNSAFE_PLACES: &[&str] = &[
    "reactor/",
    "core/src/mem.rs",
    "core/src/mem/",
    "front/nvme-tcp/src/tls/external.rs",
    "rbd/src/library",
    "tcmu/src/plugin.rs",
    "verbs/src/library",
];

/// The folders of the daemon's sources, which use [`log!`](../../reactor/src/log.rs) because it never fails.
const DAEMON: &[&str] = &[
    "core/",
    "scsi/",
    "nvme/",
    "block/",
    "reactor/",
    "stream/",
    "guest/",
    "front/",
    "back/",
    "control/",
    "api/",
    "client/isns/",
    "lunar/",
];
/// Macros that panic when the reader of the output is gone.
const PRINTS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

/// The types of the policies of commands. Each row states all of their fields: a row that forgets one must not compile.
const POLICIES: [&str; 2] = ["Policy", "Admission"];

/// Folders of protocols without I/O, where only the glue uses the reactor.
const WITH_GLUE: &[&str] = &["front/", "stream/"];

/// All findings in the Rust files of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut parsed = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        match syn::parse_file(text) {
            Ok(file) => parsed.push((path, text, file)),
            Err(why) => {
                findings.push(Finding::new(path, why.span().start().line, format!("cannot be parsed: {why}")));
            }
        }
    }
    let tests = test_files(&parsed.iter().map(|(path, _, file)| (*path, file)).collect::<Vec<_>>());
    for (path, text, file) in &parsed {
        let is_test = tests.contains(*path);
        let mut look =
            Look { path, lines: text.lines().collect(), in_test: is_test, test_lines: 0, findings: Vec::new() };
        look.visit_file(file);
        look.whole_file(is_test);
        findings.append(&mut look.findings);
    }
    findings
}

/// Files that consist of tests: those in a folder of tests, and modules that only test builds have.
pub(crate) fn test_files(parsed: &[(&str, &syn::File)]) -> BTreeSet<String> {
    let in_folder = |path: &str| path.split('/').any(|part| part == "tests" || part == "benches");
    let mut tests: BTreeSet<String> =
        parsed.iter().map(|(path, _)| *path).filter(|path| in_folder(path)).map(str::to_owned).collect();
    // Submodules of test modules are found in the following rounds.
    loop {
        let before = tests.len();
        for (path, file) in parsed {
            let inherited = tests.contains(*path);
            for item in &file.items {
                if let syn::Item::Mod(module) = item
                    && module.content.is_none()
                    && (inherited || is_test_only(&module.attrs))
                {
                    tests.extend(module_files(path, module));
                }
            }
        }
        if tests.len() == before {
            return tests;
        }
    }
}

/// The paths at which the file of `mod name;` in the file at `path` may be.
pub(crate) fn module_files(path: &str, module: &syn::ItemMod) -> Vec<String> {
    let folder = folder_of(path);
    let named = module.attrs.iter().find(|attribute| attribute.path().is_ident("path"));
    if let Some(syn::Meta::NameValue(value)) = named.map(|attribute| &attribute.meta)
        && let syn::Expr::Lit(literal) = &value.value
        && let syn::Lit::Str(text) = &literal.lit
    {
        return resolve(folder, &text.value()).into_iter().collect();
    }
    let stem = path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    let own = match stem {
        "mod" | "lib" | "main" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    vec![format!("{own}/{}.rs", module.ident), format!("{own}/{}/mod.rs", module.ident)]
}

/// Whether the attributes contain `#[cfg(test)]` or `#[test]`.
pub(crate) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all") && condition.contains("test")
        }
        _ => false,
    })
}

/// The check of one file.
struct Look<'a> {
    path: &'a str,
    lines: Vec<&'a str>,
    in_test: bool,
    test_lines: usize,
    findings: Vec<Finding>,
}

impl Look<'_> {
    fn find(&mut self, line: usize, what: impl Into<String>) {
        self.findings.push(Finding::new(self.path, line, what));
    }

    fn whole_file(&mut self, is_test: bool) {
        for (at, line) in self.lines.clone().into_iter().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                self.find(at + 1, format!("{columns} characters, {COLUMNS_MAX} at most"));
            }
        }
        if is_test {
            return;
        }
        let lines = self.lines.len() - self.test_lines;
        if lines > FILE_LINES_MAX {
            self.find(0, format!("{lines} lines without tests, {FILE_LINES_MAX} at most"));
        }
        if !self.lines.first().is_some_and(|line| line.starts_with("//!")) {
            self.find(1, "does not begin with module documentation: `//! ...`");
        }
        if WITH_GLUE.iter().any(|place| self.path.starts_with(place)) && !is_glue(self.path) {
            for (at, line) in self.lines.clone().into_iter().enumerate() {
                if line.contains("lunar_reactor") {
                    self.find(at + 1, "only the glue (`serve.rs`) uses the reactor");
                }
            }
        }
    }

    fn function(&mut self, signature: &syn::Signature, whole: Span) {
        let lines = whole.end().line - signature.span().start().line + 1;
        if lines > FUNCTION_LINES_MAX {
            let line = signature.span().start().line;
            self.find(line, format!("`{}` has {lines} lines, {FUNCTION_LINES_MAX} at most", signature.ident));
        }
        if let Some(keyword) = &signature.unsafety {
            self.unsafe_at(keyword.span, "# Safety");
        }
    }

    /// Checks the place of an `unsafe`, and the comment above it.
    fn unsafe_at(&mut self, span: Span, reason: &str) {
        let line = span.start().line;
        if !UNSAFE_PLACES.iter().any(|place| self.path.starts_with(place)) {
            self.find(line, format!("`unsafe` is allowed in {UNSAFE_PLACES:?} only"));
        }
        if !self.has_reason(line, reason) {
            self.find(line, format!("`unsafe` without a comment with `{reason}`"));
        }
    }

    /// Whether the comment above the statement that contains `line` contains `reason`.
    fn has_reason(&self, line: usize, reason: &str) -> bool {
        let above = self.lines[..line.min(self.lines.len())].iter().rev().map(|text| text.trim());
        for (distance, text) in above.enumerate() {
            if text.starts_with("//") {
                if text.contains(reason) {
                    return true;
                }
                continue;
            }
            let ends = text.is_empty() || text.ends_with(';') || text.ends_with('}') || text.ends_with('{');
            if distance > 0 && ends && !text.starts_with("#[") {
                return text.contains(reason);
            }
        }
        false
    }

    fn unwrap_at(&mut self, span: Span) {
        if !self.in_test {
            self.find(
                span.start().line,
                "`unwrap()` outside of tests: handle the error, or use `expect` with the reason",
            );
        }
    }

    fn print_at(&mut self, name: &proc_macro2::Ident) {
        let is_daemon = self.path.contains("/src/") && DAEMON.iter().any(|place| self.path.starts_with(place));
        if is_daemon && !self.in_test && PRINTS.iter().any(|print| name == print) {
            let what = format!("`{name}!` panics when its reader is gone: use `log!` of the reactor, or `writeln!`");
            self.find(name.span().start().line, what);
        }
    }

    /// Checks the tokens of a macro call, which cannot be parsed.
    fn tokens(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        for window in tokens.windows(2) {
            if let [TokenTree::Ident(name), TokenTree::Punct(mark)] = window
                && mark.as_char() == '!'
            {
                self.print_at(name);
            }
        }
        for window in tokens.windows(3) {
            if let [TokenTree::Punct(dot), TokenTree::Ident(name), TokenTree::Group(arguments)] = window
                && dot.as_char() == '.'
                && dot.spacing() == Spacing::Alone
                && name == "unwrap"
                && arguments.stream().is_empty()
            {
                self.unwrap_at(name.span());
            }
        }
        for token in tokens {
            match token {
                TokenTree::Ident(name) if name == "unsafe" => self.unsafe_at(name.span(), "SAFETY:"),
                TokenTree::Group(group) => self.tokens(&group.stream()),
                _ => {}
            }
        }
    }
}

/// Whether a file is the glue between a front end and the reactor.
fn is_glue(path: &str) -> bool {
    path.ends_with("/serve.rs") || path.contains("/serve/")
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Look<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let begins_test = !self.in_test && is_test_only(attributes_of(item));
        if begins_test {
            self.in_test = true;
            self.test_lines += item.span().end().line - item.span().start().line + 1;
        }
        visit::visit_item(self, item);
        if begins_test {
            self.in_test = false;
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, function.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig, function.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.function(&function.sig, function.span());
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.unsafe_at(block.unsafe_token.span, "SAFETY:");
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_expr_struct(&mut self, value: &'ast syn::ExprStruct) {
        let name = value.path.segments.last().map(|segment| segment.ident.to_string());
        if let Some(base) = value.dot2_token
            && name.is_some_and(|name| POLICIES.contains(&name.as_str()))
        {
            self.find(base.span().start().line, "a policy must state all of its fields: no `..`");
        }
        visit::visit_expr_struct(self, value);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(keyword) = &item.unsafety {
            self.unsafe_at(keyword.span, "SAFETY:");
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" && call.args.is_empty() {
            self.unwrap_at(call.method.span());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last() {
            self.print_at(&last.ident);
        }
        self.tokens(&call.tokens);
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
#[path = "code_tests.rs"]
mod tests;
