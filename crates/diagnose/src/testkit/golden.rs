//! Golden files.
use std::path::PathBuf;

/// Compares with a file of `tests/golden`. `BLESS=1 cargo test -p parshall-diagnose` rewrites it.
pub fn golden(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(want == got, "{name} differs; BLESS=1 rewrites it. Got:\n{got}");
}
