//! Why a connection over RDMA is closed or refused, and why keys are. Rule: a code's number is never used for anything else; a number
//! that is not known here is kept, so that a newer peer's reason reaches the log.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$code_doc:meta])* $code:ident = $number:literal, $words:literal, $remedy:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "u16", into = "u16")]
        pub enum $name {
            $($(#[$code_doc])* $code,)*
            /// A number that this version does not know, from 1000 on or between the others; made by decoding alone.
            Other(u16),
        }

        impl $name {
            /// All that have a name.
            pub const ALL: &[$name] = &[$($name::$code,)*];

            /// The number, which never changes.
            pub fn number(self) -> u16 {
                match self {
                    $($name::$code => $number,)*
                    $name::Other(number) => number,
                }
            }

            /// What is the case.
            pub fn words(self) -> &'static str {
                match self {
                    $($name::$code => $words,)*
                    $name::Other(_) => "for a reason that this version does not know",
                }
            }

            /// What can be done about it.
            pub fn remedy(self) -> &'static str {
                match self {
                    $($name::$code => $remedy,)*
                    $name::Other(_) => "update the older side",
                }
            }
        }

        impl From<u16> for $name {
            fn from(number: u16) -> $name {
                match number {
                    $($number => $name::$code,)*
                    other => $name::Other(other),
                }
            }
        }

        impl From<$name> for u16 {
            fn from(code: $name) -> u16 {
                code.number()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $name::Other(number) => write!(f, "{} ({number}); {}", self.words(), self.remedy()),
                    code => write!(f, "{}; {}", code.words(), code.remedy()),
                }
            }
        }
    };
}

codes! {
    /// Why a connection is closed, or not made.
    CloseCode {
        /// Its side wants it no longer.
        Unwanted = 1, "the connection is no longer wanted", "nothing need be done";
        /// Its side shuts down.
        ShuttingDown = 2, "the side shuts down", "connect again once it has started";
        /// What it belongs to is gone: a former attempt or a former life.
        Gone = 3, "the attempt it belongs to is over", "nothing need be done: a new attempt follows";
        /// The other side did not answer in time.
        TimedOut = 4, "the other side did not answer in time", "look whether its process is alive and its control link is up";
        /// The control link was lost.
        LinkLost = 5, "the control link was lost", "nothing need be done: a new attempt follows once it is back";
        /// A QP of it failed.
        QueueFailed = 6, "a QP of the connection failed", "look at the first failed work request; a new attempt follows";
        /// No pair of rails can meet.
        NoCommonRail = 7, "no rail of one side can reach one of the other", "look at the refused pairs: port state, subnet, GIDs and the device filters of both sides";
        /// No pair of GIDs can meet.
        NoCommonGid = 8, "no GID of one side can reach one of the other", "give both sides' interfaces addresses of one family, or name the GID index";
        /// Something agreed on does not fit.
        Mismatch = 9, "what both sides are set up for does not fit", "set MTU, P_Key and link layer alike on both sides";
        /// A device has no room for it.
        NoRoom = 10, "a device has no room for more QPs or memory", "close connections, or make the QP arrays narrower";
        /// The system or device refused a step.
        DeviceRefused = 11, "the device refused a step of the connection", "see the log of that side for the step and its error number";
        /// A message broke the protocol.
        Protocol = 12, "a message broke the protocol", "report it, with the versions of both sides";
        /// Another version is spoken.
        Version = 13, "the sides speak different versions", "update the older side";
        /// Its rail went down.
        RailDown = 14, "the rail went down", "look at the port and its cable; the rail is tried again once the port is active";
        /// Its rail's addresses changed.
        AddressChanged = 15, "the addresses of the rail changed", "nothing need be done: a new attempt follows";
        /// An attempt with precedence took its place.
        Superseded = 16, "an attempt of the other side took its place", "nothing need be done";
    }
}

impl CloseCode {
    /// Whether another attempt may soon go well. After the others it is tried too, but with the longest pause.
    pub fn may_pass(self) -> bool {
        match self {
            CloseCode::Gone
            | CloseCode::TimedOut
            | CloseCode::LinkLost
            | CloseCode::QueueFailed
            | CloseCode::AddressChanged
            | CloseCode::Superseded
            | CloseCode::RailDown
            | CloseCode::DeviceRefused => true,
            CloseCode::Unwanted
            | CloseCode::ShuttingDown
            | CloseCode::NoCommonRail
            | CloseCode::NoCommonGid
            | CloseCode::Mismatch
            | CloseCode::NoRoom
            | CloseCode::Protocol
            | CloseCode::Version
            | CloseCode::Other(_) => false,
        }
    }
}

codes! {
    /// Why keys are refused.
    KeyRefusal {
        /// There is no such region.
        UnknownRegion = 1, "there is no such region, or it was withdrawn", "open the segment again";
        /// The descriptor is of another generation.
        StaleGeneration = 2, "the descriptor is stale", "open the segment again";
        /// The key is wrong.
        BadKey = 3, "the region key is wrong", "open the segment again";
        /// The grant has ended.
        GrantEnded = 4, "the grant was revoked or has expired", "open the segment again";
        /// Peers may not touch it.
        AccessDenied = 5, "the region's rights do not include peers", "expose it with remote rights";
        /// It is registered on none of the rails.
        NotRegistered = 6, "the region is not registered with a device", "see the log of its owner";
        /// The owner's devices have no room.
        NoRoom = 7, "the device has no room for more keys", "end grants, or raise the device's limit";
        /// The owner shuts down.
        ShuttingDown = 8, "its owner shuts down", "connect again once it has started";
        /// Too many requests wait.
        Busy = 9, "too many requests for keys wait", "ask again later";
    }
}
