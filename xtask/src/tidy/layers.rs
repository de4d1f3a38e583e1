//! Checks that imports between modules and between files have no circle and do not cross products, and draws the layers of modules in ARCHITECTURE.md.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::allow::Allowed;
use super::imports::{Graph, Imports};

/// The file that holds the drawing.
pub const DRAWING: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- imports: drawn by `cargo xtask tidy --bless` -->\n";
const END: &str = "<!-- end of imports -->\n";

/// Crates that several products share, with those of their modules that belong to one product each.
const PRODUCTS: [(&str, &[&str]); 2] =
    [("core", &["judge", "observe", "relay", "sockets", "tunnel"]), ("bpf", &["diagnose", "relay", "sockets"])];

/// Groups of modules that may import each other, because they belong to the same product.
const SAME_PRODUCT: [[&str; 2]; 1] = [["judge", "observe"]];

/// Adds complaints about circles and about products that import each other.
pub fn check(imports: &Imports, allowed: &mut Allowed, complaints: &mut Vec<String>) {
    for (name, graph) in &imports.modules {
        let circles = circles(graph);
        let modules: usize = circles.iter().map(BTreeSet::len).sum();
        // An exception permits a number of modules to be part of circles.
        if modules > 0 && !allowed.permits(&format!("crates/{name}::circles"), modules) {
            for circle in circles {
                complaints.push(format!("crates/{name}: modules import each other in a circle: {}", list(&circle)));
            }
        }
    }
    for (name, graph) in &imports.files {
        for circle in circles(graph) {
            if !allowed.permits(&format!("crates/{name}/src/{}::circle", folder(&circle)), circle.len()) {
                complaints.push(format!("crates/{name}: files import each other in a circle: {}", list(&circle)));
            }
        }
    }
    for (name, products) in PRODUCTS {
        let Some(graph) = imports.modules.get(name) else { continue };
        let edges = graph.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())));
        let same = |from, to| SAME_PRODUCT.iter().any(|pair| pair.contains(&from) && pair.contains(&to));
        let wrong: Vec<_> =
            edges.filter(|(from, to)| products.contains(from) && products.contains(to) && !same(*from, *to)).collect();
        if !wrong.is_empty() && !allowed.permits(&format!("crates/{name}::products"), wrong.len()) {
            complaints.extend(
                wrong.iter().map(|(from, to)| format!("crates/{name}: the product {from} imports the product {to}")),
            );
        }
    }
}

/// The text of `file` with a new drawing of these imports. None if it has no markers for the drawing.
pub fn redrawn(file: &str, imports: &Imports) -> Option<String> {
    let (before, rest) = file.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", drawing(imports)))
}

/// Draws a line for each module with its imports, and one line for all modules without imports. Each layer imports only from
/// those below it.
fn drawing(imports: &Imports) -> String {
    let mut text = "```\ncrates\n".to_owned();
    draw(&imports.crates, &mut text);
    for (name, graph) in imports.modules.iter().filter(|(_, graph)| graph.values().any(|to| !to.is_empty())) {
        writeln!(text, "\ncrates/{name}").ok();
        draw(graph, &mut text);
    }
    text.push_str("```\n");
    text
}

fn draw(graph: &Graph, text: &mut String) {
    let importing = |name: &&String| !graph[*name].is_empty();
    let longest = graph.keys().filter(importing).map(String::len).max().unwrap_or(0);
    for (number, layer) in layers(graph).iter().enumerate().rev() {
        for name in layer.iter().filter(importing) {
            write_names(text, format!("  {number} {name:longest$} "), &graph[name]);
        }
        let lowest: BTreeSet<String> = layer.iter().filter(|name| !importing(name)).cloned().collect();
        if !lowest.is_empty() {
            write_names(text, format!("  {number}"), &lowest);
        }
    }
}

/// Writes names after `begin`, in as many lines as they need.
fn write_names(text: &mut String, begin: String, names: &BTreeSet<String>) {
    const WIDTH: usize = 118;
    let indent = begin.len();
    let mut line = begin;
    for name in names {
        if line.len() + 1 + name.len() > WIDTH {
            writeln!(text, "{line}").ok();
            line = " ".repeat(indent);
        }
        write!(line, " {name}").ok();
    }
    writeln!(text, "{line}").ok();
}

