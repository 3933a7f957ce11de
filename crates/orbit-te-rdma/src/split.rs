//! An op, cut into work requests. Rule: every byte of the op is in exactly one of them, in the op's order, none is empty, and none is
//! over a limit; nothing is allocated, however many pieces there are.
//!
//! What is contiguous at the peer travels together: pieces that follow each other there become one work request with several
//! scatter-gather entries (SGEs), in both directions. A work request never crosses from one registration of the peer's into the next,
//! and an entry never crosses one of ours.

use orbit_te_wire::Piece;
use thiserror::Error;

/// The most entries of a work request that are ever used, whatever the device has.
pub const MAX_SGES: usize = 16;

/// Bounds of work requests; the same for all lanes of the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitLimits {
    /// The most bytes of a work request that the QP takes.
    pub message_bytes: u32,
    /// How many bytes a work request is to have where the op is long enough.
    pub slice_bytes: u32,
    /// The least bytes for which a lane more is used.
    pub least_bytes: u32,
    /// The MTU: slices of a contiguous run are whole packets, except its last.
    pub mtu_bytes: u32,
    /// The most entries of a work request; more than [`MAX_SGES`] are not used.
    pub sges: u8,
    /// How many lanes (QPs, over all rails) take part.
    pub lanes: u16,
}

/// Why an op can't be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadSplit {
    /// A limit is zero.
    #[error("a limit of work requests is zero")]
    NoLimit,
    /// The op is empty, or one of its pieces is.
    #[error("piece {0} has no bytes")]
    Empty(usize),
    /// The lists differ in length.
    #[error("there are {0} pieces here and {1} at the peer")]
    Lengths(usize, usize),
    /// Addresses overflow.
    #[error("piece {0} reaches past the end of all addresses")]
    Overflow(usize),
}

/// Memory that is registered in parts of one size, the last of which may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Where the first begins.
    pub base: u64,
    /// How many bytes each has; zero: there is one part only.
    pub part_bytes: u64,
}

impl Parts {
    /// One registration for all.
    pub const WHOLE: Parts = Parts { base: 0, part_bytes: 0 };

    /// Which part an address is in, and how many bytes from it to the part's end. An address before the base is in the first.
    fn at(&self, address: u64) -> (u32, u64) {
        if self.part_bytes == 0 {
            return (0, u64::MAX - address);
        }
        let offset = address.saturating_sub(self.base);
        let part = u32::try_from(offset / self.part_bytes).unwrap_or(u32::MAX);
        (part, self.part_bytes - offset % self.part_bytes)
    }
}

/// Where an op's bytes are.
#[derive(Debug, Clone, Copy)]
pub enum Layout<'a> {
    /// In one run.
    Run {
        /// The address here.
        local: u64,
        /// The place at the peer, in bytes from its region's begin.
        remote: u64,
        /// How many bytes.
        length: u64,
    },
    /// In pieces.
    Pieces {
        /// The address of each here.
        local: &'a [u64],
        /// The place of each at the peer, in bytes from its region's begin, and its length.
        remote: &'a [Piece],
    },
}

impl Layout<'_> {
    fn count(&self) -> usize {
        match self {
            Layout::Run { .. } => 1,
            Layout::Pieces { local, .. } => local.len(),
        }
    }

    /// Local address, remote offset and length of a piece.
    fn piece(&self, index: usize) -> Option<(u64, u64, u64)> {
        match self {
            Layout::Run { local, remote, length } => (index == 0).then_some((*local, *remote, *length)),
            Layout::Pieces { local, remote } => {
                let piece = remote.get(index)?;
                Some((*local.get(index)?, piece.offset(), piece.length()))
            }
        }
    }
}

/// One entry: bytes here, in one registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The address.
    pub address: u64,
    /// How many bytes; never zero.
    pub length: u32,
    /// Which of our registrations ([`Parts`]).
    pub part: u32,
}

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Where at the peer, in bytes from its region's begin.
    pub remote: u64,
    /// Which of the peer's registrations.
    pub remote_part: u32,
    /// How many bytes: those of all entries.
    pub length: u32,
    /// The first piece that has bytes in it.
    pub first_piece: u32,
    /// Which of the lanes it is for.
    pub lane: u16,
    count: u8,
    entries: [Entry; MAX_SGES],
}

impl Slice {
    /// An empty one, to be filled by [`Split::next_into`].
    pub const EMPTY: Slice = Slice {
        remote: 0,
        remote_part: 0,
        length: 0,
        first_piece: 0,
        lane: 0,
        count: 0,
        entries: [Entry { address: 0, length: 0, part: 0 }; MAX_SGES],
    };

    /// Where the bytes are here, in their order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.count)]
    }
}

