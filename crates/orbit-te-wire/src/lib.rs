//! OrbitTE's wire protocol: bytes to values and back.
//!
//! This crate owns every byte that two OrbitTE processes exchange over a stream socket: the hello that opens a
//! connection ([`hello`]), the fixed frames of a data lane ([`frame`], [`pieces`], [`notification`]), the messages of the control link
//! ([`control`]), those of two processes on one host ([`same_host`]), those of two sides with RDMA devices ([`rdma`]) and the descriptors by which memory is named ([`descriptor`], [`token`]). It does no input or
//! output, reads no clock and holds no `unsafe`; the same bytes always give the same values. `docs/protocol.md`
//! describes the protocol byte by byte, and the golden vectors in `tests/golden.rs` hold it still.
//!
//! Every decoder takes bytes from somebody who may be hostile: it answers with a value or a [`WireError`], never
//! panics, and never allocates more than the bounds in [`limits`].

#![forbid(unsafe_code)]

pub mod codec;
pub mod control;
pub mod descriptor;
pub mod error;
pub mod frame;
pub mod hello;
pub mod ids;
pub mod limits;
pub mod negotiate;
pub mod notification;
pub mod pieces;
pub mod rdma;
pub mod same_host;
pub mod token;

pub use control::{Control, RefusalCode};
pub use descriptor::{Access, MemoryKind, RegionDescriptor, TransportAddress, TransportKey};
pub use error::WireError;
pub use frame::{FRAME_BYTES, Frame, FrameOp, Status, TRAILER_BYTES};
pub use hello::{AuthSlot, Features, Hello, HelloReply, Role};
pub use ids::{Generation, Incarnation, PeerId, RegionId, SessionId};
pub use limits::Limits;
pub use pieces::{BadPiece, PIECE_BYTES, Piece, check_pieces};
pub use token::SegmentToken;
