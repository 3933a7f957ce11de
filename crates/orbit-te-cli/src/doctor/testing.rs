//! Trees for tests.

use super::tree::Tree;
use tempfile::TempDir;

/// A tree of these files; gone with the folder.
pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, Tree) {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(path, text)| (*path, text.as_bytes())).collect();
    tree_of_bytes(&files)
}

/// The same with bytes that need be no text.
pub(crate) fn tree_of_bytes(files: &[(&str, &[u8])]) -> (TempDir, Tree) {
    let folder = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let tree = Tree::saved(folder.path()).unwrap();
    (folder, tree)
}
