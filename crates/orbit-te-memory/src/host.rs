//! Owned host memory, mapped for transfers. Rule: until a buffer becomes a backing it is its owner's alone, so it may be
//! filled through ordinary slices; afterwards never again.

#![allow(unsafe_code)]

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::sys::Mapping;

/// The pages that a buffer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageSize {
    /// Whatever the system gives.
    #[default]
    Plain,
    /// Aligned to 2 MiB and advised to be backed by huge pages where the system can; never fails for want of them.
    Huge,
}

/// How a buffer is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// The pages to ask for.
    pub pages: PageSize,
    /// How many threads touch every page before the buffer is given out; zero leaves the pages to be made at first
    /// use. One thread prefaults a few GiB a second; more help from about 1 GiB on.
    pub prefault_threads: usize,
}

/// Owned, zeroed host memory.
#[derive(Debug)]
pub struct HostBuffer {
    mapping: Mapping,
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
        let mapping = Mapping::anonymous(len, options.pages == PageSize::Huge)
            .map_err(|source| MemoryError::NoMemory { length: len as u64, source })?;
        mapping
            .prefault(options.prefault_threads)
            .map_err(|source| MemoryError::NoMemory { length: len as u64, source })?;
        Ok(HostBuffer { mapping })
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
            Ok(backing) => backing,
            Err(_) => unreachable!("a buffer's length is never zero"),
        }
    }
}

impl From<HostBuffer> for Backing {
    fn from(buffer: HostBuffer) -> Backing {
        buffer.into_backing()
    }
}
