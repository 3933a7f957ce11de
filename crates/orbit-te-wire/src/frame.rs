//! The frames of a data lane: a header of 64 bytes, and behind some of them a payload. Rule: the layout is fixed, all
//! integers are little-endian, and a header proves itself by its own CRC32C before any field is believed.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 2 | magic, `0x544f` ("OT") |
//! | 2 | 1 | op |
//! | 3 | 1 | flags: bit 0 says that the payload has a trailer |
//! | 4 | 2 | status |
//! | 6 | 2 | zero |
//! | 8 | 8 | request id |
//! | 16 | 8 | region; of a notification its number |
//! | 24 | 8 | generation |
//! | 32 | 8 | region key; in the answer to a damaged write the sum of the bytes that came |
//! | 40 | 8 | offset in the region, bytes; in a list request the number of pieces; in a refused one's answer the first bad piece |
//! | 48 | 8 | length, bytes |
//! | 56 | 4 | in the answer to a damaged write the sum that its trailer has, otherwise zero |
//! | 60 | 4 | CRC32C of bytes 0 to 59 |
//!
//! A trailer is 4 bytes behind the payload, its CRC32C, so that the sum is made while the bytes go. In a read request the flag asks for
//! one in the answer.
//!
//! A request is answered by one frame of the same request id, in the order in which the requests of a lane were sent.

use crate::error::WireError;
use crate::ids::{Generation, RegionId};

/// The bytes of a frame's header.
pub const FRAME_BYTES: usize = 64;

const MAGIC: u16 = u16::from_le_bytes(*b"OT");
const TRAILER_FLAG: u8 = 1;
const KNOWN_FLAGS: u8 = TRAILER_FLAG;

/// The bytes of a trailer: the payload's CRC32C.
pub const TRAILER_BYTES: usize = 4;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameOp {
    /// Request: `length` payload bytes follow and go to `offset`.
    Write = 1,
    /// Answer to [`FrameOp::Write`]: the bytes are in place, or `status` says why not. No payload.
    WriteDone = 2,
    /// Request: send `length` bytes from `offset`. No payload.
    Read = 3,
    /// Answer to [`FrameOp::Read`]: with status 0, `length` payload bytes follow; otherwise none.
    ReadDone = 4,
    /// Request: close the lane whose number is in `region`, so that nothing of it can land any more. No payload.
    Fence = 5,
    /// Answer to [`FrameOp::Fence`]: that lane is closed and its last byte has landed or never will. No payload.
    FenceDone = 6,
    /// Request: a table of as many pieces as `offset` says follows, and then `length` payload bytes, which go to the pieces in
    /// turn. Answered by [`FrameOp::WriteDone`].
    WriteList = 7,
    /// Request: a table of as many pieces as `offset` says follows; send their bytes in turn, `length` in all. Answered by
    /// [`FrameOp::ReadDone`].
    ReadList = 8,
    /// Request: `length` payload bytes follow, a [`crate::notification`]. Its number, which rises within a session, is in `region`.
    Notify = 9,
    /// Answer to [`FrameOp::Notify`]: it stands in the receiver's queue, or `status` says why not. No payload.
    NotifyDone = 10,
}

impl FrameOp {
    fn from_byte(byte: u8) -> Result<FrameOp, WireError> {
        Ok(match byte {
            1 => FrameOp::Write,
            2 => FrameOp::WriteDone,
            3 => FrameOp::Read,
            4 => FrameOp::ReadDone,
            5 => FrameOp::Fence,
            6 => FrameOp::FenceDone,
            7 => FrameOp::WriteList,
            8 => FrameOp::ReadList,
            9 => FrameOp::Notify,
            10 => FrameOp::NotifyDone,
            other => return Err(WireError::Unknown { what: "frame op", value: u64::from(other) }),
        })
    }
}

