//! Checks for import circles: files of one crate that import each other, directly or through other files.
//!
//! An import leads from the file that uses an item to the file that declares it. A re-export (`pub use`) is no import:
//! an item that is imported through it counts as imported from the file that declares it. Tests are not checked.

use crate::code::{is_test_only, module_files, test_files};
use crate::{Finding, Tree, folder_of};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Files that may import each other in a circle. Two or three files can be read together; in a larger circle no file
/// can be understood, tested or moved alone.
const CIRCLE_MAX: usize = 3;

/// Circles that may be larger: a file of each, the number of files, and the reason.
const ALLOWED: &[(&str, usize, &str)] = &[];

/// Re-exports that are followed one after another: more is a circle of re-exports.
const REEXPORTS_MAX: usize = 16;

/// All findings in the imports of a tree.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let parsed: Vec<(&str, syn::File)> =
        tree.with_extension("rs").filter_map(|(path, text)| Some((path, syn::parse_file(text).ok()?))).collect();
    let tests = test_files(&parsed.iter().map(|(path, file)| (*path, file)).collect::<Vec<_>>());
    let mut findings = Vec::new();
    let mut unused: Vec<_> = ALLOWED.to_vec();
    let roots = parsed.iter().map(|(path, _)| *path).filter(|path| is_root(path));
    for root in roots {
        let modules = Modules::of(root, &parsed, &tests);
        let mut large = circles(&modules.imports());
        large.retain(|circle| circle.len() > CIRCLE_MAX);
        for circle in large {
            let allowed = |(file, most, _): &(&str, usize, &str)| circle.contains(*file) && circle.len() <= *most;
            if ALLOWED.iter().any(allowed) {
                unused.retain(|entry| !allowed(entry));
            } else {
                findings.push(described(&circle));
            }
        }
    }
    findings.extend(
        unused.iter().map(|(file, ..)| Finding::new(file, 0, "is allowed a larger import circle, but is in none")),
    );
    findings
}

fn is_root(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

fn described(circle: &BTreeSet<String>) -> Finding {
    let first = circle.first().map_or("", String::as_str);
    let files: Vec<&str> = circle.iter().map(String::as_str).collect();
    let what = format!(
        "is in an import circle of {} files, {CIRCLE_MAX} at most: {}",
        circle.len(),
        files.join(", ").replace(&format!("{}/", folder_of(first)), "")
    );
    Finding::new(first, 0, what)
}

/// The path of a module within its crate.
type ModulePath = Vec<String>;

/// A module: its file, the names that it imports or re-exports.
#[derive(Default)]
struct Module {
    file: String,
    /// Each name with its path, and whether it is re-exported.
    names: BTreeMap<String, (ModulePath, bool)>,
    /// Modules whose names are all re-exported.
    globs: Vec<ModulePath>,
}

/// The modules of one crate.
struct Modules<'a> {
    all: BTreeMap<ModulePath, Module>,
    /// The imported paths as they are written, each with the importing module.
    paths: Vec<(ModulePath, ModulePath)>,
    parsed: BTreeMap<&'a str, &'a syn::File>,
    tests: &'a BTreeSet<String>,
}

impl<'a> Modules<'a> {
    fn of(root: &str, parsed: &'a [(&str, syn::File)], tests: &'a BTreeSet<String>) -> Self {
        let parsed = parsed.iter().map(|(path, file)| (*path, file)).collect();
        let mut modules = Self { all: BTreeMap::new(), paths: Vec::new(), parsed, tests };
        if let Some(file) = modules.parsed.get(root).copied() {
            modules.add(Vec::new(), root, &file.items);
        }
        modules
    }

