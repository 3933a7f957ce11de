//! What two sides with RDMA devices say to each other on the control link: what they have, which queue pairs (QPs) are to meet, and by
//! which keys memory is reached. Rule: a message names the life and the attempt of both sides, so that one that comes late, twice or
//! from a life that is over is known by itself.
//!
//! [`Address`] is what a side announces before anything else. Everything after it is a [`Message`]. How they follow each other is the
//! business of the crate that moves bytes; here is only what they hold, and what they may hold at most.

pub mod close;
pub mod key;
pub mod notice;
pub mod rail;

pub use close::{CloseCode, KeyRefusal};
pub use key::{KeySet, RailKeys, RegionKey};
pub use rail::{Gid, GidKind, LinkLayer, Mtu, Rail, Side, SideLimits};

use crate::codec;
use crate::error::WireError;
use crate::ids::{Generation, Incarnation, RegionId};
use crate::limits::{MAX_NOTIFICATION_BYTES, MAX_TRANSPORT_ADDRESS_BYTES, MAX_TRANSPORT_KEY_BYTES};
use serde::{Deserialize, Serialize};

/// The version of these messages. Each side refuses another.
pub const VERSION: u16 = 1;
/// The most bytes in one message.
pub const MAX_BYTES: usize = 40 * 1024;
/// The most bytes in an address.
pub const MAX_ADDRESS_BYTES: usize = 64;
/// The most bytes in the key of a region, as it stands in the region's descriptor.
pub const MAX_REGION_KEY_BYTES: usize = MAX_TRANSPORT_KEY_BYTES;
/// The most rails that a side has.
pub const MAX_RAILS: usize = 16;
/// The most GIDs that a rail offers.
pub const MAX_GIDS: usize = 16;
/// The most QPs in one array.
pub const MAX_WIDTH: usize = 64;
/// The most bytes in a device's name, as in the kernel.
pub const MAX_DEVICE_NAME_BYTES: usize = 64;
/// The most bytes in the words of a close.
pub const MAX_WORDS_BYTES: usize = 512;
/// The most memory registrations (MRs) by which one region is reached on one rail.
pub const MAX_PARTS: usize = 512;
/// The highest number of a QP and the highest packet sequence number (PSN): both have 24 bits.
pub const MAX_24_BITS: u32 = (1 << 24) - 1;

const _: () = assert!(MAX_BYTES <= MAX_NOTIFICATION_BYTES);
const _: () = assert!(MAX_ADDRESS_BYTES <= MAX_TRANSPORT_ADDRESS_BYTES);
const RAIL_BYTES: usize = 8 + MAX_DEVICE_NAME_BYTES + 64 + MAX_GIDS * 22;
const ARRAY_BYTES: usize = 16 + MAX_WIDTH * 8;
const _: () = assert!(MAX_RAILS * (RAIL_BYTES + ARRAY_BYTES) + 256 <= MAX_BYTES);
const _: () = assert!(MAX_RAILS * (32 + MAX_PARTS * 4) + 256 <= MAX_BYTES);

bitflags::bitflags! {
    /// What a side can do beyond one-sided reads and writes. The agreed features are those that both have.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Features: u32 {
        /// It takes writes with a word of immediate data, and posts receives for them.
        const WRITE_WITH_IMM = 1;
        /// It can take a key back by a memory window of type 2, without touching the registration.
        const MEMORY_WINDOWS = 1 << 1;
        /// Its memory is registered for relaxed ordering: bytes of one write may land in any order, and only a completion says that
        /// they are there.
        const RELAXED_ORDERING = 1 << 2;
        /// It takes notifications over a QP of its own in each connection, or sends them so ([`notice`]).
        const NOTIFICATIONS = 1 << 3;
        /// Its devices keep up with reads by the page fault: no page of its memory need be pinned.
        const ON_DEMAND_PAGING = 1 << 4;
    }
}

/// What a side announces so that its peer knows that there is RDMA at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// [`VERSION`].
    pub version: u16,
    /// Which life of the side.
    pub incarnation: Incarnation,
    /// What it can do.
    pub features: Features,
    /// How many rails it has; at most [`MAX_RAILS`].
    pub rails: u8,
}

impl Address {
    /// The address's bytes.
    ///
    /// # Errors
    /// [`WireError`] for what [`Address::decode`] would refuse.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        self.validate()?;
        codec::encode("RDMA address", self, MAX_ADDRESS_BYTES)
    }

    /// The address in these bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Address, WireError> {
        version_of(bytes)?;
        let address: Address = codec::decode("RDMA address", bytes, MAX_ADDRESS_BYTES)?;
        address.validate()?;
        Ok(address)
    }

    fn validate(&self) -> Result<(), WireError> {
        known_version(self.version)?;
        rail::at_most("rails", self.rails.into(), MAX_RAILS)
    }
}

