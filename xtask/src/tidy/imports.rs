//! Reads which file imports which from the tokens of the sources, without test code.
//!
//! A node is the module of a file. An imported name belongs to the file that defines it: re-exports are followed. A file that
//! declares its children or re-exports what they define does not import them, unless it uses that itself.
use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names that each name imports.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The path of a module from the crate's root.
type Module = Vec<String>;

/// The imports of a workspace.
#[derive(Debug, Default)]
pub struct Imports {
    /// Imports between crates, by the names of their directories.
    pub crates: Graph,
    /// Imports between the top-level modules of each crate, and its root file if others import what it defines.
    pub modules: BTreeMap<String, Graph>,
    /// Imports between the files of each crate, by their paths without extension (`a/b` for `a/b.rs` and `a/b/mod.rs`).
    pub files: BTreeMap<String, Graph>,
}

/// The name of a root file's node.
pub const ROOT: &str = "(root)";

/// Reads all `crates/NAME/src/**.rs` of `files` (path and text). The error names a file that is not valid Rust.
pub fn read(files: &[(String, String)]) -> Result<Imports, String> {
    let mut sources: BTreeMap<String, Vec<(Module, Vec<TokenTree>)>> = BTreeMap::new();
    for (path, text) in files {
        let Some((name, below)) = path.strip_prefix("crates/").and_then(|p| p.split_once("/src/")) else { continue };
        let Some(module) = module_path(below) else { continue };
        let tokens: TokenStream = text.parse().map_err(|error| format!("{path}: {error}"))?;
        sources.entry(name.to_owned()).or_default().push((module, tokens.into_iter().collect()));
    }
    let names: BTreeSet<String> = sources.keys().cloned().collect();
    let mut imports = Imports::default();
    for (name, sources) in &sources {
        let files = read_crate(sources);
        let used = files.0.values().flat_map(|file| &file.words).filter_map(|word| word.strip_prefix("parshall_"));
        let crates = used.filter(|other| *other != name && names.contains(*other)).map(str::to_owned).collect();
        imports.crates.insert(name.clone(), crates);
        let graph = files.graph();
        imports.modules.insert(name.clone(), top_level(&graph));
        imports.files.insert(name.clone(), graph);
    }
    Ok(imports)
}

