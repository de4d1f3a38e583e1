//! Reads which module imports which from the tokens of the sources, without test code.
//!
//! The nodes of a crate are its top-level modules, and its root file (`lib` or `main`) if that has code of its own. An item that
//! the root re-exports belongs to the module that defines it.
use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names that each name imports.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The imports of a workspace.
#[derive(Debug, Default)]
pub struct Imports {
    /// Imports between crates, by the names of their directories.
    pub crates: Graph,
    /// Imports between the top-level modules of each crate.
    pub modules: BTreeMap<String, Graph>,
}

/// Reads all `crates/NAME/src/**.rs` of `files` (path and text). The error names a file that is not valid Rust.
pub fn read(files: &[(String, String)]) -> Result<Imports, String> {
    let mut sources: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for (path, text) in files {
        let Some((name, below)) = path.strip_prefix("crates/").and_then(|p| p.split_once("/src/")) else { continue };
        let Some(module) = module_path(below) else { continue };
        let tokens: TokenStream = text.parse().map_err(|error| format!("{path}: {error}"))?;
        sources.entry(name.to_owned()).or_default().push(Source { module, tokens: tokens.into_iter().collect() });
    }
    let names: BTreeSet<String> = sources.keys().cloned().collect();
    let mut imports = Imports::default();
    for (name, sources) in &sources {
        let (modules, crates) = read_crate(sources, &names);
        imports.crates.insert(name.clone(), crates.into_iter().filter(|other| other != name).collect());
        imports.modules.insert(name.clone(), modules);
    }
    Ok(imports)
}

/// A file with the path of its module from the crate's root.
struct Source {
    module: Vec<String>,
    tokens: Vec<TokenTree>,
}

/// The module path of a file: `[a, b]` for `a/b.rs` and `a/b/mod.rs`, `[]` for the root file. None if it is not a Rust file.
fn module_path(below: &str) -> Option<Vec<String>> {
    let mut parts: Vec<String> = below.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

fn read_crate(sources: &[Source], crates: &BTreeSet<String>) -> (Graph, BTreeSet<String>) {
    let tests: Vec<Vec<String>> = sources.iter().flat_map(test_modules).collect();
    let is_test = |module: &[String]| tests.iter().any(|test| module.starts_with(test));
    let product = || sources.iter().filter(|source| !is_test(&source.module));
    let top: BTreeSet<String> = product().filter_map(|source| source.module.first().cloned()).collect();
    let reexports =
        sources.iter().find(|s| s.module.is_empty()).map(|s| reexports(&s.tokens, &top)).unwrap_or_default();
    let mut graph: Graph = top.iter().map(|name| (name.clone(), BTreeSet::new())).collect();
    let mut others = BTreeSet::new();
    for source in product() {
        let is_root = source.module.is_empty();
        let (modules, imported) = (BTreeSet::new(), BTreeSet::new());
        let mut reader = Reader { crates, top: &top, reexports: &reexports, is_root, modules, others: imported };
        reader.walk(&source.tokens, source.module.len());
        let from = source.module.first().map_or(ROOT, String::as_str);
        reader.modules.remove(from);
        graph.entry(from.to_owned()).or_default().extend(reader.modules);
        others.extend(reader.others);
    }
    // A root from which no module imports only declares the modules.
    if !graph.values().any(|imported| imported.contains(ROOT)) {
        graph.remove(ROOT);
    }
    (graph, others)
}

/// The name of a root file's node.
pub const ROOT: &str = "(root)";

/// Collects the imports of one file.
struct Reader<'a> {
    crates: &'a BTreeSet<String>,
    top: &'a BTreeSet<String>,
    reexports: &'a BTreeMap<String, String>,
    is_root: bool,
    modules: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl Reader<'_> {
    /// `depth` is the number of modules that enclose these tokens.
    fn walk(&mut self, tokens: &[TokenTree], depth: usize) {
        let mut i = 0;
        while i < tokens.len() {
            if let Some(end) = end_of_test_item(tokens, i) {
                i = end;
                continue;
            }
            match &tokens[i] {
                TokenTree::Group(group) => {
                    let is_module = i >= 2 && word(tokens, i - 2).as_deref() == Some("mod");
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.walk(&inner, depth + usize::from(is_module));
                }
                TokenTree::Ident(ident) => self.word(&ident.to_string(), tokens, i, depth),
                _ => {}
            }
            i += 1;
        }
    }

    fn word(&mut self, word: &str, tokens: &[TokenTree], at: usize, depth: usize) {
        let begins_path = !(at >= 2 && is_separator(tokens, at - 2));
        if let Some(name) = word.strip_prefix("parshall_").filter(|name| self.crates.contains(*name)) {
            self.others.insert(name.to_owned());
        }
        if !begins_path || !is_separator(tokens, at + 1) {
            return;
        }
        match word {
            "crate" => self.path_from_root(tokens, at + 3),
            "self" if self.is_root && depth == 0 => self.path_from_root(tokens, at + 3),
            "super" => {
                let ups = (0..).take_while(|n| self::word(tokens, at + 3 * n).as_deref() == Some("super")).count();
                if ups == depth {
                    self.path_from_root(tokens, at + 3 * ups);
                }
            }
            name if self.is_root && depth == 0 && self.top.contains(name) => {
                self.modules.insert(name.to_owned());
            }
            _ => {}
        }
    }

    /// Reads the tokens after `crate::`: a name, or several in braces.
    fn path_from_root(&mut self, tokens: &[TokenTree], at: usize) {
        match tokens.get(at) {
            Some(TokenTree::Ident(name)) => self.import(&name.to_string()),
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in inner.split(is_comma) {
                    if let Some(name) = word(part, 0) {
                        self.import(&name);
                    }
                }
            }
            _ => self.import(ROOT),
        }
    }

    fn import(&mut self, name: &str) {
        let module = match self.top.contains(name) {
            true => name,
            false => self.reexports.get(name).map_or(ROOT, String::as_str),
        };
        self.modules.insert(module.to_owned());
    }
}

