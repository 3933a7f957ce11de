//! Owned host memory, mapped for transfers. Rule: until a buffer becomes a backing it is its owner's alone, so it may be
//! filled through ordinary slices; afterwards never again.

#![allow(unsafe_code)]

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::sys::{Mapping, shared_pages_may_be_huge};
use std::os::fd::OwnedFd;

/// The pages that a buffer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageSize {
    /// Whatever the system gives.
    #[default]
    Plain,
    /// Aligned to 2 MiB and advised to be backed by huge pages where the system can; never fails for want of them.
    Huge,
}

/// Whether other processes of this host may be given a buffer's pages, which is what makes copies between two processes as fast as
/// within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// A file in memory (memfd), where the system gives one; it costs a descriptor. Where huge pages were asked for and files in memory
    /// get none here, the huge pages win.
    #[default]
    WherePossible,
    /// The process's own memory.
    Never,
    /// A file in memory, or an error.
    Always,
}

/// How a buffer is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// The pages to ask for.
    pub pages: PageSize,
    /// How many threads touch every page before the buffer is given out; zero leaves the pages to be made at first
    /// use. One thread prefaults a few GiB a second; more help from about 1 GiB on.
    pub prefault_threads: usize,
    /// Whether processes of this host may be given its pages. Nobody is, before the memory is exposed.
    pub sharing: Sharing,
}

/// Owned, zeroed host memory.
#[derive(Debug)]
pub struct HostBuffer {
    mapping: Mapping,
    file: Option<OwnedFd>,
}

impl HostBuffer {
    /// `len` zeroed bytes of plain pages, made at first use.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::NoMemory`].
    pub fn new(len: usize) -> Result<HostBuffer, MemoryError> {
        HostBuffer::with_options(len, HostOptions::default())
    }

    /// `len` zeroed bytes made as `options` say. Blocks while pages are prefaulted.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::NoMemory`].
    pub fn with_options(len: usize, options: HostOptions) -> Result<HostBuffer, MemoryError> {
        if len == 0 {
            return Err(MemoryError::ZeroLength { what: "buffer" });
        }
        let no_memory = |source| MemoryError::NoMemory { length: len as u64, source };
        let huge = options.pages == PageSize::Huge;
        let shared = match options.sharing {
            Sharing::Never => None,
            Sharing::Always => Some(Mapping::shared(len, huge).map_err(no_memory)?),
            Sharing::WherePossible if huge && !shared_pages_may_be_huge() => None,
            // Descriptors may have run out, or files in memory be forbidden: the process's own memory serves as well.
            Sharing::WherePossible => Mapping::shared(len, huge).ok(),
        };
        let (mapping, file) = match shared {
            Some((mapping, file)) => (mapping, Some(file)),
            None => (Mapping::anonymous(len, huge).map_err(no_memory)?, None),
        };
        mapping.prefault(options.prefault_threads).map_err(no_memory)?;
        Ok(HostBuffer { mapping, file })
    }

    /// Whether other processes can be given its pages.
    pub fn is_shareable(&self) -> bool {
        self.file.is_some()
    }

    /// The bytes, while they are still the owner's alone.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable for its length while `self` lives; the buffer has not become a backing, since
        // that consumes it, so nobody else can reach the bytes, and `&self` keeps `as_mut_slice` away.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.mapping.len()) }
    }

    /// The bytes for filling, while they are still the owner's alone.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.mapping.len()) }
    }

    /// The length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The buffer as a backing: from here on its bytes are reached by copies only.
    pub fn into_backing(self) -> Backing {
        let base = self.mapping.base();
        let len = self.mapping.len();
        // SAFETY: the mapping is valid, readable and writable for `len` bytes until it is dropped, and it is moved into
        // the owner; consuming `self` ended every reference that the slice methods gave out.
        let backing = unsafe { Backing::external(base, len, self.mapping) };
        match backing {
            Ok(backing) => match self.file {
                // SAFETY: the file's length is sealed, and the mapping is of it from its first byte on.
                Some(file) => unsafe { backing.shared_as(file) },
                None => backing,
            },
            Err(_) => unreachable!("a buffer's length is never zero"),
        }
    }
}

impl From<HostBuffer> for Backing {
    fn from(buffer: HostBuffer) -> Backing {
        buffer.into_backing()
    }
}
