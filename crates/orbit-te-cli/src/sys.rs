//! Served files as memory. Rule: the only unsafe code of this crate; a mapping lives as long as anybody can reach its bytes.

#![allow(unsafe_code)]

use crate::failure::Failure;
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use orbit_te::Backing;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapped and locked file. Its bytes are the file's (`MAP_SHARED`).
pub(crate) struct MappedFile {
    map: MmapRaw,
    lock: Flock<File>,
    writable: bool,
}

impl MappedFile {
    /// Maps an existing file. A writable one gets all its blocks first, so that a full disk shows here and not when a peer writes;
    /// it is locked against other writers and readers, a read-only one against writers.
    pub(crate) fn open(path: &Path, writable: bool) -> Result<MappedFile, Failure> {
        let shown = path.display();
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(|e| Failure::local(format_args!("can't open `{shown}`"), e))?;
        let about = file.metadata().map_err(|e| Failure::local(format_args!("`{shown}`"), e))?;
        if !about.is_file() {
            return Err(Failure::Local(format!("`{shown}` is no regular file, so it can't be served")));
        }
        if about.len() == 0 {
            return Err(Failure::Local(format!(
                "`{shown}` is empty, and a segment has at least one byte; give it its size first (truncate -s SIZE)"
            )));
        }
        let kind = if writable { FlockArg::LockExclusiveNonblock } else { FlockArg::LockSharedNonblock };
        let lock = Flock::lock(file, kind).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => Failure::Local(format!(
                "`{shown}` is locked by another process that serves it; stop that one, or serve with --read-only at both"
            )),
            errno => Failure::local(format_args!("can't lock `{shown}`"), errno),
        })?;
        if writable {
            allocate(&lock, about.len())
                .map_err(|e| Failure::local(format_args!("can't get disk blocks for `{shown}`"), e))?;
        }
        let mapped = match writable {
            true => MmapOptions::new().map_raw(&*lock),
            false => MmapOptions::new().map_raw_read_only(&*lock),
        };
        let map = mapped.map_err(|e| Failure::local(format_args!("can't map `{shown}`"), e))?;
        Ok(MappedFile { map, lock, writable })
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Writes what peers wrote to the disk, as far as the disk's own cache goes.
    pub(crate) fn flush(&self) -> std::io::Result<()> {
        if self.writable {
            self.map.flush()?;
            self.lock.sync_all()?;
        }
        Ok(())
    }

    /// The file as memory to register: with rights to write only if it was opened so, and never with `Access::LOCAL`.
    pub(crate) fn backing(self: &Arc<Self>) -> Result<Backing, Failure> {
        let base = NonNull::new(self.map.as_mut_ptr())
            .ok_or_else(|| Failure::Local("the file was mapped at address zero".to_string()))?;
        // SAFETY: the mapping covers `len` bytes from `base` until `self` is dropped, and the backing owns a share of `self`.
        // It is readable, and writable when peers get the right to write (`serve` derives both from one flag). `MmapRaw` gives
        // pointers only and nothing here makes a reference of them. Should somebody cut the file short, its pages are still
        // mapped: the kernel answers EFAULT for them to the system calls by which peers' requests are served, and without
        // `Access::LOCAL` no code of ours touches them.
        let backing = unsafe { Backing::external(base, self.map.len(), self.clone()) };
        Ok(backing?.that_may_vanish())
    }
}

/// Gives a file all its blocks, where the file system knows how.
pub(crate) fn allocate(file: &File, length: u64) -> nix::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    let length = i64::try_from(length).map_err(|_| Errno::EFBIG)?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(Errno::EINTR) => {}
            // Then a full disk shows later, and no worse than without asking.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(()),
            result => return result,
        }
    }
}