/// One attempt of one side to make a connection: which of its lives, and which attempt in that life. A side counts its attempts upwards
/// and uses no number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// Which life.
    pub incarnation: Incarnation,
    /// Which attempt, from 1 on; 0 says none.
    pub attempt: u64,
}

impl Stamp {
    /// A life without an attempt.
    pub const fn none(incarnation: Incarnation) -> Stamp {
        Stamp { incarnation, attempt: 0 }
    }
}

/// One QP: its number at its owner's device, and the PSN of the first packet that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Queue {
    /// The QP's number.
    pub number: u32,
    /// The first PSN, drawn at random, so that a packet to a former QP of this number is not taken for one to this.
    pub psn: u32,
}

/// The QPs of one rail for one connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueArray {
    /// The sender's rail ([`Rail::number`]).
    pub rail: u8,
    /// The QPs; between 1 and [`MAX_WIDTH`].
    #[serde(deserialize_with = "codec::list::<MAX_WIDTH, _, _>")]
    pub queues: Vec<Queue>,
}

impl QueueArray {
    fn validate(&self) -> Result<(), WireError> {
        rail::at_most("QPs of an array", self.queues.len(), MAX_WIDTH)?;
        let invalid = |what| Err(WireError::Invalid { what });
        if self.queues.is_empty() {
            return invalid("an array has no QP");
        }
        if usize::from(self.rail) >= MAX_RAILS {
            return invalid("an array is of a rail that can't be");
        }
        if self.queues.iter().any(|q| q.number > MAX_24_BITS || q.psn > MAX_24_BITS) {
            return invalid("a QP's number or PSN has more than 24 bits");
        }
        Ok(())
    }
}

/// A wish for a connection, with QPs that wait for their counterparts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What the sender has.
    pub side: Side,
    /// Its QPs: one array for each rail that it offers here.
    #[serde(deserialize_with = "codec::list::<MAX_RAILS, _, _>")]
    pub arrays: Vec<QueueArray>,
}

/// One rail of the offer with the one that it is to meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The rail of the side that offered.
    pub offered: u8,
    /// The GID that the offering side is to send from: an index that it offered ([`Gid::index`]).
    pub offered_gid: u16,
    /// The GID of the answering side, from the table of its rail.
    pub answered_gid: u16,
    /// The QPs of the answering side, wired to those of the offer: as many.
    pub array: QueueArray,
}

/// The answer to an offer: its QPs are wired to those of the offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What the sender has.
    pub side: Side,
    /// Which rails meet, and by which QPs; at least one.
    #[serde(deserialize_with = "codec::list::<MAX_RAILS, _, _>")]
    pub lanes: Vec<Lane>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Connect with me.
    Offer(Offer),
    /// With pleasure.
    Answer(Answer),
    /// My QPs are wired to yours; sent by the side that offered, and then by the one that answered.
    Ready,
    /// I won't, or no longer; whatever attempt of yours this is sent to is over.
    Close {
        /// Why, for a program.
        code: CloseCode,
        /// Why, for a person.
        words: String,
    },
    /// What I have has changed.
    Rails(Side),
    /// By which keys do I reach this region?
    KeysWanted {
        /// Comes back in the answer.
        request: u32,
        /// The region.
        region: RegionId,
        /// The generation of its descriptor.
        generation: Generation,
        /// The key from its descriptor: the region's own or that of a grant.
        key: u64,
    },
    /// By these.
    Keys {
        /// The number of the request.
        request: u32,
        /// The keys.
        keys: KeySet,
    },
    /// By none.
    KeysRefused {
        /// The number of the request.
        request: u32,
        /// Why.
        code: KeyRefusal,
    },
    /// Keys that were given are about to end: begin nothing with them any more.
    Revoked {
        /// Comes back in the answer.
        request: u32,
        /// The region.
        region: RegionId,
        /// Which generation of it.
        generation: Generation,
        /// The key that ends; none: all of that generation.
        key: Option<u64>,
    },
    /// Nothing is under way with the revoked keys any more.
    LetGo {
        /// The number of the notice.
        request: u32,
    },
    /// The attempt that this is sent from is over: can anything of it still land in your memory?
    FenceWanted {
        /// Comes back in the answer.
        request: u32,
    },
    /// No: the QPs that it could have come by are gone.
    Fenced {
        /// The number of the request.
        request: u32,
    },
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// [`VERSION`].
    pub version: u16,
    /// Which of the connections between the two sides: each has attempts of its own ([`channel`]).
    pub channel: u16,
    /// The sender.
    pub from: Stamp,
    /// Whom of the receiver it is for. An offer has the life alone.
    pub to: Stamp,
    /// What it says.
    pub body: Body,
}

