//! A guest as a process of QEMU's. Rule: nothing of it outlives us, whatever ends us: what it reads and writes are files without a
//! name, its cables are sockets without a name, and it is killed with the thread that started it.

use super::kernel::Kernel;
use super::kit::Kit;
use super::transcript::{Event, Transcript};
use anyhow::Context;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// For the kernel: emulated processors have no faults to be careful about, and no clock to be distrusted.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=1 nokaslr mitigations=off tsc=reliable no_timer_check raid=noautodetect \
                                cryptomgr.notests";

/// What a machine has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hardware {
    pub(super) processors: u32,
    pub(super) memory_mib: u32,
    pub(super) mtu: u32,
}

impl Hardware {
    /// What does well for Soft-RoCE: with one processor a wait lasts until the next tick, and RDMA's MTU is 4096.
    pub(super) const USUAL: Hardware = Hardware { processors: 2, memory_mib: 1024, mtu: 4200 };
}

/// One end of a cable between two guests.
pub(super) struct Plug {
    socket: OwnedFd,
    mac: String,
}

/// A cable. The last digit of the addresses of its two ends tells the guests which one it is.
pub(super) fn cable(digit: u8) -> anyhow::Result<[Plug; 2]> {
    // Without SOCK_CLOEXEC: QEMU inherits them.
    let (a, b) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty())?;
    let plug = |socket, end| Plug { socket, mac: format!("52:54:00:0{end}:00:0{digit}") };
    Ok([plug(a, 1), plug(b, 2)])
}

/// A guest that runs.
pub(super) struct Machine {
    qemu: Child,
    /// QEMU opens it by our descriptor, some time after it was started.
    _image: File,
    stream: File,
    /// How much of the stream has been read.
    read: u64,
    transcript: Transcript,
    files: File,
    console: File,
    words: File,
}

impl Machine {
    /// Starts a guest with its files, which are archives one behind the other.
    pub(super) fn start(
        kit: &Kit,
        kernel: &Kernel,
        hardware: Hardware,
        archives: &[&[u8]],
        plugs: &[Plug],
    ) -> anyhow::Result<Machine> {
        let mut image = memory_file("image")?;
        archives.iter().try_for_each(|archive| image.write_all(archive))?;
        let (stream, files) = (memory_file("stream")?, memory_file("files")?);
        let (console, words) = (memory_file("console")?, memory_file("words")?);
        let Hardware { processors, memory_mib, mtu } = hardware;
        let mut qemu = kit.qemu()?;
        // Never KVM: what a guest does is to depend on no host's kernel.
        qemu.args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-display",
            "none",
            "-no-reboot",
            "-nodefaults",
        ]);
        qemu.args(["-smp", &processors.to_string(), "-m", &memory_mib.to_string()]);
        qemu.arg("-kernel").arg(kernel.vmlinux()).args(["-append", KERNEL_ARGUMENTS]);
        qemu.arg("-initrd").arg(path_of(&image));
        qemu.arg("-serial").arg(format!("file:{}", path_of(&console).display()));
        qemu.args(["-device", "virtio-serial-pci"]);
        for (number, name, file) in [(1, "stream", &stream), (2, "files", &files)] {
            qemu.arg("-chardev").arg(format!("file,id={name},path={}", path_of(file).display()));
            qemu.args(["-device", &format!("virtserialport,nr={number},chardev={name}")]);
        }
        for (number, Plug { socket, mac }) in plugs.iter().enumerate() {
            let socket = socket.as_raw_fd();
            qemu.args(["-netdev", &format!("stream,id=n{number},server=off,addr.type=fd,addr.str={socket}")]);
            let device = format!("virtio-net-pci,netdev=n{number},mac={mac},host_mtu={mtu},romfile=");
            qemu.args(["-device", &device]);
        }
        qemu.stdout(Stdio::from(words.try_clone()?)).stderr(Stdio::from(words.try_clone()?));
        let qemu = qemu.spawn().context("QEMU could not be started (`setpriv` is of util-linux)")?;
        let transcript = Transcript::default();
        Ok(Machine { qemu, _image: image, stream, read: 0, transcript, files, console, words })
    }

    /// What the guest has said since the last time.
    pub(super) fn events(&mut self) -> std::io::Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = self.stream.read_at(&mut piece, self.read)?;
            if length == 0 {
                return Ok(events);
            }
            self.read += length as u64;
            events.extend(self.transcript.feed(&piece[..length]));
        }
    }

    /// Whether it has switched itself off, or QEMU has ended in another way.
    pub(super) fn has_ended(&mut self) -> std::io::Result<bool> {
        Ok(self.qemu.try_wait()?.is_some())
    }

    /// The archive of the files that it left, as `tar` reads it; empty when it came to no end.
    pub(super) fn files(&self) -> std::io::Result<File> {
        File::open(path_of(&self.files))
    }

    /// All that was on its console.
    pub(super) fn console(&self) -> std::io::Result<String> {
        text_of(&self.console)
    }

    /// What QEMU itself said.
    pub(super) fn words(&self) -> std::io::Result<String> {
        text_of(&self.words)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // One that has ended can't be killed, and need not be.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A file that lies in memory only.
fn memory_file(name: &str) -> anyhow::Result<File> {
    let file =
        memfd_create(CString::new(name)?.as_c_str(), MFdFlags::MFD_CLOEXEC).context("a file in memory")?;
    Ok(File::from(file))
}

/// The path by which other processes of ours open a file without a name.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

fn text_of(file: &File) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path_of(file))?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_name_are_opened_by_their_paths() {
        let mut file = memory_file("x").unwrap();
        file.write_all(b"text").unwrap();
        assert_eq!(text_of(&file).unwrap(), "text");
    }
}