/// Names by layer, the lowest first. The layer of a name is the length of its longest chain of imports. All names of a circle
/// are in one layer.
fn layers(graph: &Graph) -> Vec<BTreeSet<String>> {
    let circles = circles(graph);
    let group = |name: &str| -> BTreeSet<String> {
        let circle = circles.iter().find(|circle| circle.contains(name));
        circle.cloned().unwrap_or_else(|| BTreeSet::from([name.to_owned()]))
    };
    let mut left: BTreeSet<String> = graph.keys().cloned().collect();
    let mut layers = Vec::new();
    while !left.is_empty() {
        let rests = |name: &String| {
            let group = group(name);
            group.iter().flat_map(|member| &graph[member]).all(|to| group.contains(to) || !left.contains(to))
        };
        let layer: BTreeSet<String> = left.iter().filter(|name| rests(name)).cloned().collect();
        left.retain(|name| !layer.contains(name));
        layers.push(layer);
    }
    layers
}

/// The sets of names that import each other, directly or not.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|name| (name, reached(graph, name))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (name, all) in &reached {
        if all.contains(*name) && !found.iter().any(|circle| circle.contains(*name)) {
            found.push(all.iter().filter(|other| reached[other].contains(*name)).cloned().collect());
        }
    }
    found
}

/// All names that a name imports, directly or not.
fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut todo: Vec<&String> = graph[from].iter().collect();
    while let Some(name) = todo.pop() {
        if reached.insert(name.clone()) {
            todo.extend(graph.get(name).into_iter().flatten());
        }
    }
    reached
}

/// The path that all of these files begin with.
fn folder(files: &BTreeSet<String>) -> String {
    let mut common: Option<Vec<&str>> = None;
    for file in files {
        let parts: Vec<&str> = file.split('/').collect();
        let before = common.unwrap_or_else(|| parts.clone());
        common = Some(before.iter().zip(&parts).take_while(|(a, b)| a == b).map(|(a, _)| *a).collect());
    }
    common.unwrap_or_default().join("/")
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::allow;
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        edges.iter().map(|(from, to)| ((*from).to_owned(), to.iter().map(|to| (*to).to_owned()).collect())).collect()
    }

    fn imports(name: &str, edges: &[(&str, &[&str])]) -> Imports {
        let mut imports = Imports::default();
        imports.modules.insert(name.to_owned(), graph(edges));
        imports
    }

    fn complaints(imports: &Imports, allow: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut allowed = allow::parse(allow, &mut complaints);
        check(imports, &mut allowed, &mut complaints);
        complaints
    }

    #[test]
    fn circles_are_complained_about_unless_they_are_listed() {
        let bad = imports("x", &[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[])]);
        assert_eq!(complaints(&bad, ""), ["crates/x: modules import each other in a circle: a, b, c"]);
        assert!(complaints(&bad, "crates/x::circles 3").is_empty());
        assert_eq!(complaints(&bad, "crates/x::circles 2").len(), 1);
        assert!(complaints(&imports("x", &[("a", &["b"]), ("b", &[])]), "").is_empty());
    }

    #[test]
    fn circles_of_files_are_complained_about_by_their_folder() {
        let mut bad = imports("x", &[]);
        bad.files.insert("x".to_owned(), graph(&[("a/b", &["a/c"]), ("a/c", &["a/b", "d"]), ("d", &[])]));
        assert_eq!(complaints(&bad, ""), ["crates/x: files import each other in a circle: a/b, a/c"]);
        assert!(complaints(&bad, "crates/x/src/a::circle 2").is_empty());
        assert_eq!(complaints(&bad, "crates/x/src/a::circle 1").len(), 1);
        assert_eq!(complaints(&bad, "crates/x/src/a/b::circle 2").len(), 1);
    }

    #[test]
    fn products_do_not_import_each_other() {
        let bad = imports("core", &[("relay", &["sockets", "words"]), ("sockets", &[]), ("words", &[])]);
        assert_eq!(complaints(&bad, ""), ["crates/core: the product relay imports the product sockets"]);
        let parts = [("observe", &["judge"][..]), ("judge", &[])];
        assert!(complaints(&imports("core", &parts), "").is_empty());
    }

    #[test]
    fn the_drawing_has_the_lowest_layer_last() {
        let some = imports("x", &[("a", &["b", "c"]), ("b", &["c"]), ("c", &[]), ("lone", &[])]);
        let file = format!("before\n{BEGIN}old\n{END}after\n");
        let drawn = redrawn(&file, &some).expect("it has a place");
        let lines = "crates/x\n  2 a  b c\n  1 b  c\n  0 c lone\n";
        assert_eq!(drawn, format!("before\n{BEGIN}```\ncrates\n\n{lines}```\n{END}after\n"));
        assert_eq!(redrawn(&drawn, &some).as_deref(), Some(drawn.as_str()));
        assert_eq!(redrawn("no place", &some), None);
    }
}
