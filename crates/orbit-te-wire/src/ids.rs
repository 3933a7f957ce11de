//! The identities that cross the wire. Rule: an identity is a random or counted number, never an address.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $int:ty, $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:0", $width, "x})"), self.0)
            }
        }
    };
}

hex_id!(
    /// A peer: a random number drawn when its engine starts. A restarted peer is a new peer.
    PeerId,
    u128,
    "32"
);
hex_id!(
    /// One life of a peer: a second random number, so that a peer whose id was configured is still told from its
    /// predecessor.
    Incarnation,
    u64,
    "16"
);
hex_id!(
    /// The secret by which a data lane proves that it belongs to a control link: the side that accepted the control
    /// link draws it and gives it in its answer.
    SessionId,
    u128,
    "32"
);

/// A region's number in the registry of the peer that owns it. Never reused in the life of that registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegionId(pub u64);

/// How often a region's exposure was renewed. A descriptor carries the generation it was made for; one that carries
/// an older generation is refused by the target before a byte moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
