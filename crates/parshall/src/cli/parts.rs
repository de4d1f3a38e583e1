//! Which products this binary was built without.
use std::sync::LazyLock;

const PRODUCTS: [(&str, bool); 4] = [
    ("relay", cfg!(feature = "relay")),
    ("sockets", cfg!(feature = "sockets")),
    ("tunnel", cfg!(feature = "tunnel")),
    ("lab", cfg!(feature = "lab")),
];

/// The names of the products that are left out.
pub fn left_out() -> Vec<&'static str> {
    PRODUCTS.iter().filter(|(_, built)| !built).map(|(name, _)| *name).collect()
}

/// The version, with what is left out.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| described(&left_out()));
    &VERSION
}

fn described(left_out: &[&str]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if left_out.is_empty() { version.to_owned() } else { format!("{version} (without {})", left_out.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::described;

    #[test]
    fn the_version_says_what_is_left_out() {
        assert_eq!(described(&[]), env!("CARGO_PKG_VERSION"));
        assert!(described(&["relay", "tunnel"]).ends_with(" (without relay, tunnel)"));
    }
}
