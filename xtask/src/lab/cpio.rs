//! The archive in which a kernel takes its first files: cpio, format "newc". Rule: the same entries make the same bytes, and
//! archives can be put one behind the other.

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Files as they will lie in the guest. Paths are absolute; the folders above a path come by themselves.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    paths: BTreeSet<String>,
}

impl Archive {
    /// An empty folder, or one that is filled later.
    pub(super) fn folder(&mut self, path: &str) {
        if !path.is_empty() && !self.has(path) {
            self.parent(path);
            self.entry(path, FOLDER, b"");
        }
    }

    /// Whether there is something at a path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// A file that everybody may run. A later one in the same place takes its place.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.parent(path);
        self.entry(path, PROGRAM, content);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }

    fn parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let name = path.trim_start_matches('/');
        self.paths.insert(path.to_string());
        self.entries += 1;
        let number = self.entries;
        let (links, length, name_length) = (1 + u32::from(mode == FOLDER), content.len(), name.len() + 1);
        // Magic, inode, mode, user, group, links, time, length, two devices of two numbers each, length of the name, checksum.
        let header = format!(
            "070701{number:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{length:08x}\
             {0:08x}{0:08x}{0:08x}{0:08x}{name_length:08x}{0:08x}",
            0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_its_place() {
        let mut archive = Archive::default();
        archive.file("/a/b", b"hello");
        let bytes = archive.finish();
        let expected = "\
            07070100000001000041ed00000000000000000000000200000000000000000000000000000000\
            00000000000000000000000200000000a\0\
            07070100000002000081ed00000000000000000000000100000000000000050000000000000000\
            00000000000000000000000400000000a/b\0\0\0\
            hello\0\0\0\
            07070100000003000000000000000000000000000000010000000000000000000000000000000\
            000000000000000000000000b00000000TRAILER!!!\0\0\0\0";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn folders_come_once_and_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.folder("/x/y");
        archive.file("/x/y/z", b"1");
        archive.file("/x/l", b"2");
        let text = String::from_utf8(archive.finish()).unwrap();
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("00x") < at("00x/y") && at("00x/y") < at("00x/y/z") && at("00x/y/z") < at("00x/l"));
        assert_eq!(text.matches("00x/y\0").count(), 1);
        assert_eq!(text.len() % 4, 0, "another archive can follow");
    }
}