/// The names that the root file re-exports, with the top-level module of each.
fn reexports(tokens: &[TokenTree], top: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for item in tokens.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ';')) {
        let Some(begin) = (0..item.len()).find(|i| word(item, *i).as_deref() == Some("use")) else { continue };
        let path: Vec<TokenTree> = item[begin + 1..].to_vec();
        let first = (0..path.len()).filter_map(|i| word(&path, i)).find(|name| name != "crate" && name != "self");
        if let Some(module) = first.filter(|name| top.contains(name)) {
            let mut names = Vec::new();
            leaves(&path, &mut names);
            found.extend(names.into_iter().map(|name| (name, module.clone())));
        }
    }
    found
}

/// The last segments of the paths of a `use`.
fn leaves(path: &[TokenTree], names: &mut Vec<String>) {
    for part in path.split(is_comma) {
        match part.last() {
            Some(TokenTree::Ident(name)) => names.push(name.to_string()),
            Some(TokenTree::Group(group)) => leaves(&group.stream().into_iter().collect::<Vec<_>>(), names),
            _ => {}
        }
    }
}

/// The modules that exist only in tests, by their path from the crate's root.
fn test_modules(source: &Source) -> Vec<Vec<String>> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    if is_test_attribute(tokens, 0, true) {
        found.push(source.module.clone());
    }
    for i in 0..tokens.len() {
        let Some(end) = end_of_test_item(tokens, i) else { continue };
        if let Some(at) = (i..end).find(|at| word(tokens, *at).as_deref() == Some("mod")) {
            let name = word(tokens, at + 1).unwrap_or_default();
            found.push(source.module.iter().cloned().chain([name]).collect());
        }
    }
    found
}

