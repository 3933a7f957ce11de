//! What the status of a completion means. Rule: a QP fails once, however many work requests it flushes: the flushed ones are a
//! consequence, and the failure is the first that is none.

use orbit_te_transport::{ErrorClass, OpErrorCode};
use std::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $kind:ident, $words:literal;)*) => {
        /// The status of a completion (`enum ibv_wc_status`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum WcStatus {
            $($(#[$doc])* $name,)*
            /// A number that is not known here.
            Unknown(u32),
        }

        impl WcStatus {
            /// All that are known.
            pub const ALL: &[WcStatus] = &[$(WcStatus::$name,)*];

            /// That of a number of verbs.
            pub fn from_number(number: u32) -> WcStatus {
                match number {
                    $($number => WcStatus::$name,)*
                    other => WcStatus::Unknown(other),
                }
            }

            /// The number that verbs have for it.
            pub fn number(self) -> u32 {
                match self {
                    $(WcStatus::$name => $number,)*
                    WcStatus::Unknown(number) => number,
                }
            }

            /// What it comes from.
            pub fn kind(self) -> Kind {
                match self {
                    $(WcStatus::$name => Kind::$kind,)*
                    WcStatus::Unknown(_) => Kind::Fatal,
                }
            }

            /// What happened, in words.
            pub fn words(self) -> &'static str {
                match self {
                    $(WcStatus::$name => $words,)*
                    WcStatus::Unknown(_) => "the device gave a status that is not known here",
                }
            }
        }
    };
}

/// What a status comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing is wrong.
    Success,
    /// This side asked for what its own memory or QP does not permit: a fault of this program, or memory that is gone.
    Local,
    /// The peer's device does not permit it: a key that is over, or memory that is gone.
    RemoteAccess,
    /// The peer's device could not carry it out.
    RemoteFault,
    /// The peer did not acknowledge, however often it was tried: the link is broken, or the peer gone.
    RetryExceeded,
    /// The peer posted no receive in time.
    NotReady,
    /// The QP had failed before: this is a consequence.
    Flushed,
    /// The device or its driver failed.
    Fatal,
}

statuses! {
    /// `IBV_WC_SUCCESS`
    Success = 0, Success, "done";
    /// `IBV_WC_LOC_LEN_ERR`
    LocalLength = 1, Local, "a message was longer than its receive, or than the port takes";
    /// `IBV_WC_LOC_QP_OP_ERR`
    LocalQueueOperation = 2, Local, "the QP could not carry out a request: its address is gone, or the request malformed";
    /// `IBV_WC_LOC_EEC_OP_ERR`
    LocalEecOperation = 3, Fatal, "an end-to-end context failed, which is not used here";
    /// `IBV_WC_LOC_PROT_ERR`
    LocalProtection = 4, Local, "the local memory's registration does not permit it";
    /// `IBV_WC_WR_FLUSH_ERR`
    Flushed = 5, Flushed, "flushed, since the QP had failed";
    /// `IBV_WC_MW_BIND_ERR`
    WindowBind = 6, Local, "a memory window could not be bound";
    /// `IBV_WC_BAD_RESP_ERR`
    BadResponse = 7, Fatal, "the peer's device gave an answer that makes no sense";
    /// `IBV_WC_LOC_ACCESS_ERR`
    LocalAccess = 8, Local, "the local memory's registration does not permit what the peer sent";
    /// `IBV_WC_REM_INV_REQ_ERR`
    RemoteInvalidRequest = 9, RemoteFault, "the peer's device does not take such a request, or a message was too long for it";
    /// `IBV_WC_REM_ACCESS_ERR`
    RemoteAccess = 10, RemoteAccess, "the peer's device does not permit it: the key is over";
    /// `IBV_WC_REM_OP_ERR`
    RemoteOperation = 11, RemoteFault, "the peer's device could not carry it out";
    /// `IBV_WC_RETRY_EXC_ERR`
    RetryExceeded = 12, RetryExceeded, "the peer did not acknowledge, however often it was tried";
    /// `IBV_WC_RNR_RETRY_EXC_ERR`
    RnrRetryExceeded = 13, NotReady, "the peer posted no receive in time";
    /// `IBV_WC_LOC_RDD_VIOL_ERR`
    LocalRdd = 14, Fatal, "a reliable datagram domain was violated, which is not used here";
    /// `IBV_WC_REM_INV_RD_REQ_ERR`
    RemoteInvalidRd = 15, Fatal, "the peer refused a reliable datagram, which is not used here";
    /// `IBV_WC_REM_ABORT_ERR`
    RemoteAbort = 16, RemoteFault, "the peer aborted it";
    /// `IBV_WC_INV_EECN_ERR`
    InvalidEecn = 17, Fatal, "an end-to-end context is invalid, which is not used here";
    /// `IBV_WC_INV_EEC_STATE_ERR`
    InvalidEecState = 18, Fatal, "an end-to-end context is in a wrong state, which is not used here";
    /// `IBV_WC_FATAL_ERR`
    Fatal = 19, Fatal, "the device failed";
    /// `IBV_WC_RESP_TIMEOUT_ERR`
    ResponseTimeout = 20, RetryExceeded, "the peer did not answer in time";
    /// `IBV_WC_GENERAL_ERR`
    General = 21, Fatal, "the device failed in a way that it does not name";
    /// `IBV_WC_TM_ERR`
    TagMatching = 22, Fatal, "tag matching failed, which is not used here";
    /// `IBV_WC_TM_RNDV_INCOMPLETE`
    TagRendezvous = 23, Fatal, "a rendezvous of tag matching did not end, which is not used here";
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.words(), self.number())
    }
}

