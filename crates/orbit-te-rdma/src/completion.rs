//! What a CQE says. Rule: of a failed one only the token, the QP, the status and the vendor's code are read; everything else exists
//! on success only, and only for the operations for which verbs define it.

use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::fmt;

/// A place that `ibv_poll_cq` fills.
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct Wc(ibv_wc);

/// What a CQE says of its WR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The WR's `wr_id`: see [`crate::WrToken`].
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

macro_rules! statuses {
    ($($variant:ident = $number:ident, $name:literal, $meaning:literal;)*) => {
        /// Why a WR failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum WcStatus {
            $(#[doc = $meaning] $variant,)*
            /// Another one, by its number.
            Other(u32),
        }

        impl WcStatus {
            /// Of its number.
            pub const fn from_number(number: u32) -> WcStatus {
                match number {
                    $(ibv_wc_status::$number => WcStatus::$variant,)*
                    other => WcStatus::Other(other),
                }
            }

            /// Its number.
            pub const fn number(self) -> u32 {
                match self {
                    $(WcStatus::$variant => ibv_wc_status::$number,)*
                    WcStatus::Other(number) => number,
                }
            }

            /// Its name in verbs, without the prefix.
            pub const fn name(self) -> &'static str {
                match self {
                    $(WcStatus::$variant => $name,)*
                    WcStatus::Other(_) => "another status",
                }
            }

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(WcStatus::$variant => $meaning,)*
                    WcStatus::Other(_) => "not one that is known here",
                }
            }
        }
    };
}

statuses! {
    LocLen = IBV_WC_LOC_LEN_ERR, "LOC_LEN_ERR", "the message is too long for the local side";
    LocQpOp = IBV_WC_LOC_QP_OP_ERR, "LOC_QP_OP_ERR", "the local QP can't do this";
    LocProt = IBV_WC_LOC_PROT_ERR, "LOC_PROT_ERR", "local memory is not registered for this";
    WrFlush = IBV_WC_WR_FLUSH_ERR, "WR_FLUSH_ERR", "given up because the QP went into the error state";
    MwBind = IBV_WC_MW_BIND_ERR, "MW_BIND_ERR", "the memory window can't be bound";
    BadResp = IBV_WC_BAD_RESP_ERR, "BAD_RESP_ERR", "the peer's answer makes no sense";
    LocAccess = IBV_WC_LOC_ACCESS_ERR, "LOC_ACCESS_ERR", "the peer wrote where it may not";
    RemInvReq = IBV_WC_REM_INV_REQ_ERR, "REM_INV_REQ_ERR", "the peer's QP does not take this";
    RemAccess = IBV_WC_REM_ACCESS_ERR, "REM_ACCESS_ERR", "the peer's memory is not open for this, or not any more";
    RemOp = IBV_WC_REM_OP_ERR, "REM_OP_ERR", "the peer's QP failed";
    RetryExc = IBV_WC_RETRY_EXC_ERR, "RETRY_EXC_ERR", "the peer does not answer";
    RnrRetryExc = IBV_WC_RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR", "the peer has no receive posted";
    RemAbort = IBV_WC_REM_ABORT_ERR, "REM_ABORT_ERR", "the peer gave up";
    Fatal = IBV_WC_FATAL_ERR, "FATAL_ERR", "the device failed";
    RespTimeout = IBV_WC_RESP_TIMEOUT_ERR, "RESP_TIMEOUT_ERR", "the answer did not come in time";
    General = IBV_WC_GENERAL_ERR, "GENERAL_ERR", "an error without a name";
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WcStatus::Other(number) => write!(f, "status {number}"),
            known => write!(f, "{} ({})", known.name(), known.meaning()),
        }
    }
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
    fn every_status_comes_back_from_its_number() {
        for number in 1..=30 {
            assert_eq!(WcStatus::from_number(number).number(), number);
        }
        assert_eq!(WcStatus::from_number(12), WcStatus::RetryExc);
        assert!(WcStatus::RetryExc.to_string().starts_with("RETRY_EXC_ERR"));
    }

    #[test]
    fn a_place_that_was_not_filled_is_no_success() {
        assert!(!Wc::default().is_success());
        assert!(Wc::default().completion().result.is_err());
    }
}