/// The end of the item after a `#[cfg(test)]` at `i` and its other attributes. None if there is no such attribute.
fn end_of_test_item(tokens: &[TokenTree], i: usize) -> Option<usize> {
    if !is_test_attribute(tokens, i, false) {
        return None;
    }
    let is_end = |token: &TokenTree| match token {
        TokenTree::Punct(p) => p.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let behind = i + 2;
    Some((behind..tokens.len()).find(|at| is_end(&tokens[*at])).map_or(tokens.len(), |at| at + 1))
}

/// Whether the tokens at `i` are `#[cfg(.. test ..)]`, or `#![cfg(.. test ..)]` if `inner`.
fn is_test_attribute(tokens: &[TokenTree], i: usize, inner: bool) -> bool {
    let punct = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == c);
    if !punct(i, '#') || (inner && !punct(i + 1, '!')) {
        return false;
    }
    match tokens.get(i + 1 + usize::from(inner)) {
        Some(TokenTree::Group(group)) => {
            let text = group.stream().to_string().replace(' ', "");
            text.starts_with("cfg(")
                && text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "test")
                && !text.contains("not(test")
        }
        _ => false,
    }
}

fn word(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

/// Whether the tokens at `at` are `::`.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(at) && colon(at + 1)
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == ',')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(p, t)| (format!("crates/x/src/{p}"), (*t).to_owned())).collect();
        let graph = read(&files).expect("Rust").modules.remove("x").expect("the crate");
        graph.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from}>{to}"))).collect()
    }

    #[test]
    fn paths_from_the_root_are_imports() {
        let lib =
            ("lib.rs", "//! See [`crate::b`].\nmod a; mod b; mod c; pub mod d; pub use c::{Deep, e::{Leaf as F}};");
        let leaf = |name| (name, "");
        let of_a = |text| modules(&[lib, ("a.rs", text), leaf("b.rs"), leaf("c.rs"), leaf("d.rs")]);
        assert_eq!(of_a("use crate::b::X;"), ["a>b"]);
        assert_eq!(of_a("use crate::{b::{Y, Z}, d};"), ["a>b", "a>d"]);
        assert_eq!(of_a("fn f() { vec![crate::d::g()]; }"), ["a>d"]);
        assert_eq!(of_a("use super::b; use super::super::c;"), ["a>b"]);
        assert_eq!(of_a("use crate::{Deep, F};"), ["a>c"]);
        assert_eq!(of_a("use crate::a::inner; use std::b::X; const S: &str = \"crate::b\"; // crate::c"), [""; 0]);
        assert_eq!(of_a("#[arg(parser = crate::b::parse)] struct A;"), ["a>b"]);
        assert_eq!(of_a("mod inner { use super::super::d::X; use super::b; }"), ["a>d"]);
    }

    #[test]
    fn code_of_tests_is_left_out() {
        let lib = ("lib.rs", "mod a; mod b; #[cfg(test)] mod kit; #[cfg(any(test, feature = \"k\"))] pub mod more;");
        let a = "#[cfg(test)]\n#[allow(x)]\nmod tests { use crate::b; }\n#[cfg(test)] use crate::b::X; fn f() {}";
        let all = [lib, ("a/mod.rs", a), ("b.rs", ""), ("kit.rs", "use crate::a;"), ("more/x.rs", "use crate::a;")];
        assert!(modules(&all).is_empty(), "{:?}", modules(&all));
        assert_eq!(modules(&[("a.rs", "#![cfg(test)]\nuse crate::b;"), ("b.rs", "")]), [""; 0]);
    }

    #[test]
    fn a_root_with_code_of_its_own_is_a_node() {
        let lib = ("lib.rs", "mod a; mod b; pub struct X; fn f() { b::g(); }");
        assert_eq!(modules(&[lib, ("a.rs", "use crate::X;"), ("b.rs", "")]), ["(root)>b", "a>(root)"]);
        assert_eq!(modules(&[lib, ("a.rs", ""), ("b.rs", "")]), [""; 0]);
    }

    #[test]
    fn crates_are_those_of_the_workspace() {
        let files = [("crates/x/src/lib.rs", "use parshall_y::Z; fn parshall_z() {}"), ("crates/y/src/lib.rs", "")];
        let files: Vec<_> = files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        let imports = read(&files).expect("Rust");
        assert_eq!(imports.crates["x"], BTreeSet::from(["y".to_owned()]));
        assert!(read(&[("crates/x/src/a.rs".to_owned(), "fn (".to_owned())]).is_err());
    }
}
