//! The kernel inside of a `bzImage`. An emulated processor takes seconds to unpack it, which the host does in one. Rule: the
//! payload is where the boot protocol's header says, and what comes out must be a program.

use anyhow::{Context, bail, ensure};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a compressed payload begins with, and what unpacks it from stdin to stdout.
const FORMATS: [(&[u8], &[&str]); 3] = [
    (b"\xfd7zXZ\0", &["xz", "-dc", "--single-stream"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dcq"]),
    (b"\x1f\x8b\x08", &["gzip", "-dcq"]),
];

/// The kernel as a program, which QEMU starts at once.
pub(super) fn vmlinux(image: &[u8], unpacker: impl Fn(&str) -> Command) -> anyhow::Result<Vec<u8>> {
    let payload = payload(image)?;
    let command = command_for(payload)?;
    // Some formats are followed by the unpacked length, which their tools take for damage: the output is what counts.
    let kernel = through(unpacker(command[0]).args(&command[1..]), payload)?;
    ensure!(kernel.starts_with(b"\x7fELF"), "what `{}` unpacked is no kernel", command[0]);
    Ok(kernel)
}

/// A kernel module, unpacked if its file is packed.
pub(super) fn module(path: &Path, unpacker: impl Fn(&str) -> Command) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    if bytes.starts_with(b"\x7fELF") {
        return Ok(bytes);
    }
    let command = command_for(&bytes)?;
    let module = through(unpacker(command[0]).args(&command[1..]), &bytes)?;
    ensure!(module.starts_with(b"\x7fELF"), "{} is no module", path.display());
    Ok(module)
}

/// The payload's place, from the header of the x86 boot protocol (2.08 and later).
fn payload(image: &[u8]) -> anyhow::Result<&[u8]> {
    let number = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "this is no bzImage");
    // The setup code: so many sectors and the boot sector; none stands for four.
    let sectors = image.get(0x1f1).map_or(4, |n| if *n == 0 { 4 } else { usize::from(*n) });
    let (offset, length) = number(0x248).zip(number(0x24c)).context("the header is cut short")?;
    let start = (sectors + 1) * 512 + offset;
    image.get(start..start + length).context("the payload is cut short")
}

fn command_for(packed: &[u8]) -> anyhow::Result<&'static [&'static str]> {
    let known = FORMATS.iter().find(|(magic, _)| packed.starts_with(magic));
    match known {
        Some((_, command)) => Ok(command),
        None => bail!("packed in a format that begins with {:02x?}", packed.get(..4).unwrap_or_default()),
    }
}

/// Sends bytes through a filter, and gives what it wrote, whatever its exit code.
fn through(filter: &mut Command, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    filter.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child =
        filter.spawn().with_context(|| format!("{:?} could not be started", filter.get_program()))?;
    let mut stdin = child.stdin.take().context("a filter without stdin")?;
    std::thread::scope(|scope| {
        // A filter that has enough closes the pipe.
        scope.spawn(move || stdin.write_all(bytes));
        Ok(child.wait_with_output()?.stdout)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::program;

    /// A `bzImage` with one sector of setup code and this payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0u8; 1024 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        let mut whole = image(b"payload");
        whole.extend_from_slice(b"behind it");
        assert_eq!(payload(&whole).unwrap(), b"payload");
        assert_eq!(payload(&whole[..whole.len() - 10]).unwrap_err().to_string(), "the payload is cut short");
        assert_eq!(payload(&[0; 2000]).unwrap_err().to_string(), "this is no bzImage");
        assert_eq!(payload(&whole[..0x24e]).unwrap_err().to_string(), "the header is cut short");
    }

    #[test]
    fn a_kernel_is_unpacked_with_its_length_behind_it() {
        let kernel = [&b"\x7fELF"[..], &[7; 100_000]].concat();
        let mut packed = through(program("gzip").arg("-c"), &kernel).unwrap();
        packed.extend_from_slice(&100_004u32.to_le_bytes());
        assert_eq!(vmlinux(&image(&packed), |name| program(name)).unwrap(), kernel);
    }

    #[test]
    fn what_is_no_kernel_is_told() {
        let packed = through(program("gzip").arg("-c"), b"text").unwrap();
        let told = |payload: &[u8]| vmlinux(&image(payload), |name| program(name)).unwrap_err().to_string();
        assert_eq!(told(&packed), "what `gzip` unpacked is no kernel");
        assert_eq!(told(b"BZh9"), "packed in a format that begins with [42, 5a, 68, 39]");
    }
}
