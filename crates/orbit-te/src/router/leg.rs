//! One route to one peer: its link, what it was measured to give, and how it has been lately. Rule: what a leg knows is of this peer
//! alone; a route that fails for one is as good as ever for others.

use crate::route::{
    CLASSES, Choices, Floor, Health, MAX_ROUTES, Prior, Rates, Reason, RouteId, Ruleset, Settings, SizeClass,
    Verdict,
};
use orbit_te_memory::{MemoryKind, RemoteKey};
use orbit_te_transport::{Barrier, LinkId, OpKind, TransportError};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so many ops of a class its rate is held against the floor.
const LOOK_AFTER: u32 = 16;

/// A peer's region, as far as it bears on the choice of a route. Made once, when its segment is opened.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Why a route can't reach it, by the route's number.
    pub(crate) obstacles: [Option<Reason>; MAX_ROUTES],
    pub(crate) kind: MemoryKind,
    pub(crate) rules: Ruleset,
}

/// How a route reaches a peer.
#[derive(Debug)]
pub(crate) struct Leg {
    /// The link of the route's transport.
    pub(crate) link: LinkId,
    /// Why it can't be used; none while it is up.
    pub(crate) down: Option<Reason>,
    /// Why it went down last, in words; none before, and of the base, whose link tells it otherwise.
    pub(crate) why: Option<Arc<str>>,
    pub(crate) rates: Rates,
    pub(crate) health: Health,
    /// By direction and class of sizes: whether it is known to run below the floor, so that it is told once.
    low: u32,
    /// Bytes under way.
    pub(crate) load_bytes: u64,
    /// When the last op of it ended: what comes after it did not begin before.
    pub(crate) last_end: Instant,
    /// It has failed to carry a notification: until then others go another way.
    pub(crate) no_notices_until: Option<Instant>,
}

impl Leg {
    /// One that is still being made.
    pub(crate) fn new(
        route: RouteId,
        link: LinkId,
        same_host: bool,
        settings: &Settings,
        now: Instant,
    ) -> Leg {
        Leg {
            link,
            down: Some(Reason::Linking),
            why: None,
            rates: Rates::new(Prior::of(route, same_host)),
            health: Health::new(settings),
            low: 0,
            load_bytes: 0,
            last_end: now,
            no_notices_until: None,
        }
    }
}

impl Leg {
    /// Takes in how long an op took. The share of what is expected that the leg gives, when it has come to run below the floor just now.
    pub(crate) fn observe(
        &mut self,
        (kind, bytes, pieces): (OpKind, u64, u32),
        service: Duration,
        floor: Option<Floor>,
        now: Instant,
    ) -> Option<f32> {
        self.rates.observe(kind, bytes, pieces, service, now);
        let class = SizeClass::of(bytes);
        // Means move slowly: a look now and then is enough.
        if self.rates.samples(kind, class) % LOOK_AFTER != 0 {
            return None;
        }
        let bit = 1 << (class.index() + CLASSES * kind as usize);
        let before = self.low;
        let share = match self.rates.floor(kind, bytes, floor) {
            Verdict::Warn { share } | Verdict::Refuse { share } => Some(share),
            Verdict::Fine => None,
        };
        self.low = if share.is_some() { before | bit } else { before & !bit };
        share.filter(|_| before & bit == 0)
    }
}

/// A region of a peer, and which routes were chosen for it last.
pub(crate) struct Known {
    shown: [u64; 3],
    pub(crate) reach: Arc<Reach>,
    /// Those of the reach, and what was found out since.
    pub(crate) obstacles: [Option<Reason>; MAX_ROUTES],
    pub(crate) choices: Choices,
    /// By the route's number: when the first op to it ended that succeeded.
    used: [Option<Instant>; MAX_ROUTES],
}

impl Known {
    /// Notes that an op has succeeded over a route, and tells whether it was one of the first: these have waited for the way into the region
    /// and found no page of it mapped, and what they took is not what the next ones will.
    pub(crate) fn is_first_use(&mut self, route: RouteId, (began, ended): (Instant, Instant)) -> bool {
        let first = self.used[route.index()].get_or_insert(ended);
        began < *first
    }
}

/// A peer: a leg for each route that reaches it, by the route's place; the base's is always there, and its link is the peer's link for
/// everybody else.
pub(crate) struct Legs {
    pub(crate) link: LinkId,
    pub(crate) legs: Vec<Option<Leg>>,
    known: Vec<Known>,
    places: HashMap<[u64; 3], usize>,
    /// Where the last one was found: mostly the next one's.
    recent: usize,
}

impl Legs {
    pub(crate) fn new(link: LinkId, routes: usize) -> Legs {
        let legs = (0..routes).map(|_| None).collect();
        Legs { link, legs, known: Vec::new(), places: HashMap::new(), recent: 0 }
    }

    /// Keeps what is known of a region, as long as anybody else does.
    pub(crate) fn learn(&mut self, key: &RemoteKey, reach: Arc<Reach>) {
        let (shown, obstacles) = (named(key), reach.obstacles);
        self.known.retain(|known| Arc::strong_count(&known.reach) > 1 && known.shown != shown);
        self.known.push(Known {
            shown,
            reach,
            obstacles,
            choices: Choices::default(),
            used: [None; MAX_ROUTES],
        });
        self.places = self.known.iter().enumerate().map(|(at, known)| (known.shown, at)).collect();
        self.recent = 0;
    }

    /// What is known of a region, and the legs.
    pub(crate) fn region(&mut self, key: &RemoteKey) -> (Option<&mut Known>, &mut [Option<Leg>]) {
        let wanted = named(key);
        if self.known.get(self.recent).is_none_or(|known| known.shown != wanted) {
            self.recent = self.places.get(&wanted).copied().unwrap_or(0);
        }
        let known = self.known.get_mut(self.recent).filter(|known| known.shown == wanted);
        (known, &mut self.legs)
    }
}

fn named(key: &RemoteKey) -> [u64; 3] {
    [key.0[0], key.0[1], key.0[2]]
}

/// Why a route whose link is down is not taken.
pub(crate) fn reason(error: &TransportError) -> Reason {
    match error {
        TransportError::Barred { barrier, .. } => match *barrier {
            Barrier::OtherHost => Reason::OtherHost,
            Barrier::NotVisible => Reason::OtherNamespace,
            Barrier::OtherUser { user } => {
                Reason::OtherUser { ours: nix::unistd::geteuid().as_raw(), theirs: user }
            }
            Barrier::Forbidden { os } => Reason::KernelRefuses { errno: os },
        },
        _ => Reason::LinkDown,
    }
}
