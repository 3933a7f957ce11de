//! No touch without a right: a stream that sends from or receives into a region's memory does so for an op in flight of its own
//! transport (of a list, inside of one of its pieces), or, at the side that answers, under a lease; a device for a peer, while it is held for one.
//! Does not check what the bytes are
//! (`bytes.rs`), nor for which request a lease is held, nor memory that is no region's, nor copies that the application itself makes.

use super::once::Live;
use super::{Checker, Report};
use orbit_te::Region;
use orbit_te_transport::OpKind;
use std::collections::BTreeMap;

/// Which transport of a process a stream belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Asking,
    Answering,
    /// None: the peer's device reaches this side's by itself.
    Device,
}

/// What a range is for that a stream touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched {
    NoRegion,
    Payload,
    /// A payload that this side asked to have verified: the op's token, and which of its bytes is the first.
    Verified {
        token: u64,
        at: u64,
    },
}

struct Watched {
    length: u64,
    life: usize,
    region: Region,
    /// Its owner was told that nobody can touch it any more.
    given_back: bool,
}

/// All memory of regions in this run. It stays mapped until the run ends, so that a late touch is seen and does no harm.
#[derive(Default)]
pub(crate) struct Map {
    regions: BTreeMap<u64, Watched>,
}

impl Map {
    pub(crate) fn add(&mut self, address: u64, life: usize, region: Region) {
        let length = region.len();
        self.regions.insert(address, Watched { length, life, region, given_back: false });
    }

    pub(crate) fn given_back(&mut self, address: u64) {
        if let Some(watched) = self.regions.get_mut(&address) {
            watched.given_back = true;
        }
    }

    /// A stream is about to touch this range; `into`: it will write there. What it is for.
    pub(crate) fn touched(
        &self,
        range: (u64, u64),
        into: bool,
        (life, side): (usize, Side),
        live: &Live,
        report: &mut Report,
    ) -> Touched {
        let (address, length) = range;
        let Some((&base, watched)) = self.regions.range(..address + length).next_back() else {
            return Touched::NoRegion;
        };
        if base + watched.length <= address {
            return Touched::NoRegion;
        }
        let mut wrong = |why: &str| {
            let verb = if into { "written" } else { "read" };
            let id = watched.region.id();
            report.violated(
                Checker::Touch,
                format!(
                    "{length} bytes at {} of region {id} of life {} were {verb} by life {life} ({side:?}): {why}",
                    address.wrapping_sub(base),
                    watched.life
                ),
            );
        };
        if address < base || address + length > base + watched.length {
            wrong("the range is not inside of the region");
        } else if watched.life != life {
            wrong("it is another process's memory");
        } else if watched.given_back {
            wrong("the region was retired");
        } else if side == Side::Answering {
            if watched.region.leases() == 0 {
                wrong("nobody has a lease on it");
            }
        } else if side == Side::Device {
            if watched.region.raw().holds() == 0 {
                wrong("nobody holds it for a peer");
            }
        } else {
            let kind = if into { OpKind::Read } else { OpKind::Write };
            let mine = live.ops().filter(|live| live.op.kind == kind);
            let mut places = mine.filter_map(|live| live.place(address, length).map(|at| (&live.op, at)));
            match (places.next(), places.next()) {
                (None, _) => wrong("no op in flight has this range"),
                // A list that sends bytes twice may do so in two ops: which of them this is for can't be known.
                (Some((op, at)), None) if op.verify.is_on() => {
                    return Touched::Verified { token: op.token.0, at };
                }
                _ => {}
            }
        }
        Touched::Payload
    }
}