/// The module path of a file: `[a, b]` for `a/b.rs` and `a/b/mod.rs`, `[]` for the root file. None if it is not a Rust file.
fn module_path(below: &str) -> Option<Module> {
    let mut parts: Module = below.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

fn read_crate(sources: &[(Module, Vec<TokenTree>)]) -> Files {
    let tests: Vec<Module> = sources.iter().flat_map(|(module, tokens)| test_modules(module, tokens)).collect();
    let mut files = Files::default();
    for (module, tokens) in sources.iter().filter(|(module, _)| !tests.iter().any(|test| module.starts_with(test))) {
        files.0.entry(module.clone()).or_default().read(tokens, module);
    }
    files
}

/// The imports between top-level modules that these imports between files amount to.
fn top_level(files: &Graph) -> Graph {
    let top = |file: &String| file.split('/').next().unwrap_or_default().to_owned();
    let mut graph = Graph::new();
    for (from, to) in files {
        let imported = to.iter().map(top).filter(|name| *name != top(from));
        graph.entry(top(from)).or_default().extend(imported);
    }
    // A root from which no module imports only declares the modules.
    if !graph.values().any(|imported| imported.contains(ROOT)) {
        graph.remove(ROOT);
    }
    graph
}

/// A path of a file's code, with the module that it is in: the file's own, or an inline one below it.
struct Path {
    module: Module,
    segments: Vec<String>,
}

/// An item or module that a `use` brings into a file.
struct Use {
    path: Path,
    /// None for a glob.
    name: Option<String>,
    is_public: bool,
}

/// The names in the code of a file.
#[derive(Default)]
struct File {
    uses: Vec<Use>,
    paths: Vec<Path>,
    /// The items and inline modules that it defines.
    defines: BTreeSet<String>,
    /// The identifiers that may be uses of an item, and the crates of this workspace that are imported.
    words: BTreeSet<String>,
}

impl File {
    fn read(&mut self, tokens: &[TokenTree], module: &[String]) {
        let mut i = 0;
        while i < tokens.len() {
            if let Some(end) = end_of_test_item(tokens, i) {
                i = end;
                continue;
            }
            match &tokens[i] {
                TokenTree::Group(group) => {
                    let is_module = i >= 2 && word(tokens, i - 2).as_deref() == Some("mod");
                    let name = word(tokens, i - usize::from(is_module)).filter(|_| is_module);
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.read(&inner, &module.iter().cloned().chain(name).collect::<Module>());
                }
                TokenTree::Ident(ident) if ident == "use" && !is_punct(tokens, i + 1, '<') => {
                    let end = (i..tokens.len()).find(|at| is_punct(tokens, *at, ';')).unwrap_or(tokens.len());
                    let is_public = i > 0 && is_visibility(tokens, i - 1);
                    self.read_use(&tokens[i + 1..end], module, &[], is_public);
                    i = end;
                }
                TokenTree::Ident(ident) => self.read_word(&ident.to_string(), tokens, i, module),
                _ => {}
            }
            i += 1;
        }
    }

    fn read_word(&mut self, first: &str, tokens: &[TokenTree], at: usize, module: &[String]) {
        const ITEMS: [&str; 9] = ["const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union"];
        // Methods and the names of what is defined here are no uses of items with the same name.
        if !(at > 0
            && (is_punct(tokens, at - 1, '.') || word(tokens, at - 1).is_some_and(|w| ITEMS.contains(&w.as_str()))))
        {
            self.words.insert(first.to_owned());
        }
        if let Some(name) = word(tokens, at + 1).filter(|_| ITEMS.contains(&first)) {
            self.defines.insert(name);
        }
        let begins_path = !(at >= 2 && is_separator(tokens, at - 2));
        if begins_path && is_separator(tokens, at + 1) {
            let segments = segments(&tokens[at..]);
            self.paths.push(Path { module: module.to_vec(), segments });
        }
    }

    /// Reads what is imported below the path `above`: a path, or several in braces.
    fn read_use(&mut self, tokens: &[TokenTree], module: &[String], above: &[String], is_public: bool) {
        for part in tokens.split(is_comma).filter(|part| !part.is_empty()) {
            let mut path: Vec<String> = above.iter().cloned().chain(segments(part)).collect();
            self.words.extend(path.first().filter(|name| name.starts_with("parshall_")).cloned());
            if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                path.pop();
            }
            let name = match part {
                [.., TokenTree::Group(group)] => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.read_use(&inner, module, &path, is_public);
                    continue;
                }
                [.., TokenTree::Punct(_)] => None,
                [.., TokenTree::Ident(name)] if name == "self" => path.last().cloned(),
                [.., TokenTree::Ident(name)] => Some(name.to_string()),
                _ => continue,
            };
            self.uses.push(Use { path: Path { module: module.to_vec(), segments: path }, name, is_public });
        }
    }

    /// The import that brings a name into this file.
    fn import(&self, name: &str) -> Option<&Use> {
        self.uses.iter().find(|import| import.name.as_deref() == Some(name))
    }
}

/// The files of a crate, by their modules.
#[derive(Default)]
struct Files(BTreeMap<Module, File>);

/// The target of a path.
struct Target {
    /// The module of the file that defines it.
    file: Module,
    /// It is a module, not an item of one.
    is_module: bool,
}

impl Files {
    fn graph(&self) -> Graph {
        self.0.iter().map(|(module, file)| (node(module), self.imports(module, file))).collect()
    }

    /// The nodes that a file imports.
    fn imports(&self, module: &Module, file: &File) -> BTreeSet<String> {
        let mut imported = BTreeSet::new();
        for import in &file.uses {
            let Some(target) = self.resolve(&import.path, 0) else { continue };
            let is_child = target.file.len() > module.len() && target.file.starts_with(module);
            let is_needed = match &import.name {
                Some(name) if import.is_public && is_child => file.words.contains(name),
                // Only the paths that begin with the module's name say what is imported from it.
                Some(_) => !target.is_module,
                None => !(import.is_public && is_child && self.0[&target.file].defines.is_disjoint(&file.words)),
            };
            imported.extend(is_needed.then(|| node(&target.file)));
        }
        for target in file.paths.iter().filter_map(|path| self.resolve(path, 0)) {
            imported.extend((!target.is_module).then(|| node(&target.file)));
        }
        imported.remove(&node(module));
        imported
    }

