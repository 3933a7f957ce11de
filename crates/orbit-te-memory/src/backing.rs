//! A backing: a range of addresses, and the owner that keeps it valid. Rule: the range stays mapped until the owner is
//! dropped, and the owner is dropped only with the backing.

#![allow(unsafe_code)]

use crate::error::MemoryError;
use orbit_te_wire::MemoryKind;
use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Memory and what keeps it alive. Shared by all regions over it (`Arc<Backing>`).
pub struct Backing {
    base: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    may_vanish: bool,
    /// The file of which it is a mapping, from the first byte on; whoever has it can map the same pages.
    file: Option<OwnedFd>,
    /// Dropped last, and with it the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: a backing is an address, a length and an owner that is itself Send and Sync. The bytes behind the address are
// never reached through the backing as Rust references, only copied by `sys::copy_*` or handed to the kernel as raw
// pointers, so moving or sharing the address between threads reaches nothing.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    /// Host memory that somebody else allocated. `owner` is dropped when no region, slice or lease can reach the bytes
    /// any more; put there whatever keeps them allocated.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`].
    ///
    /// # Safety
    /// `base..base + len` must be one valid, readable allocation until `owner` is dropped, and writable too when a
    /// region over it gets rights by which it is written ([`orbit_te_wire::Access::LOCAL`],
    /// [`orbit_te_wire::Access::REMOTE_WRITE`]). While the backing lives, no Rust reference to these bytes
    /// may be used: peers and the kernel write them.
    pub unsafe fn external(
        base: NonNull<u8>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Backing, MemoryError> {
        // SAFETY: the caller's promise is the one that `external_kind` asks for.
        unsafe { Backing::external_kind(base, len, MemoryKind::Host, owner) }
    }

    /// Memory of any kind that somebody else allocated. For kinds other than host memory, `base` is an address of that
    /// kind's own space and is never dereferenced here.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`].
    ///
    /// # Safety
    /// As for [`Backing::external`], and the memory must be of this kind. In a kind's own space too, `base + len` must
    /// not wrap.
    pub unsafe fn external_kind(
        base: NonNull<u8>,
        len: usize,
        kind: MemoryKind,
        owner: impl Any + Send + Sync,
    ) -> Result<Backing, MemoryError> {
        if len == 0 {
            return Err(MemoryError::ZeroLength { what: "backing" });
        }
        Ok(Backing { base, len, kind, may_vanish: false, file: None, _owner: Box::new(owner) })
    }

    /// The bytes of a vector, which the backing takes over. Give [`crate::HostBuffer`] the preference for large ones.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`].
    pub fn from_vec(mut bytes: Vec<u8>) -> Result<Backing, MemoryError> {
        let len = bytes.len();
        let Some(base) = NonNull::new(bytes.as_mut_ptr()) else {
            return Err(MemoryError::ZeroLength { what: "backing" });
        };
        // SAFETY: the vector's allocation is valid for its length until the vector is dropped; it is moved into the
        // owner, which nobody can reach, so no reference to its bytes exists, and moving it does not move the bytes.
        unsafe { Backing::external(base, len, bytes) }
    }

    /// Says that the memory is a shared mapping of this file, from its first byte on: processes of this host that are given the file
    /// reach the same pages, as long as they like.
    ///
    /// # Safety
    /// It must be so, and stay so until the owner is dropped. The file is at least as long as the backing, and its length is sealed
    /// (`F_SEAL_SHRINK`): others touch these pages without asking again.
    pub unsafe fn shared_as(self, file: OwnedFd) -> Backing {
        Backing { file: Some(file), ..self }
    }

    /// The file by which other processes can map the same pages; none for memory that is this process's own.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The address of the first byte. To read or write through it is `unsafe` and needs a lease on a region over it.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the memory is.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Says that pages of this memory may become untouchable while it is mapped: a file that somebody cuts short. Transports then
    /// look before they promise a peer the bytes, which costs a system call a request; the peer gets a clear answer instead of a
    /// broken connection.
    pub fn that_may_vanish(self) -> Backing {
        Backing { may_vanish: true, ..self }
    }

    /// Whether pages of it may become untouchable.
    pub fn may_vanish(&self) -> bool {
        self.may_vanish
    }

    /// Whether the CPU can reach the bytes.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, MemoryKind::Host | MemoryKind::PinnedHost)
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing").field("len", &self.len).field("kind", &self.kind).finish_non_exhaustive()
    }
}