/// The number of the connection between a rail of the peer with the lower id and one of the other's; none for a number that no rail
/// has. Connections that hold all rails at once have number zero, and both sides keep to one way.
pub fn channel(lower: u8, higher: u8) -> Option<u16> {
    let good = usize::from(lower) < MAX_RAILS && usize::from(higher) < MAX_RAILS;
    good.then_some(1 + u16::from(lower) * MAX_RAILS as u16 + u16::from(higher))
}

/// The rails of a connection's number: that of the peer with the lower id, and that of the other. None for number zero and for one that
/// can't be.
pub fn rails_of(channel: u16) -> Option<(u8, u8)> {
    let at = channel.checked_sub(1)?;
    let (lower, higher) = (at / MAX_RAILS as u16, at % MAX_RAILS as u16);
    (usize::from(lower) < MAX_RAILS).then_some((lower as u8, higher as u8))
}

impl Message {
    /// A message of this version.
    pub fn new(channel: u16, from: Stamp, to: Stamp, body: Body) -> Message {
        Message { version: VERSION, channel, from, to, body }
    }

    /// The message's bytes.
    ///
    /// # Errors
    /// [`WireError`] for what [`Message::decode`] would refuse.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        self.validate()?;
        codec::encode("RDMA message", self, MAX_BYTES)
    }

    /// The message in these bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        version_of(bytes)?;
        let message: Message = codec::decode("RDMA message", bytes, MAX_BYTES)?;
        message.validate()?;
        Ok(message)
    }

    fn validate(&self) -> Result<(), WireError> {
        known_version(self.version)?;
        if self.channel != 0 && rails_of(self.channel).is_none() {
            return Err(WireError::Unknown { what: "RDMA channel", value: self.channel.into() });
        }
        match &self.body {
            Body::Offer(offer) => offer.validate(),
            Body::Answer(answer) => answer.validate(),
            Body::Close { words, .. } if words.len() > MAX_WORDS_BYTES => Err(WireError::TooLong {
                what: "words of a close",
                got: words.len() as u64,
                limit: MAX_WORDS_BYTES as u64,
            }),
            Body::Rails(side) => side.validate(),
            Body::Keys { keys, .. } => keys.validate(),
            Body::Ready
            | Body::Close { .. }
            | Body::KeysWanted { .. }
            | Body::KeysRefused { .. }
            | Body::Revoked { .. }
            | Body::LetGo { .. }
            | Body::FenceWanted { .. }
            | Body::Fenced { .. } => Ok(()),
        }
    }
}

impl Offer {
    fn validate(&self) -> Result<(), WireError> {
        self.side.validate()?;
        rail::at_most("arrays", self.arrays.len(), MAX_RAILS)?;
        self.arrays.iter().try_for_each(QueueArray::validate)?;
        if self.arrays.is_empty() {
            return Err(WireError::Invalid { what: "an offer has no QPs" });
        }
        rail::all_differ(
            "two arrays of an offer are of one rail",
            self.arrays.iter().map(|a| a.rail.into()),
        )?;
        if self.arrays.iter().any(|array| self.side.rail(array.rail).is_none()) {
            return Err(WireError::Invalid { what: "an offer has QPs of a rail that it does not name" });
        }
        Ok(())
    }
}

impl Answer {
    fn validate(&self) -> Result<(), WireError> {
        self.side.validate()?;
        rail::at_most("lanes", self.lanes.len(), MAX_RAILS)?;
        if self.lanes.is_empty() {
            return Err(WireError::Invalid { what: "an answer has no lanes" });
        }
        for lane in &self.lanes {
            lane.array.validate()?;
            let Some(rail) = self.side.rail(lane.array.rail) else {
                return Err(WireError::Invalid { what: "an answer has QPs of a rail that it does not name" });
            };
            if rail.gid(lane.answered_gid).is_none() {
                return Err(WireError::Invalid { what: "an answer names a GID that its rail does not have" });
            }
        }
        rail::all_differ(
            "two lanes have one rail of the offer",
            self.lanes.iter().map(|l| l.offered.into()),
        )?;
        rail::all_differ("two lanes have one rail", self.lanes.iter().map(|l| l.array.rail.into()))
    }
}

/// Refuses bytes of another version before anything else is read.
fn version_of(bytes: &[u8]) -> Result<(), WireError> {
    match bytes.first_chunk::<2>() {
        Some(version) => known_version(u16::from_le_bytes(*version)),
        None => Err(WireError::Truncated { what: "RDMA message", got: bytes.len() as u64, need: 2 }),
    }
}

fn known_version(version: u16) -> Result<(), WireError> {
    if version == VERSION {
        return Ok(());
    }
    Err(WireError::Unknown { what: "version of the RDMA messages", value: version.into() })
}