    /// None for what is in no file of this crate. `depth` counts the imports that were followed, which may go round.
    fn resolve(&self, path: &Path, depth: usize) -> Option<Target> {
        let mut at = path.module.clone();
        let mut rest = &path.segments[..];
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                let ups = rest.iter().take_while(|segment| *segment == "super").count();
                at.truncate(at.len().checked_sub(ups)?);
                rest = &rest[ups - 1..];
            }
            name => {
                let here = self.0.get(&at)?;
                let is_child = self.0.contains_key(&below(&at, name));
                if !is_child && here.import(name).is_none_or(|import| import.path.segments == path.segments) {
                    return None;
                }
                return self.follow(at, rest, depth);
            }
        }
        self.follow(at, &rest[1..], depth)
    }

    /// Goes from the module `at` along segments, through imports and re-exports.
    fn follow(&self, mut at: Module, segments: &[String], depth: usize) -> Option<Target> {
        const DEPTH_MAX: usize = 16;
        for (n, name) in segments.iter().enumerate() {
            let child = below(&at, name);
            if self.0.contains_key(&child) {
                at = child;
                continue;
            }
            if let Some(file) = self.0.get(&at).filter(|file| depth < DEPTH_MAX && !file.defines.contains(name)) {
                let rest = &segments[n + 1..];
                let lead = |import: &Use, more: &[String]| Path {
                    module: import.path.module.clone(),
                    segments: [&import.path.segments, more].concat(),
                };
                if let Some(import) = file.import(name) {
                    return self.resolve(&lead(import, rest), depth + 1);
                }
                let globs = file.uses.iter().filter(|import| import.name.is_none());
                let mut targets = globs.filter_map(|glob| self.resolve(&glob.path, depth + 1));
                if let Some(target) = targets.find(|target| self.has(&target.file, name)) {
                    return self.follow(target.file, &segments[n..], depth + 1);
                }
            }
            return Some(Target { file: self.file_of(at), is_module: false });
        }
        Some(Target { file: self.file_of(at), is_module: true })
    }

    fn has(&self, module: &Module, name: &str) -> bool {
        let file = &self.0[module];
        file.defines.contains(name) || file.import(name).is_some() || self.0.contains_key(&below(module, name))
    }

    /// The module of the file that holds a module, which may be an inline one.
    fn file_of(&self, mut module: Module) -> Module {
        while !module.is_empty() && !self.0.contains_key(&module) {
            module.pop();
        }
        module
    }
}

fn node(module: &[String]) -> String {
    if module.is_empty() { ROOT.to_owned() } else { module.join("/") }
}

fn below(module: &[String], name: &str) -> Module {
    module.iter().map(String::as_str).chain([name]).map(str::to_owned).collect()
}

/// The segments of the path that these tokens begin with.
fn segments(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(name) = word(tokens, 3 * found.len()) {
        let at = 3 * found.len();
        found.push(name);
        if !is_separator(tokens, at + 1) {
            break;
        }
    }
    found
}

/// The modules that exist only in tests, by their path from the crate's root.
fn test_modules(module: &Module, tokens: &[TokenTree]) -> Vec<Module> {
    let mut found = Vec::new();
    if is_test_attribute(tokens, 0, true) {
        found.push(module.clone());
    }
    for i in 0..tokens.len() {
        let Some(end) = end_of_test_item(tokens, i) else { continue };
        if let Some(at) = (i..end).find(|at| word(tokens, *at).as_deref() == Some("mod")) {
            found.push(below(module, &word(tokens, at + 1).unwrap_or_default()));
        }
    }
    found
}

