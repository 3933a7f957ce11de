//! The side that answers, for lists: checks a table whole, and then moves its pieces. Rule: one bad piece refuses the list, its
//! number is told, and nothing has moved.

use crate::body::Body;
use crate::conn::Conn;
use crate::lane::{Answering, Landing};
use crate::net::Net;
use crate::sys;
use crate::target::verify;
use crate::transport::TcpTransport;
use orbit_te_memory::{Access, Lease};
use orbit_te_transport::Verify;
use orbit_te_wire::{BadPiece, Frame, FrameOp, Piece, Status, check_pieces};
use std::time::Instant;

impl<N: Net> TcpTransport<N> {
    /// Begins a list request whose table has come; the bytes that it moves.
    pub(crate) fn take_list(
        &mut self,
        frame: Frame,
        answering: &mut Answering,
        conn: &mut Conn<N::Stream>,
        now: Instant,
    ) -> u64 {
        let table = conn.take_table();
        let count = frame.pieces() as usize;
        let write = frame.op == FrameOp::WriteList;
        match self.admit_list(&frame, &table[..count], write, answering, now) {
            Ok(lease) => {
                let base = lease.region().as_ptr().as_ptr() as u64;
                let verify = verify(&frame, &lease);
                let body = Body::Theirs { table, count, base };
                if write {
                    conn.expect_body(body, frame.length, verify);
                    answering.landing =
                        Some(Landing { frame, status: Status::Ok, lease: Some(lease), piece: None });
                } else {
                    conn.push_pieces(
                        &frame.answer(FrameOp::ReadDone, Status::Ok),
                        body,
                        frame.length,
                        verify,
                        lease,
                    );
                }
                frame.length
            }
            Err(bad) => {
                conn.return_table(table);
                let (status, piece) = (bad.status, bad.index);
                if write && frame.length > 0 {
                    conn.discard_payload(frame.length + frame.trailer_bytes());
                    answering.landing = Some(Landing { frame, status, lease: None, piece: Some(piece) });
                } else {
                    let done = if write { FrameOp::WriteDone } else { FrameOp::ReadDone };
                    conn.push(&frame.answer(done, status).about_piece(piece), 0, 0, Verify::Off, None);
                }
                0
            }
        }
    }

    fn admit_list(
        &self,
        frame: &Frame,
        table: &[Piece],
        write: bool,
        answering: &Answering,
        now: Instant,
    ) -> Result<Lease, BadPiece> {
        let no_piece = |status| BadPiece { index: frame.pieces() as u32, status };
        if frame.length > answering.limits.payload_bytes {
            return Err(no_piece(Status::BadLength));
        }
        let Some(first) = table.first() else { return Err(no_piece(Status::BadLength)) };
        // The region, its key, generation and rights, by the first piece; a wrong range is the table's to tell.
        let request = Frame { offset: first.offset(), length: first.length(), ..*frame };
        let access = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let lease = self.admit(&request, access, answering, now).map_err(|error| match error.status() {
            status @ (Status::OutOfRange | Status::BadLength) => BadPiece { index: 0, status },
            status => no_piece(status),
        })?;
        check_pieces(table, lease.region().len(), frame.length, write)?;
        if !write && lease.region().backing().may_vanish() {
            let base = lease.region().as_ptr().as_ptr() as u64;
            let gone = |p: &Piece| {
                !sys::is_readable(base + p.offset()) || !sys::is_readable(base + p.offset() + p.length() - 1)
            };
            if let Some(index) = table.iter().position(gone) {
                return Err(BadPiece { index: index as u32, status: Status::MemoryFault });
            }
        }
        Ok(lease)
    }
}