/// How the target settled a request. The numbers are part of the protocol and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done as asked.
    Ok = 0,
    /// The target has no region of that number, or had it and withdrew it.
    UnknownRegion = 1,
    /// The region was renewed since the descriptor was made.
    StaleGeneration = 2,
    /// Offset and length reach past the region's end, or overflow.
    OutOfRange = 3,
    /// The region's access rights do not include this op.
    AccessDenied = 4,
    /// The region key is not the one that the target gave out.
    BadKey = 5,
    /// The length is zero, or over the agreed payload limit.
    BadLength = 6,
    /// The target is shutting down.
    ShuttingDown = 7,
    /// The target could not touch the region's memory (a served file that was cut short, a full disk).
    MemoryFault = 8,
    /// The payload does not carry its checksum.
    Checksum = 9,
    /// The grant under which the region key was given was revoked, or has expired.
    GrantEnded = 10,
    /// The receiver's queue of notifications is full.
    QueueFull = 11,
    /// Pieces of a list write overlap, or do not come in the order of their offsets.
    Overlap = 12,
    /// Nobody takes notifications at the receiver.
    NobodyListens = 13,
}

impl Status {
    /// The status of this number.
    ///
    /// # Errors
    /// [`WireError::Unknown`].
    pub fn from_u16(value: u16) -> Result<Status, WireError> {
        Ok(match value {
            0 => Status::Ok,
            1 => Status::UnknownRegion,
            2 => Status::StaleGeneration,
            3 => Status::OutOfRange,
            4 => Status::AccessDenied,
            5 => Status::BadKey,
            6 => Status::BadLength,
            7 => Status::ShuttingDown,
            8 => Status::MemoryFault,
            9 => Status::Checksum,
            10 => Status::GrantEnded,
            11 => Status::QueueFull,
            12 => Status::Overlap,
            13 => Status::NobodyListens,
            other => return Err(WireError::Unknown { what: "frame status", value: u64::from(other) }),
        })
    }
}

/// A frame's header as values. Small and `Copy`; encoding and decoding allocate nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What the frame is.
    pub op: FrameOp,
    /// How a request was settled; [`Status::Ok`] in requests.
    pub status: Status,
    /// The request's number, chosen by the side that asks.
    pub id: u64,
    /// The region, or a lane's number in fences.
    pub region: RegionId,
    /// The region's generation as the descriptor says it.
    pub generation: Generation,
    /// The region's key, from the descriptor.
    pub key: u64,
    /// Where in the region, in bytes from its base.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// In the answer to a damaged write the sum that its trailer has; otherwise zero.
    pub payload_crc: u32,
    /// Whether the payload has a trailer; in a read request, whether the answer's payload is to have one.
    pub trailer: bool,
}

impl Frame {
    /// An answer to `self` with this op and status: same id, region, offset and length.
    pub fn answer(&self, op: FrameOp, status: Status) -> Frame {
        let trailer = self.trailer && op == FrameOp::ReadDone && status == Status::Ok;
        Frame { op, status, payload_crc: 0, key: 0, trailer, ..*self }
    }

    /// The answer to `self`, a write whose bytes have the sum `found` where its trailer says `expected`.
    pub fn damaged(&self, expected: u32, found: u32) -> Frame {
        let answer = self.answer(FrameOp::WriteDone, Status::Checksum);
        Frame { key: u64::from(found), payload_crc: expected, ..answer }
    }

    /// The sums in the answer to a damaged write: the trailer's, and that of the bytes that came.
    pub fn sums(&self) -> Option<(u32, u32)> {
        let damaged = self.op == FrameOp::WriteDone && self.status == Status::Checksum;
        damaged.then_some((self.payload_crc, self.key as u32))
    }

    /// This answer to a list request, saying which piece is to blame: the count of pieces when no single one is.
    pub fn about_piece(self, index: u32) -> Frame {
        Frame { offset: u64::from(index), ..self }
    }

