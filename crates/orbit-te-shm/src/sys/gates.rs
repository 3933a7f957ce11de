//! Gates in memory that two processes share: each stands before one region, and says whether somebody is inside and whether it is
//! closed. Rule: who wants in counts himself first and looks then; who closes it looks at the count afterwards. So one of the two sees
//! the other.
//!
//! The owner of the memory makes the file. The peer may write anything into it: that opens no memory that it can't reach anyway, and only
//! decides when the owner believes it to be out.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each gate has a cache line of its own.
const GATE_BYTES: usize = 64;
const CLOSED: u64 = 1 << 63;
const COUNT: u64 = (1 << 32) - 1;

/// All gates of one connection.
#[derive(Debug)]
pub(crate) struct Gates {
    base: NonNull<AtomicU64>,
    count: u32,
    /// Kept by the side that made it, for the other.
    file: Option<OwnedFd>,
}

// SAFETY: a mapping belongs to the process, and all access to it is by atomics.
unsafe impl Send for Gates {}
// SAFETY: as above.
unsafe impl Sync for Gates {}

impl Gates {
    /// New ones, all open.
    pub(crate) fn new(count: u32) -> io::Result<Gates> {
        let file = memfd_create("orbit-te-gates", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, (count as usize * GATE_BYTES) as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let mut gates = Gates::map(file.as_fd(), count)?;
        gates.file = Some(file);
        Ok(gates)
    }

    /// Those of the other side. A file that could be cut short is refused: touching it would end this process.
    pub(crate) fn of_peer(file: &OwnedFd, count: u32) -> io::Result<Gates> {
        must_be_sealed(file, count as u64 * GATE_BYTES as u64)?;
        Gates::map(file.as_fd(), count)
    }

    fn map(file: BorrowedFd<'_>, count: u32) -> io::Result<Gates> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory; the length is not zero, or the call
        // fails.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count as usize * GATE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base) {
            Some(start) if base != libc::MAP_FAILED => Ok(Gates { base: start.cast(), count, file: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The file, for the other side.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// One of them.
    pub(crate) fn get(&self, gate: u32) -> Option<Gate<'_>> {
        if gate >= self.count {
            return None;
        }
        // SAFETY: the gate lies inside of the mapping, whose file is sealed against being cut short, and which lives as long as
        // `self`; a mapping is page-aligned, so the atomic is aligned.
        let state = unsafe { &*self.base.as_ptr().byte_add(gate as usize * GATE_BYTES) };
        Some(Gate { state })
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped nowhere else; references to it are borrowed from `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count as usize * GATE_BYTES) };
    }
}

/// Refuses a file that is shorter than this, or may become so.
pub(crate) fn must_be_sealed(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    let seals = fcntl(file, FcntlArg::F_GET_SEALS)?;
    if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file may be cut short: it is not sealed",
        ));
    }
    if (fstat(file)?.st_size as u64) < bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is shorter than was said"));
    }
    Ok(())
}

/// The gate of one way into a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gate<'a> {
    state: &'a AtomicU64,
}

impl Gate<'_> {
    /// Goes in, unless it is closed; memory may be touched until [`Gate::leave`].
    pub(crate) fn enter(self) -> bool {
        let open = self.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0;
        if !open {
            self.leave();
        }
        open
    }

    /// Goes out again; whether it was closed meanwhile.
    pub(crate) fn leave(self) -> bool {
        self.state.fetch_sub(1, Ordering::Release) & CLOSED != 0
    }

    /// Lets nobody in any more; whether nobody is inside. May be called again, to look.
    pub(crate) fn close(self) -> bool {
        self.state.fetch_or(CLOSED, Ordering::AcqRel) & COUNT == 0
    }

    /// Opens it for another region, which nobody has been told of yet.
    pub(crate) fn reset(self) {
        self.state.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn both_sides_see_one_gate() {
        let gates = Gates::new(3).unwrap();
        let file = gates.file().unwrap().try_clone_to_owned().unwrap();
        let other = Gates::of_peer(&file, 3).unwrap();
        let (mine, theirs) = (gates.get(2).unwrap(), other.get(2).unwrap());
        assert!(theirs.enter());
        assert!(!mine.close());
        assert!(!theirs.enter());
        assert!(theirs.leave(), "it was closed meanwhile");
        assert!(mine.close());
        mine.reset();
        assert!(theirs.enter() && !theirs.leave());
        assert!(gates.get(3).is_none());
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        let loose = memfd_create("loose", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert!(Gates::of_peer(&loose, 1).is_err());
        let gates = Gates::new(1).unwrap();
        let file = gates.file().unwrap().try_clone_to_owned().unwrap();
        assert!(Gates::of_peer(&file, 2).is_err(), "shorter than was said");
    }

    /// Whoever closed the gate and found it empty is alone.
    #[test]
    fn nobody_is_inside_of_a_gate_that_was_closed_and_empty() {
        for _ in 0..200 {
            let gates = Gates::new(1).unwrap();
            let alone = AtomicBool::new(false);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let gate = gates.get(0).unwrap();
                        while gate.enter() {
                            assert!(!alone.load(Ordering::Acquire));
                            gate.leave();
                        }
                    });
                }
                let gate = gates.get(0).unwrap();
                while !gate.close() {}
                alone.store(true, Ordering::Release);
            });
        }
    }
}
