//! One frame that waits to be sent, and the ranges in which it is offered to the kernel. Rule: a payload is summed behind the kernel's
//! copy of it, while the peer takes that; its last bytes, and short ones whole, are summed before they are offered, in one call with
//! the trailer.

use crate::body::{Body, Cursor};
use crate::checksum::Sum;
use crate::net::IoRange;
use orbit_te_memory::Lease;
use orbit_te_wire::{FRAME_BYTES, TRAILER_BYTES};
use std::io;
use std::ops::RangeInclusive;

/// Bytes in one system call, so that one lane does not hold the worker for long.
pub(crate) const MAX_CALL_BYTES: usize = 1024 * 1024;
/// A rest of so many bytes goes along: a header before a payload of just that size would otherwise cost a call for its last bytes.
const REST_BYTES: u64 = 4 * 1024;
/// The last bytes of a verified payload, which go with its trailer: so few that the peer hardly waits for their sum.
const LAST_BYTES: u64 = 16 * 1024;
/// A verified payload of no more is offered whole, so that frames behind it can be in the same call.
const WHOLE_BYTES: u64 = 64 * 1024;
/// Payloads that fit into one packet of the loopback interface, or nearly, and are large enough to be halved.
const HALVED_BYTES: RangeInclusive<u64> = 32 * 1024..=64 * 1024;

pub(crate) struct Outgoing {
    pub(crate) header: [u8; FRAME_BYTES],
    pub(crate) id: u64,
    /// The table between header and payload: its address and its bytes.
    pub(crate) table: (u64, u64),
    pub(crate) body: Body,
    pub(crate) length: u64,
    /// The payload's sum, where a trailer follows it.
    pub(crate) sum: Option<Sum>,
    pub(crate) trailer: [u8; TRAILER_BYTES],
    /// Keeps the payload's region until the kernel has taken the bytes; the initiating side's ops have their own.
    pub(crate) lease: Option<Lease>,
}

impl Outgoing {
    pub(crate) fn bytes(&self) -> u64 {
        self.ahead() + self.length + self.trailer_bytes()
    }

    /// The bytes before the payload.
    pub(crate) fn ahead(&self) -> u64 {
        FRAME_BYTES as u64 + self.table.1
    }

    fn trailer_bytes(&self) -> u64 {
        if self.sum.is_some() { TRAILER_BYTES as u64 } else { 0 }
    }

    /// Whether it needs many ranges.
    pub(crate) fn is_list(&self) -> bool {
        !matches!(self.body, Body::One(_))
    }

    /// How many bytes its first call may have where nothing else is under way. What fits into one packet of the loopback interface reaches the peer when
    /// all of it was copied: in two halves, the peer takes the first while the second is copied.
    pub(crate) fn first_call_bytes(&self) -> usize {
        if HALVED_BYTES.contains(&self.length) { self.bytes() as usize / 2 } else { MAX_CALL_BYTES }
    }

    /// The kernel has taken its first `sent` bytes.
    pub(crate) fn sum_sent(&mut self, sent: u64) -> io::Result<()> {
        let payload = sent.saturating_sub(self.ahead()).min(self.length);
        self.sum.as_mut().map_or(Ok(()), |sum| sum.cover(&self.body, self.length, payload))
    }

    /// Adds the ranges that follow its first `skip` bytes, whose payload ends at `at`: how many ranges, how many bytes, and whether
    /// that is all of it. `ranges` has room for at least four.
    pub(crate) fn offer(
        &mut self,
        skip: u64,
        at: Cursor,
        ranges: &mut [IoRange],
        most: usize,
    ) -> io::Result<(usize, usize, bool)> {
        let (mut used, mut offered) = (0, 0);
        let mut add = |range: IoRange, used: &mut usize| {
            *used += 1;
            ranges[*used - 1] = range;
            range.len()
        };
        let head = FRAME_BYTES as u64;
        if skip < head {
            offered += add(IoRange::bytes(&self.header[skip as usize..]), &mut used);
        }
        let (table, table_bytes) = self.table;
        let table_skip = skip.saturating_sub(head).min(table_bytes);
        if table_skip < table_bytes {
            offered += add(IoRange::new(table + table_skip, (table_bytes - table_skip) as usize), &mut used);
        }
        let behind = skip.saturating_sub(self.ahead()).min(self.length);
        let left = self.length - behind;
        if left > 0 {
            let parted = self.sum.is_some() && self.length > WHOLE_BYTES && left > LAST_BYTES;
            let kept = if parted { LAST_BYTES } else { 0 };
            let most = if left - kept <= most as u64 + REST_BYTES { (left - kept) as usize } else { most };
            let room = ranges.len() - usize::from(self.sum.is_some());
            let (count, bytes) = at.ranges(&self.body, self.length, &mut ranges[used..room], most);
            used += count;
            offered += bytes;
            if (bytes as u64) < left {
                return Ok((used, offered, false));
            }
        }
        if let Some(sum) = &mut self.sum {
            sum.cover(&self.body, self.length, self.length)?;
            self.trailer = sum.trailer();
            let skip = skip.saturating_sub(self.ahead() + self.length) as usize;
            ranges[used] = IoRange::bytes(&self.trailer[skip..]);
            offered += ranges[used].len();
            used += 1;
        }
        Ok((used, offered, true))
    }
}