    /// Adds a module and its submodules.
    fn add(&mut self, module_path: ModulePath, file: &str, items: &[syn::Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut below = Vec::new();
        let mut paths = Paths::default();
        for item in items {
            match item {
                syn::Item::Mod(inner) => below.push(inner.clone()),
                syn::Item::Use(item) if !is_test_only(&item.attrs) => {
                    let is_name = !matches!(item.vis, syn::Visibility::Inherited);
                    for (path, name) in flattened(&item.tree) {
                        match name {
                            Some(name) => drop(module.names.insert(name, (path.clone(), is_name))),
                            None if is_name => module.globs.push(path.clone()),
                            None => {}
                        }
                        if !is_name {
                            paths.0.push(path);
                        }
                    }
                }
                item => paths.visit_item(item),
            }
        }
        self.paths.extend(paths.0.into_iter().map(|path| (module_path.clone(), path)));
        self.all.insert(module_path.clone(), module);
        for inner in below.iter().filter(|inner| !is_test_only(&inner.attrs)) {
            let mut at = module_path.clone();
            at.push(inner.ident.to_string());
            match &inner.content {
                Some((_, items)) => self.add(at, file, items),
                None => {
                    let files = module_files(file, inner);
                    let found = files.iter().find(|path| self.parsed.contains_key(path.as_str()));
                    if let Some(path) = found.filter(|path| !self.tests.contains(*path)) {
                        let items = &self.parsed[path.as_str()].items;
                        self.add(at, path, items);
                    }
                }
            }
        }
    }

    /// The file that declares the item of a path in the module `from`; `None` for items of other crates.
    fn file_of(&self, from: &ModulePath, path: &ModulePath, depth: usize) -> Option<&str> {
        let mut at = from.clone();
        let mut rest = path.as_slice();
        match rest.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            name => {
                let known = |module_path: &ModulePath| self.all.contains_key(module_path);
                let mut child = at.clone();
                child.push(name.to_owned());
                if !known(&child) && !self.all.get(&at)?.names.contains_key(name) {
                    return None;
                }
            }
        }
        self.follow(at, rest, depth)
    }

    fn follow(&self, mut at: ModulePath, path: &[String], depth: usize) -> Option<&str> {
        if depth > REEXPORTS_MAX {
            return None;
        }
        for (index, name) in path.iter().enumerate() {
            let mut child = at.clone();
            child.push(name.clone());
            if self.all.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.all.get(&at)?;
            if let Some((target, _)) = module.names.get(name) {
                let mut whole = target.clone();
                whole.extend_from_slice(&path[index + 1..]);
                // An imported name may belong to another crate.
                return self.file_of(&at, &whole, depth + 1);
            }
            let by_glob = module.globs.iter().find_map(|glob| {
                let mut whole = glob.clone();
                whole.extend_from_slice(&path[index..]);
                let file = self.file_of(&at, &whole, depth + 1)?;
                (file != module.file).then_some(file)
            });
            return Some(by_glob.unwrap_or(&module.file));
        }
        Some(&self.all.get(&at)?.file)
    }

    /// The imported files of each file.
    fn imports(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, path) in &self.paths {
            let Some(own) = self.all.get(from).map(|module| &module.file) else { continue };
            if let Some(other) = self.file_of(from, path, 0)
                && other != own
            {
                imports.entry(own.clone()).or_default().insert(other.to_owned());
            }
        }
        imports
    }
}

/// The paths of a `use`, each with its local name; a glob has no name.
fn flattened(tree: &syn::UseTree) -> Vec<(ModulePath, Option<String>)> {
    let with = |head: &syn::Ident, tail: &syn::UseTree| {
        let longer = |(path, name): (ModulePath, Option<String>)| {
            let mut whole = vec![head.to_string()];
            whole.extend(path);
            (whole, name)
        };
        flattened(tail).into_iter().map(longer).collect()
    };
    match tree {
        syn::UseTree::Path(path) => with(&path.ident, &path.tree),
        syn::UseTree::Name(name) if name.ident == "self" => vec![(Vec::new(), Some(name.ident.to_string()))],
        syn::UseTree::Name(name) => vec![(vec![name.ident.to_string()], Some(name.ident.to_string()))],
        syn::UseTree::Rename(name) => vec![(vec![name.ident.to_string()], Some(name.rename.to_string()))],
        syn::UseTree::Glob(_) => vec![(Vec::new(), None)],
        syn::UseTree::Group(group) => group.items.iter().flat_map(flattened).collect(),
    }
}