/// The end of the item after a `#[cfg(test)]` at `i` and its other attributes. None if there is no such attribute.
pub(super) fn end_of_test_item(tokens: &[TokenTree], i: usize) -> Option<usize> {
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
    if !is_punct(tokens, i, '#') || (inner && !is_punct(tokens, i + 1, '!')) {
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
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

/// Whether the token at `at` ends a `pub`, `pub(crate)` and the like.
fn is_visibility(tokens: &[TokenTree], at: usize) -> bool {
    let is_pub = |at: usize| word(tokens, at).as_deref() == Some("pub");
    is_pub(at) || (at > 0 && matches!(tokens[at], TokenTree::Group(_)) && is_pub(at - 1))
}

fn is_punct(tokens: &[TokenTree], at: usize, c: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == c)
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == ',')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(graph: Graph) -> Vec<String> {
        graph.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from}>{to}"))).collect()
    }

    fn imports(files: &[(&str, &str)]) -> Imports {
        let files: Vec<_> = files.iter().map(|(p, t)| (format!("crates/x/src/{p}"), (*t).to_owned())).collect();
        read(&files).expect("Rust")
    }

    fn modules(files: &[(&str, &str)]) -> Vec<String> {
        edges(imports(files).modules.remove("x").expect("the crate"))
    }

    fn files(files: &[(&str, &str)]) -> Vec<String> {
        edges(imports(files).files.remove("x").expect("the crate"))
    }

    #[test]
    fn paths_from_the_root_are_imports() {
        let lib =
            ("lib.rs", "//! See [`crate::b`].\nmod a; mod b; mod c; pub mod d; pub use c::{Deep, e::{Leaf as F}};");
        let leaf = |name| (name, "");
        let of_a = |text| modules(&[lib, ("a.rs", text), leaf("b.rs"), leaf("c.rs"), leaf("d.rs")]);
        assert_eq!(of_a("use crate::b::X;"), ["a>b"]);
        assert_eq!(of_a("use crate::{b::{Y, Z}, d::W};"), ["a>b", "a>d"]);
        assert_eq!(of_a("fn f() { vec![crate::d::g()]; }"), ["a>d"]);
        assert_eq!(of_a("use super::b::X; use super::super::c;"), ["a>b"]);
        assert_eq!(of_a("use super::b; fn f() { b::g(); }"), ["a>b"]);
        assert_eq!(of_a("use crate::{Deep, F};"), ["a>c"]);
        assert_eq!(of_a("use crate::a::inner; use std::b::X; const S: &str = \"crate::b\"; // crate::c"), [""; 0]);
        assert_eq!(of_a("#[arg(parser = crate::b::parse)] struct A;"), ["a>b"]);
        assert_eq!(of_a("mod inner { use super::super::d::X; use super::b; }"), ["a>d"]);
    }

    #[test]
    fn files_import_what_they_use_of_each_other() {
        let child =
            |text| [("lib.rs", "mod a;"), ("a/b.rs", ""), ("a/mod.rs", "mod b; mod c; struct X;"), ("a/c.rs", text)];
        assert_eq!(files(&child("use super::X;")), ["a/c>a"]);
        assert_eq!(files(&child("use super::b::Y;")), ["a/c>a/b"]);
        assert_eq!(files(&child("use super::{b, b::Y as Z, X}; fn f() { b::g(); }")), ["a/c>a", "a/c>a/b"]);
        assert_eq!(files(&child("use super::*;")), ["a/c>a"]);
        let parent = |text| files(&[("a/mod.rs", text), ("a/b.rs", "")]);
        assert_eq!(parent("mod b; pub use b::X; pub use b::*; impl Y for u8 {}"), [""; 0]);
        assert_eq!(parent("mod b; pub use b::b; fn f() { self.b() }"), [""; 0]);
        assert_eq!(parent("mod b; use b::X;"), ["a>a/b"]);
        assert_eq!(parent("mod b; fn f() { b::g(); }"), ["a>a/b"]);
        assert_eq!(parent("mod b; pub(crate) use self::b::{W, X}; fn f(_: X) {}"), ["a>a/b"]);
    }

    #[test]
    fn imports_are_followed_to_the_file_that_defines() {
        let a = ("a/mod.rs", "mod b; mod c; pub use b::X; use crate::d::Y; pub use c::*;");
        let of =
            |text| files(&[("lib.rs", ""), a, ("a/b.rs", ""), ("a/c.rs", "struct Z;"), ("d.rs", ""), ("e.rs", text)]);
        let expect = |to: &str| vec!["a>d".to_owned(), format!("e>{to}")];
        assert_eq!(of("use crate::a::X;"), expect("a/b"));
        assert_eq!(of("use crate::a::Y;"), expect("d"));
        assert_eq!(of("use crate::a::Z;"), expect("a/c"));
        assert_eq!(of("use crate::a; fn f() { a::X::g(); }"), expect("a/b"));
        assert_eq!(of("use crate::a::W;"), expect("a"));
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
