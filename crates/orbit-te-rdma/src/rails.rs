//! Which rail of ours meets which of the peer's. Rule: rails are intersected, not matched: each that finds a partner is used, whatever
//! they are called and however many there are; each pair that is not used has its reason.

use crate::gid::{Candidate, NoGid, candidates};
use orbit_te_wire::rdma::{LinkLayer, Rail};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A device, or one port of it, as configuration names it: `mlx5_0` or `mlx5_0:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailName {
    /// The device's name.
    pub device: String,
    /// Its port; none: all.
    pub port: Option<u8>,
}

impl FromStr for RailName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<RailName, BadName> {
        let bad = || BadName::Malformed { text: text.to_string() };
        let (device, port) = match text.split_once(':') {
            Some((device, port)) => {
                (device, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?))
            }
            None => (text, None),
        };
        if device.is_empty() {
            return Err(bad());
        }
        Ok(RailName { device: device.to_string(), port })
    }
}

impl fmt::Display for RailName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.device),
            None => f.write_str(&self.device),
        }
    }
}

/// What is wrong with the names in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadName {
    /// No name at all.
    #[error("`{text}` is no name of a device: write `mlx5_0`, or `mlx5_0:1` for one port of it")]
    Malformed {
        /// What is there instead.
        text: String,
    },
    /// There is no such device or port.
    #[error("there is no RDMA device `{name}`; there {}", those(.there))]
    Unknown {
        /// The name.
        name: RailName,
        /// Those that there are.
        there: Vec<RailName>,
    },
}

fn those(there: &[RailName]) -> String {
    match there {
        [] => "is none".to_string(),
        [one] => format!("is {one}"),
        all => format!("are {}", all.iter().map(RailName::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// How rails are paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preferences {
    /// The one GID index of ours that may be used, on every rail.
    pub gid_index: Option<u16>,
    /// Our NUMA node whose rails come first.
    pub numa: Option<u16>,
    /// What to do with rails that seem to be in different subnets.
    pub across: Across,
}

/// What to do with two rails that seem to be in different subnets, but have routable addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Across {
    /// Pair them where neither has a partner in its own subnet.
    #[default]
    WhereNoneIsNear,
    /// Never pair them.
    Never,
    /// Pair them as if they were in one.
    Always,
}

/// Two rails that are to meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The number of ours.
    pub ours: u8,
    /// The number of the peer's.
    pub theirs: u8,
    /// By which GIDs, best first; never empty.
    pub gids: Vec<Candidate>,
    /// Whether ours is at the preferred NUMA node; false where none is preferred.
    pub near: bool,
}

/// Two rails that are not to meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The number of ours.
    pub ours: u8,
    /// The number of the peer's.
    pub theirs: u8,
    /// Why not.
    pub why: WhyNot,
}

/// Why two rails are not to meet.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WhyNot {
    /// InfiniBand here and Ethernet there, or the other way round.
    #[error("ours is {ours:?} and the peer's is {theirs:?}")]
    LinkLayer {
        /// Ours.
        ours: LinkLayer,
        /// The peer's.
        theirs: LinkLayer,
    },
    /// They talk in different partitions.
    #[error("ours is in partition {ours:#06x} and the peer's in {theirs:#06x}")]
    Partition {
        /// The P_Key of ours.
        ours: u16,
        /// The P_Key of the peer's.
        theirs: u16,
    },
    /// No GIDs of theirs can meet.
    #[error(transparent)]
    Gid(#[from] NoGid),
    /// They seem to be in different subnets.
    #[error("they seem to be in different subnets: {0}")]
    Subnet(String),
    /// Both could meet, but one or both have a better partner.
    #[error("a better partner was found for one of them, or for both")]
    Taken,
}

/// Which rails meet, and which don't.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairing {
    /// Those that meet, best first. Each rail is in at most one.
    pub pairs: Vec<Pair>,
    /// All other pairs, with their reasons.
    pub refused: Vec<Refused>,
}

/// Pairs rails of ours with rails of the peer's, all of which are up: as many as can be, and among them the best: in one subnet, by the better GIDs, at the
/// preferred NUMA node, of the same number.
pub fn pair(ours: &[Rail], theirs: &[Rail], preferences: &Preferences) -> Pairing {
    let mut pairing = Pairing::default();
    let mut possible = Vec::new();
    for local in ours {
        for remote in theirs {
            match judge(local, remote, preferences) {
                Ok(gids) => possible.push(Possible { ours: local, theirs: remote, gids }),
                Err(why) => {
                    pairing.refused.push(Refused { ours: local.number, theirs: remote.number, why });
                }
            }
        }
    }
    drop_far(&mut possible, preferences.across, &mut pairing.refused);
    possible.sort_by_key(|p| p.order(preferences));
    let chosen = choose(&possible);
    for (at, possible) in possible.into_iter().enumerate() {
        let Possible { ours, theirs, gids } = possible;
        let (ours, near, theirs) = (ours.number, is_near(ours, preferences), theirs.number);
        if chosen.contains(&at) {
            pairing.pairs.push(Pair { ours, theirs, gids, near });
        } else {
            pairing.refused.push(Refused { ours, theirs, why: WhyNot::Taken });
        }
    }
    pairing
}

struct Possible<'a> {
    ours: &'a Rail,
    theirs: &'a Rail,
    gids: Vec<Candidate>,
}

impl Possible<'_> {
    fn in_one_subnet(&self) -> bool {
        self.gids.iter().any(|gid| gid.same_subnet)
    }

    fn order(&self, preferences: &Preferences) -> impl Ord + use<> {
        let best = self.gids.first().map(|gid| (!gid.same_subnet, gid.reach));
        let apart = self.ours.number.abs_diff(self.theirs.number);
        (best, !is_near(self.ours, preferences), apart, self.ours.number, self.theirs.number)
    }
}

fn is_near(ours: &Rail, preferences: &Preferences) -> bool {
    preferences.numa.is_some() && ours.numa == preferences.numa
}

fn judge(ours: &Rail, remote: &Rail, preferences: &Preferences) -> Result<Vec<Candidate>, WhyNot> {
    if ours.layer != remote.layer {
        return Err(WhyNot::LinkLayer { ours: ours.layer, theirs: remote.layer });
    }
    if !one_partition(ours.p_key, remote.p_key) {
        return Err(WhyNot::Partition { ours: ours.p_key, theirs: remote.p_key });
    }
    Ok(candidates(ours, remote, preferences.gid_index)?)
}

/// Whether two P_Keys let their owners talk: one partition, of which at least one is a full member (the highest bit).
pub fn one_partition(one: u16, other: u16) -> bool {
    const FULL: u16 = 0x8000;
    one & !FULL == other & !FULL && (one | other) & FULL != 0 && one & !FULL != 0
}

/// Takes out what would pair rails across subnets blindly.
fn drop_far(possible: &mut Vec<Possible<'_>>, across: Across, refused: &mut Vec<Refused>) {
    if across == Across::Always {
        return;
    }
    let near: Vec<(u8, u8)> =
        possible.iter().filter(|p| p.in_one_subnet()).map(|p| (p.ours.number, p.theirs.number)).collect();
    possible.retain(|p| {
        let (ours, theirs) = (p.ours.number, p.theirs.number);
        let a_near_partner = near.iter().any(|(o, t)| *o == ours || *t == theirs);
        let keep = p.in_one_subnet() || (across == Across::WhereNoneIsNear && !a_near_partner);
        if !keep {
            let words = p.gids.first().map(Candidate::to_string).unwrap_or_default();
            refused.push(Refused { ours, theirs, why: WhyNot::Subnet(words) });
        }
        keep
    });
}

/// As many as can be, best first: each is taken for which a place can be made without taking away another rail's last partner.
fn choose(possible: &[Possible<'_>]) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for (at, p) in possible.iter().enumerate() {
        let free = chosen.iter().all(|c| {
            let c = &possible[*c];
            c.ours.number != p.ours.number && c.theirs.number != p.theirs.number
        });
        if free {
            chosen.push(at);
        }
    }
    // What the best-first order left out gets in by moving others, where there is a chain of moves (Kuhn's algorithm).
    let rails: Vec<u8> = possible.iter().map(|p| p.ours.number).collect();
    for number in rails {
        if !chosen.iter().any(|c| possible[*c].ours.number == number) {
            let mut tried = Vec::new();
            place(number, possible, &mut chosen, &mut tried);
        }
    }
    chosen
}

fn place(number: u8, possible: &[Possible<'_>], chosen: &mut Vec<usize>, tried: &mut Vec<u8>) -> bool {
    for (at, p) in possible.iter().enumerate() {
        if p.ours.number != number || tried.contains(&p.theirs.number) {
            continue;
        }
        tried.push(p.theirs.number);
        let holder = chosen.iter().position(|c| possible[*c].theirs.number == p.theirs.number);
        let Some(holder) = holder else {
            chosen.push(at);
            return true;
        };
        let other = chosen.swap_remove(holder);
        if place(possible[other].ours.number, possible, chosen, tried) {
            chosen.push(at);
            return true;
        }
        chosen.push(other);
    }
    false
}