impl WcStatus {
    /// What the op whose work request ended so is told; none for success. Its range and its rights were checked against what the peer
    /// had said before it was posted, so that a peer's device refuses only what has been withdrawn or revoked since: the descriptor is
    /// stale.
    ///
    /// An op whose QP broke is told [`OpErrorCode::LinkBroken`] only once its QP is destroyed.
    pub fn op_error(self) -> Option<OpErrorCode> {
        match self {
            WcStatus::LocalLength => Some(OpErrorCode::BadLength),
            WcStatus::RemoteInvalidRequest => Some(OpErrorCode::Protocol),
            // The address or route of the rail is gone: nothing of the op's own.
            WcStatus::LocalQueueOperation => Some(OpErrorCode::LinkBroken),
            _ => match self.kind() {
                Kind::Success => None,
                Kind::Local => Some(OpErrorCode::LocalMemoryFault),
                Kind::RemoteAccess => Some(OpErrorCode::StaleGeneration),
                Kind::RemoteFault => Some(OpErrorCode::RemoteMemoryFault),
                Kind::RetryExceeded | Kind::NotReady | Kind::Flushed | Kind::Fatal => {
                    Some(OpErrorCode::LinkBroken)
                }
            },
        }
    }

    /// What is broken by it: the op alone, the rail's connection, or the device. The QP is in error after each of them and is made anew;
    /// this says whether the op may be tried again there.
    pub fn class(self) -> ErrorClass {
        match self {
            WcStatus::LocalQueueOperation => ErrorClass::Link,
            _ => match self.kind() {
                Kind::Success | Kind::Local | Kind::RemoteAccess | Kind::RemoteFault => ErrorClass::Op,
                Kind::RetryExceeded | Kind::NotReady | Kind::Flushed => ErrorClass::Link,
                Kind::Fatal => ErrorClass::Device,
            },
        }
    }
}

/// What a QP's completions say of why it failed. `T` names a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootCause<T> {
    first: Option<(T, WcStatus)>,
    flushed: u32,
    others: u32,
}

/// Why a QP failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause<T> {
    /// By this work request.
    Request(T, WcStatus),
    /// All were flushed: by something that is not in the completions, such as a port that went down or a request of the peer.
    Elsewhere,
}

impl<T> Default for RootCause<T> {
    fn default() -> RootCause<T> {
        RootCause { first: None, flushed: 0, others: 0 }
    }
}

impl<T: Copy> RootCause<T> {
    /// Takes the next completion of the QP.
    pub fn note(&mut self, request: T, status: WcStatus) {
        match status.kind() {
            Kind::Success => {}
            Kind::Flushed => self.flushed = self.flushed.saturating_add(1),
            _ if self.first.is_some() => self.others = self.others.saturating_add(1),
            _ => self.first = Some((request, status)),
        }
    }

    /// The one failure behind all of them; none while there is none. A flushed completion may come before the one that caused it, so
    /// ask once all have come.
    pub fn cause(&self) -> Option<Cause<T>> {
        match self.first {
            Some((request, status)) => Some(Cause::Request(request, status)),
            None if self.flushed > 0 => Some(Cause::Elsewhere),
            None => None,
        }
    }

    /// How many completions are consequences: flushed, or failed after the first.
    pub fn consequences(&self) -> u32 {
        self.flushed.saturating_add(self.others)
    }
}
