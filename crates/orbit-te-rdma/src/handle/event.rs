//! Async events, as plain values. Rule: an event names what it is about by number, never by pointer, and is given back at once.

#![allow(unsafe_code)]

use ibverbs_sys::*;
use std::fmt;

/// Something that happened to a device, a port, a CQ, a QP or an SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncKind,
    /// To what.
    pub about: About,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum About {
    /// The device as a whole.
    Device,
    /// A port, by its number.
    Port(u8),
    /// A CQ, by [`super::Cq::cookie`].
    Cq(u64),
    /// A QP, by its number.
    Qp(u32),
    /// An SRQ, by [`super::Srq::cookie`].
    Srq(u64),
    /// Something else, of which there is none here: a work queue, or what an event is about that is not known.
    Other,
}

macro_rules! kinds {
    ($($variant:ident = $number:ident, $meaning:literal;)*) => {
        /// What happened (`enum ibv_event_type`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum AsyncKind {
            $(#[doc = $meaning] $variant,)*
            /// Another event, by its number.
            Unknown(u32),
        }

        impl AsyncKind {
            /// Of its number.
            pub const fn from_number(number: u32) -> AsyncKind {
                match number {
                    $($number => AsyncKind::$variant,)*
                    other => AsyncKind::Unknown(other),
                }
            }

            /// The number that verbs have for it.
            pub const fn number(self) -> u32 {
                match self {
                    $(AsyncKind::$variant => $number,)*
                    AsyncKind::Unknown(number) => number,
                }
            }

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(AsyncKind::$variant => $meaning,)*
                    AsyncKind::Unknown(_) => "an event that is not known here",
                }
            }
        }
    };
}

kinds! {
    CqError = IBV_EVENT_CQ_ERR, "the CQ overflowed or broke; its QPs are of no use";
    QpFatal = IBV_EVENT_QP_FATAL, "the QP broke, and is in the error state";
    QpRequestError = IBV_EVENT_QP_REQ_ERR, "the peer asked for what is not allowed; the QP is in the error state";
    QpAccessError = IBV_EVENT_QP_ACCESS_ERR, "the peer asked for memory that is not open to it; the QP is in the error state";
    CommunicationEstablished = IBV_EVENT_COMM_EST, "a packet came before the QP could send";
    SendQueueDrained = IBV_EVENT_SQ_DRAINED, "the send queue is drained";
    PathMigrated = IBV_EVENT_PATH_MIG, "the QP took its other path";
    PathMigrationFailed = IBV_EVENT_PATH_MIG_ERR, "the QP could not take its other path";
    DeviceFatal = IBV_EVENT_DEVICE_FATAL, "the device is broken or removed";
    PortActive = IBV_EVENT_PORT_ACTIVE, "the port carries traffic again";
    PortError = IBV_EVENT_PORT_ERR, "the port went down";
    LidChange = IBV_EVENT_LID_CHANGE, "the port has another LID";
    PkeyChange = IBV_EVENT_PKEY_CHANGE, "the port's P_Key table changed";
    SmChange = IBV_EVENT_SM_CHANGE, "the subnet has another manager";
    SrqError = IBV_EVENT_SRQ_ERR, "the SRQ broke";
    SrqLimit = IBV_EVENT_SRQ_LIMIT_REACHED, "the SRQ runs low";
    LastWqeReached = IBV_EVENT_QP_LAST_WQE_REACHED, "the QP takes no more receives from its SRQ";
    ClientReregister = IBV_EVENT_CLIENT_REREGISTER, "the subnet manager wants registrations again";
    GidChange = IBV_EVENT_GID_CHANGE, "the port's GID table changed";
    WqFatal = IBV_EVENT_WQ_FATAL, "a work queue broke";
}

impl fmt::Display for AsyncKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsyncKind::Unknown(number) => write!(f, "an event of number {number}, which is not known here"),
            known => f.write_str(known.meaning()),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.about {
            About::Device => write!(f, "device: ")?,
            About::Port(port) => write!(f, "port {port}: ")?,
            About::Cq(cookie) => write!(f, "CQ {cookie}: ")?,
            About::Qp(number) => write!(f, "QP {number}: ")?,
            About::Srq(cookie) => write!(f, "SRQ {cookie}: ")?,
            About::Other => {}
        }
        self.kind.fmt(f)
    }
}

impl AsyncEvent {
    /// Of an event that was not given back yet.
    ///
    /// # Safety
    /// The event came from `get_async_event`, and was not acknowledged: what it points to is still there.
    pub(super) unsafe fn from_raw(raw: &ibv_async_event) -> AsyncEvent {
        let kind = AsyncKind::from_number(raw.event_type);
        // SAFETY: which member of the union is valid follows from the type of the event, and its object is there until the event is
        // acknowledged, by the caller's promise.
        let about = unsafe {
            match raw.event_type {
                IBV_EVENT_CQ_ERR => About::Cq((*raw.element.cq).cq_context as u64),
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => About::Qp((*raw.element.qp).qp_num),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    About::Srq((*raw.element.srq).srq_context as u64)
                }
                IBV_EVENT_PORT_ACTIVE
                | IBV_EVENT_PORT_ERR
                | IBV_EVENT_LID_CHANGE
                | IBV_EVENT_PKEY_CHANGE
                | IBV_EVENT_SM_CHANGE
                | IBV_EVENT_CLIENT_REREGISTER
                | IBV_EVENT_GID_CHANGE => About::Port(raw.element.port_num as u8),
                IBV_EVENT_DEVICE_FATAL => About::Device,
                _ => About::Other,
            }
        };
        AsyncEvent { kind, about }
    }
}
