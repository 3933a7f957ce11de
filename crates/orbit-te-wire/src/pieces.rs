//! The table of a list request: where each piece is in the region, and how long it is. Rule: a table proves itself as a whole,
//! in one pass and without memory of its own, before a byte of its payload moves.
//!
//! An entry is 16 bytes, little-endian: offset in the region (8), length (8).

use crate::frame::Status;

/// The bytes of one entry.
pub const PIECE_BYTES: usize = 16;

/// One entry of a table, as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Piece([u8; PIECE_BYTES]);

impl Piece {
    /// An entry of no bytes at offset zero.
    pub const EMPTY: Piece = Piece([0; PIECE_BYTES]);

    /// An entry with these values.
    pub fn new(offset: u64, length: u64) -> Piece {
        let mut bytes = [0; PIECE_BYTES];
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..].copy_from_slice(&length.to_le_bytes());
        Piece(bytes)
    }

    /// An entry from its bytes; every value is one.
    pub fn from_bytes(bytes: [u8; PIECE_BYTES]) -> Piece {
        Piece(bytes)
    }

    /// The entry's bytes.
    pub fn to_bytes(self) -> [u8; PIECE_BYTES] {
        self.0
    }

    /// Where it is in the region, in bytes from the base.
    pub fn offset(&self) -> u64 {
        self.word(0)
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.word(8)
    }

    fn word(&self, at: usize) -> u64 {
        let b = &self.0;
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
    }
}

/// What is wrong with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPiece {
    /// The first piece that is wrong; the count of pieces when only their sum is.
    pub index: u32,
    /// What is wrong: [`Status::BadLength`], [`Status::OutOfRange`] or [`Status::Overlap`].
    pub status: Status,
}

/// Checks a table against its region's size and the request's length. `ascending`: pieces may not overlap, and come in order of
/// their offsets, which is how one pass shows it; asked of writes, whose pieces are destinations.
///
/// # Errors
/// [`BadPiece`]: the first piece that is empty, reaches past the region's end, or begins before the end of the one before it; or
/// that the lengths do not add up to `length`.
pub fn check_pieces(
    table: &[Piece],
    region_bytes: u64,
    length: u64,
    ascending: bool,
) -> Result<(), BadPiece> {
    let mut sum = 0u64;
    let mut before = 0u64;
    for (index, piece) in table.iter().enumerate() {
        let bad = |status| Err(BadPiece { index: index as u32, status });
        if piece.length() == 0 {
            return bad(Status::BadLength);
        }
        let end = match piece.offset().checked_add(piece.length()) {
            Some(end) if end <= region_bytes => end,
            _ => return bad(Status::OutOfRange),
        };
        if ascending && piece.offset() < before {
            return bad(Status::Overlap);
        }
        before = end;
        sum = match sum.checked_add(piece.length()) {
            Some(sum) if sum <= length => sum,
            _ => return bad(Status::BadLength),
        };
    }
    if sum != length {
        return Err(BadPiece { index: table.len() as u32, status: Status::BadLength });
    }
    Ok(())
}
