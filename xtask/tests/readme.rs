//! The README's example is the one of the facade's own README, which its documentation tests compile and run.

#![allow(clippy::unwrap_used)]

use std::path::Path;

fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// What stands in the first block of Rust.
fn example(text: &str) -> Vec<&str> {
    text.lines().skip_while(|line| *line != "```rust").skip(1).take_while(|line| *line != "```").collect()
}

#[test]
fn both_readmes_have_one_example() {
    let (root, facade) = (text("README.md"), text("crates/orbit-te/README.md"));
    assert!(!example(&facade).is_empty(), "crates/orbit-te/README.md has no example");
    assert_eq!(
        example(&root),
        example(&facade),
        "README.md and crates/orbit-te/README.md differ in their example"
    );
}
