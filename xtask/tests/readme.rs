//! The README's example is the one that the facade's documentation tests run.

#![allow(clippy::unwrap_used)]

use std::path::Path;

fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// What stands between the first line that is `open` and the next one that is the end of a block.
fn block(text: &str, open: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != open).skip(1);
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_readme_and_the_documentation_have_one_example() {
    let library = text("crates/orbit-te/src/lib.rs");
    let docs = library.lines().map_while(|line| line.strip_prefix("//!"));
    let docs: String = docs.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
    let (readme, docs) = (block(&text("README.md"), "```rust"), block(&docs, "```"));
    assert!(!docs.is_empty());
    assert_eq!(readme, docs, "README.md and crates/orbit-te/src/lib.rs differ in their example");
}