/// The work requests of an op, one after the other.
#[derive(Debug, Clone)]
pub struct Split<'a> {
    layout: Layout<'a>,
    local: Parts,
    remote: Parts,
    /// The most bytes of a work request of this op, whole packets where that is not less than one.
    most: u64,
    mtu: u64,
    sges: usize,
    lanes: u16,
    lane: u16,
    piece: usize,
    /// Bytes of the piece that were handed out.
    done: u64,
    /// Bytes of the whole op that are left.
    left: u64,
}

impl<'a> Split<'a> {
    /// Cuts an op. `local` and `remote` say how the memory is registered at both sides; the remote base is counted as the remote places
    /// are, so it is usually zero. `first_lane`: the lane of the first work request; the following ones go round.
    ///
    /// # Errors
    /// [`BadSplit`].
    pub fn new(
        layout: Layout<'a>,
        (local, remote): (Parts, Parts),
        limits: &SplitLimits,
        first_lane: u16,
    ) -> Result<Split<'a>, BadSplit> {
        let SplitLimits { message_bytes, slice_bytes, least_bytes, mtu_bytes, sges, lanes } = *limits;
        if [message_bytes, slice_bytes, mtu_bytes, u32::from(sges), u32::from(lanes)].contains(&0) {
            return Err(BadSplit::NoLimit);
        }
        if let Layout::Pieces { local, remote } = layout {
            if local.len() != remote.len() {
                return Err(BadSplit::Lengths(local.len(), remote.len()));
            }
        }
        let length = check(&layout)?;
        // As many lanes as the op has work for, each with its part of it at once.
        let worth = (length / u64::from(least_bytes.max(1))).clamp(1, u64::from(lanes));
        let fair = length.div_ceil(worth).next_multiple_of(u64::from(mtu_bytes));
        let most = fair.min(slice_bytes.into()).min(message_bytes.into());
        let mtu = u64::from(mtu_bytes);
        let most = if most >= mtu { most - most % mtu } else { most };
        Ok(Split {
            layout,
            local,
            remote,
            most,
            mtu,
            sges: usize::from(sges).min(MAX_SGES),
            lanes,
            lane: first_lane % lanes,
            piece: 0,
            done: 0,
            left: length,
        })
    }

    /// Bytes that are not handed out yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Fills in the next work request; false, and `slice` is as it was, when there is none left.
    pub fn next_into(&mut self, slice: &mut Slice) -> bool {
        let Some((_, remote, _)) = self.layout.piece(self.piece) else { return false };
        let begin = remote + self.done;
        let (remote_part, room) = self.remote.at(begin);
        let most = self.most.min(room);
        slice.remote = begin;
        slice.remote_part = remote_part;
        slice.first_piece = self.piece as u32;
        slice.lane = self.lane;
        let mut count = 0;
        let mut length = 0u64;
        while length < most {
            let Some((local, remote, bytes)) = self.layout.piece(self.piece) else { break };
            if remote + self.done != begin + length {
                break;
            }
            let address = local + self.done;
            let (part, in_part) = self.local.at(address);
            let wanted = bytes - self.done;
            let mut take = wanted.min(in_part).min(most - length);
            if take < wanted && take < in_part && most < room {
                // A cut within a piece: whole packets, if that leaves any byte.
                let beyond = (length + take) % self.mtu;
                if beyond < take {
                    take -= beyond;
                }
            }
            let joins = count > 0 && {
                let last: &Entry = &slice.entries[count - 1];
                last.part == part && last.address + u64::from(last.length) == address
            };
            if joins {
                slice.entries[count - 1].length += take as u32;
            } else if count < self.sges {
                slice.entries[count] = Entry { address, length: take as u32, part };
                count += 1;
            } else {
                break;
            }
            length += take;
            self.done += take;
            if self.done == bytes {
                self.piece += 1;
                self.done = 0;
            } else if take < in_part {
                break;
            }
        }
        slice.count = count as u8;
        slice.length = length as u32;
        self.left -= length;
        self.lane = if self.lane + 1 == self.lanes { 0 } else { self.lane + 1 };
        true
    }
}

impl Iterator for Split<'_> {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        let mut slice = Slice::EMPTY;
        self.next_into(&mut slice).then_some(slice)
    }
}

/// The length of all pieces together, once each is known to be good.
fn check(layout: &Layout<'_>) -> Result<u64, BadSplit> {
    if layout.count() == 0 {
        return Err(BadSplit::Empty(0));
    }
    let mut sum = 0u64;
    for index in 0..layout.count() {
        let Some((local, remote, length)) = layout.piece(index) else { return Err(BadSplit::Empty(index)) };
        if length == 0 {
            return Err(BadSplit::Empty(index));
        }
        let ends = local.checked_add(length).is_some() && remote.checked_add(length).is_some();
        sum = match sum.checked_add(length) {
            Some(sum) if ends => sum,
            _ => return Err(BadSplit::Overflow(index)),
        };
    }
    Ok(sum)
}
