//! What a CQE says. Rule: of a failed one only the token, the QP, the status and the vendor's code are read; everything else exists
//! on success only, and only for the operations for which verbs define it.

use crate::status::WcStatus;
use ibverbs_sys::{ibv_wc, ibv_wc_opcode};

/// A place that `ibv_poll_cq` fills.
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct Wc(ibv_wc);

/// What a CQE says of its WR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The WR's `wr_id`.
    pub token: u64,
    /// The number of the local QP.
    pub qp_num: u32,
    /// How it ended.
    pub result: Result<Done, Failed>,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// A SEND.
    Send,
    /// A WRITE, with or without immediate data.
    Write,
    /// A READ.
    Read {
        /// Bytes that came.
        bytes: u32,
    },
    /// A memory window was bound.
    Bind,
    /// A key was invalidated.
    Invalidate,
    /// A receive took a SEND.
    Receive {
        /// Bytes that came.
        bytes: u32,
        /// Immediate data, in the byte order of this machine.
        imm: Option<u32>,
    },
    /// A receive was used up by a WRITE with immediate data.
    ReceiveWrite {
        /// Bytes that were written; where is for the writer to say.
        bytes: u32,
        /// The immediate data, in the byte order of this machine.
        imm: u32,
    },
    /// Another operation, by its number.
    Other(u32),
}

/// How a WR failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// The status.
    pub status: WcStatus,
    /// The vendor's code, for logs.
    pub vendor_err: u32,
}

impl Wc {
    /// The WR's `wr_id`.
    #[inline]
    pub fn token(&self) -> u64 {
        self.0.wr_id()
    }

    /// The number of the local QP.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// Whether the WR succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.is_valid()
    }

    /// All that may be read.
    #[inline]
    pub fn completion(&self) -> Completion {
        let result = match self.0.error() {
            None => Ok(self.done()),
            Some((status, vendor_err)) => Err(Failed { status: WcStatus::from_number(status), vendor_err }),
        };
        Completion { token: self.token(), qp_num: self.qp_num(), result }
    }

    fn done(&self) -> Done {
        let bytes = self.0.len() as u32;
        // The word is as it was on the wire: big-endian.
        let imm = self.0.imm_data().map(u32::from_be);
        match (self.0.opcode(), imm) {
            (ibv_wc_opcode::IBV_WC_SEND, _) => Done::Send,
            (ibv_wc_opcode::IBV_WC_RDMA_WRITE, _) => Done::Write,
            (ibv_wc_opcode::IBV_WC_RDMA_READ, _) => Done::Read { bytes },
            (ibv_wc_opcode::IBV_WC_BIND_MW, _) => Done::Bind,
            (ibv_wc_opcode::IBV_WC_LOCAL_INV, _) => Done::Invalidate,
            (ibv_wc_opcode::IBV_WC_RECV, imm) => Done::Receive { bytes, imm },
            (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, Some(imm)) => Done::ReceiveWrite { bytes, imm },
            (other, _) => Done::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_not_filled_is_no_success() {
        assert!(!Wc::default().is_success());
        assert!(Wc::default().completion().result.is_err());
    }
}