/// The paths in code other than in a `use`.
#[derive(Default)]
struct Paths(Vec<ModulePath>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let is_test = match item {
            syn::Item::Fn(item) => is_test_only(&item.attrs),
            syn::Item::Impl(item) => is_test_only(&item.attrs),
            syn::Item::Mod(item) => is_test_only(&item.attrs),
            _ => false,
        };
        if !is_test {
            visit::visit_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// The circles: strongly connected components of more than one file, by Tarjan's algorithm.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let mut search = Search { imports, ..Search::new(imports) };
    for file in imports.keys() {
        if !search.number.contains_key(file.as_str()) {
            search.visit(file);
        }
    }
    search.found.into_iter().filter(|circle| circle.len() > 1).collect()
}

struct Search<'a> {
    imports: &'a BTreeMap<String, BTreeSet<String>>,
    number: BTreeMap<&'a str, usize>,
    lowest: BTreeMap<&'a str, usize>,
    stack: Vec<&'a str>,
    found: Vec<BTreeSet<String>>,
}

impl<'a> Search<'a> {
    fn new(imports: &'a BTreeMap<String, BTreeSet<String>>) -> Self {
        Self { imports, number: BTreeMap::new(), lowest: BTreeMap::new(), stack: Vec::new(), found: Vec::new() }
    }

    fn visit(&mut self, file: &'a str) {
        let number = self.number.len();
        self.number.insert(file, number);
        self.lowest.insert(file, number);
        self.stack.push(file);
        for other in self.imports.get(file).into_iter().flatten() {
            let reached = match self.number.get(other.as_str()) {
                None => {
                    self.visit(other);
                    self.lowest[other.as_str()]
                }
                Some(number) if self.stack.contains(&other.as_str()) => *number,
                Some(_) => continue,
            };
            let own = self.lowest[file].min(reached);
            self.lowest.insert(file, own);
        }
        if self.lowest[file] == number {
            let at = self.stack.iter().position(|one| *one == file).unwrap_or_default();
            self.found.push(self.stack.split_off(at).into_iter().map(str::to_owned).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.what).collect()
    }

    /// A crate whose file `a` imports `b`, `b` imports `c` and so on, and the last one imports `a` by `closing`.
    fn ring(count: usize, closing: &str) -> Vec<String> {
        let names: Vec<char> = ('a'..='z').take(count).collect();
        let lib: String = names.iter().map(|name| format!("pub mod {name};\n")).collect();
        let mut files = vec![("x/src/lib.rs".to_owned(), lib + "pub use a::Thing;\n")];
        for (at, name) in names.iter().enumerate() {
            let import = match names.get(at + 1) {
                Some(next) => format!("use crate::{next}::Thing as Next;\n"),
                None => closing.to_owned(),
            };
            files.push((format!("x/src/{name}.rs"), import + "pub struct Thing;\n"));
        }
        found(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_of_four_files_is_found_and_one_of_three_is_not() {
        assert_eq!(ring(3, "use crate::a::Thing as First;\n"), [""; 0]);
        let four = ring(4, "use crate::a::Thing as First;\n");
        assert_eq!(four.len(), 1, "{four:?}");
        assert!(four[0].contains("4 files") && four[0].contains("a.rs, b.rs, c.rs, d.rs"), "{four:?}");
        assert_eq!(ring(4, ""), [""; 0]);
    }

    #[test]
    fn an_import_is_found_however_it_is_written() {
        for closing in [
            "use super::a::Thing as First;\n",
            "use crate::{a::{self, Thing as First}};\n",
            "fn f() -> crate::a::Thing { todo() }\n",
            "use crate::a;\n",
            "mod inner { use super::super::a::Thing; }\n",
            // Through a re-export.
            "use crate::Thing as First;\n",
        ] {
            assert_eq!(ring(4, closing).len(), 1, "{closing}");
        }
    }

    #[test]
    fn re_exports_and_tests_import_nothing() {
        assert_eq!(ring(4, "pub use crate::a::Thing as First;\n"), [""; 0]);
        assert_eq!(ring(4, "#[cfg(test)]\nmod tests { use crate::a::Thing; }\n"), [""; 0]);
        assert_eq!(ring(4, "use other::a::Thing as First;\n"), [""; 0]);
    }
}
