//! The files that checks read, below a root folder. Rule: nothing outside of the root is read, nothing is read that is no regular
//! file, and what can't be read says why.

use crate::failure::Failure;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// No file that is read here is longer where it makes sense; a host of 1,024 CPUs describes them in 2 MiB.
const MOST_BYTES: u64 = 8 << 20;
/// As much of a file's words as a line of output shows.
const MOST_SHOWN: usize = 64;

/// A host's `/proc`, `/sys` and `/dev`, or a copy of them.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Miss {
    /// There is no such file.
    Absent,
    /// It is there, and can't be read or understood.
    Unreadable(String),
}

impl Tree {
    /// This host's.
    pub(crate) fn of_this_host() -> Tree {
        Tree { root: PathBuf::from("/") }
    }

    /// A copy of another host's.
    pub(crate) fn saved(root: &Path) -> Result<Tree, Failure> {
        let trouble = |e: &dyn std::fmt::Display| {
            Failure::local(format_args!("can't read the folder `{}`", root.display()), e)
        };
        let root = root.canonicalize().map_err(|e| trouble(&e))?;
        if !root.is_dir() {
            return Err(trouble(&"it is no folder"));
        }
        Ok(Tree { root })
    }

    /// Where a path is, links followed.
    fn find(&self, path: &str) -> Result<PathBuf, Miss> {
        let real = self.root.join(path).canonicalize().map_err(|e| miss(&e))?;
        match real.starts_with(&self.root) {
            true => Ok(real),
            false => Err(Miss::Unreadable("it is a link to outside of the saved tree".to_string())),
        }
    }

    /// A file's words, without white space around them; bytes that are no UTF-8 are replaced.
    pub(crate) fn text(&self, path: &str) -> Result<String, Miss> {
        let real = self.find(path)?;
        // Opening a pipe would wait for its writer.
        if !real.metadata().map_err(|e| miss(&e))?.is_file() {
            return Err(Miss::Unreadable("it is no regular file".to_string()));
        }
        let mut bytes = Vec::new();
        let file = File::open(real).map_err(|e| miss(&e))?;
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|e| miss(&e))?;
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        if text.is_empty() { Err(Miss::Unreadable("it is empty".to_string())) } else { Ok(text) }
    }

    /// A file that holds one number.
    pub(crate) fn number(&self, path: &str) -> Result<u64, Miss> {
        number(&self.text(path)?)
    }

    /// The names in a folder, sorted, numbers in them by their value.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, Miss> {
        let entries = std::fs::read_dir(self.find(path)?).map_err(|e| miss(&e))?;
        let names = entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<Result<Vec<String>, _>>().map_err(|e| miss(&e))?;
        names.sort_by_cached_key(|name| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            (stem.to_string(), name[stem.len()..].parse::<u64>().unwrap_or(0), name.clone())
        });
        Ok(names)
    }
}

fn miss(error: &std::io::Error) -> Miss {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Miss::Absent,
        ErrorKind::PermissionDenied => Miss::Unreadable("permission denied".to_string()),
        _ => Miss::Unreadable(error.to_string()),
    }
}

/// One number, or why it is none.
pub(crate) fn number(text: &str) -> Result<u64, Miss> {
    text.parse().map_err(|_| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let why = if digits { "is a number over 64 bits" } else { "is no number" };
        Miss::Unreadable(format!("`{}` {why}", shown(text)))
    })
}

/// A file's words as they may stand in a line: what does not print is escaped, and what is too long cut.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let escaped = match c {
            ' '..='~' => c.to_string(),
            _ => c.escape_default().to_string(),
        };
        if out.len() + escaped.len() > MOST_SHOWN {
            return out + "...";
        }
        out.push_str(&escaped);
    }
    out
}

/// A path, parts of which somebody chose.
pub(crate) fn shown_path(path: &str) -> String {
    path.split('/').map(shown).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{tree, tree_of_bytes};

    #[test]
    fn values_come_trimmed_and_misses_say_why() {
        let (_folder, tree) = tree_of_bytes(&[
            ("a/n", b" 17\n"),
            ("a/none", b"\n"),
            ("a/odd", b"\xff\x00seven"),
            ("a/huge", b"18446744073709551616"),
        ]);
        assert_eq!(tree.number("a/n"), Ok(17));
        assert_eq!(tree.number("a/m"), Err(Miss::Absent));
        assert_eq!(tree.number("a/n/m"), Err(Miss::Absent));
        let why = |path: &str| match tree.number(path) {
            Err(Miss::Unreadable(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("a/none"), "it is empty");
        assert_eq!(why("a/odd"), "`\\u{fffd}\\u{0}seven` is no number");
        assert_eq!(why("a/huge"), "`18446744073709551616` is a number over 64 bits");
        assert_eq!(why("a"), "it is no regular file");
    }

    #[test]
    fn names_are_sorted_by_their_numbers() {
        let (_folder, tree) = tree(&[("d/n10", ""), ("d/n2", ""), ("d/m", ""), ("d/n1", "")]);
        assert_eq!(tree.names("d").unwrap(), ["m", "n1", "n2", "n10"]);
        assert_eq!(tree.names("e"), Err(Miss::Absent));
    }

    #[test]
    fn nothing_outside_of_the_root_is_read() {
        let (folder, tree) = tree(&[("in/a", "1")]);
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("b"), "2").unwrap();
        std::os::unix::fs::symlink(outside.path().join("b"), folder.path().join("b")).unwrap();
        std::os::unix::fs::symlink("in/a", folder.path().join("c")).unwrap();
        assert_eq!(tree.number("c"), Ok(1));
        assert!(matches!(tree.number("b"), Err(Miss::Unreadable(why)) if why.contains("outside")));
        let up = format!("../{}/b", outside.path().file_name().unwrap().to_string_lossy());
        assert!(matches!(tree.number(&up), Err(Miss::Unreadable(why)) if why.contains("outside")));
    }

    #[test]
    fn a_pipe_does_not_hang() {
        let (folder, tree) = tree(&[]);
        nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(tree.text("pipe"), Err(Miss::Unreadable(_))));
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(shown(&"x".repeat(65)), format!("{}...", "x".repeat(64)));
        assert_eq!(shown_path("a/b\n/c"), "a/b\\n/c");
        assert_eq!(shown("a\tb"), "a\\tb");
    }
}