    /// How many payload bytes follow this header.
    pub fn payload_bytes(&self) -> u64 {
        match (self.op, self.status) {
            (FrameOp::Write | FrameOp::WriteList | FrameOp::Notify, _) | (FrameOp::ReadDone, Status::Ok) => {
                self.length
            }
            _ => 0,
        }
    }

    /// How many bytes of trailer follow the payload.
    pub fn trailer_bytes(&self) -> u64 {
        if self.trailer && self.payload_bytes() > 0 { TRAILER_BYTES as u64 } else { 0 }
    }

    /// How many pieces the table behind this header has; zero where there is none.
    pub fn pieces(&self) -> u64 {
        if matches!(self.op, FrameOp::WriteList | FrameOp::ReadList) { self.offset } else { 0 }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut b = [0u8; FRAME_BYTES];
        b[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        b[2] = self.op as u8;
        b[3] = if self.trailer { TRAILER_FLAG } else { 0 };
        b[4..6].copy_from_slice(&(self.status as u16).to_le_bytes());
        b[8..16].copy_from_slice(&self.id.to_le_bytes());
        b[16..24].copy_from_slice(&self.region.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.generation.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.key.to_le_bytes());
        b[40..48].copy_from_slice(&self.offset.to_le_bytes());
        b[48..56].copy_from_slice(&self.length.to_le_bytes());
        b[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&b[..60]);
        b[60..64].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// The values in a header. Refuses a foreign magic, a wrong checksum, unknown ops, flags and statuses, and a
    /// request that already carries a status.
    pub fn decode(b: &[u8; FRAME_BYTES]) -> Result<Frame, WireError> {
        let magic = u16::from_le_bytes([b[0], b[1]]);
        if magic != MAGIC {
            return Err(WireError::Unknown { what: "frame magic", value: u64::from(magic) });
        }
        let found = u32::from_le_bytes([b[60], b[61], b[62], b[63]]);
        let computed = crc32c::crc32c(&b[..60]);
        if found != computed {
            return Err(WireError::HeaderChecksum { found, computed });
        }
        let op = FrameOp::from_byte(b[2])?;
        if b[3] & !KNOWN_FLAGS != 0 {
            return Err(WireError::Unknown { what: "frame flags", value: u64::from(b[3]) });
        }
        let status = Status::from_u16(u16::from_le_bytes([b[4], b[5]]))?;
        if b[6] != 0 || b[7] != 0 {
            return Err(WireError::Invalid { what: "a frame's reserved bytes are not zero" });
        }
        let request = matches!(
            op,
            FrameOp::Write
                | FrameOp::Read
                | FrameOp::Fence
                | FrameOp::WriteList
                | FrameOp::ReadList
                | FrameOp::Notify
        );
        let trailer = b[3] & TRAILER_FLAG != 0;
        if trailer && !may_have_trailer(op, status) {
            return Err(WireError::Invalid { what: "a frame without a payload says that it has a trailer" });
        }
        if request && status != Status::Ok {
            return Err(WireError::Invalid { what: "a request carries a status" });
        }
        let word = |at: usize| {
            u64::from_le_bytes([
                b[at],
                b[at + 1],
                b[at + 2],
                b[at + 3],
                b[at + 4],
                b[at + 5],
                b[at + 6],
                b[at + 7],
            ])
        };
        Ok(Frame {
            op,
            status,
            id: word(8),
            region: RegionId(word(16)),
            generation: Generation(word(24)),
            key: word(32),
            offset: word(40),
            length: word(48),
            payload_crc: u32::from_le_bytes([b[56], b[57], b[58], b[59]]),
            trailer,
        })
    }
}

fn may_have_trailer(op: FrameOp, status: Status) -> bool {
    match op {
        FrameOp::Write | FrameOp::WriteList | FrameOp::Read | FrameOp::ReadList => true,
        FrameOp::ReadDone => status == Status::Ok,
        FrameOp::WriteDone | FrameOp::Fence | FrameOp::FenceDone | FrameOp::Notify | FrameOp::NotifyDone => {
            false
        }
    }
}
