//! Grants: a peer's right to a region, with an owner, rights of its own, a generation and an expiry. Rule: a grant is looked up in
//! its holder's own table, so that nobody uses another's, and everything that a holder has ends with it, at once.

use crate::error::MemoryError;
use crate::lease::Gate;
use crate::region::{Region, random_key};
use crate::sync::{AtomicU64, Mutex, Ordering};
use arc_swap::ArcSwap;
use orbit_te_wire::{Access, Generation, PeerId, RegionId, SessionId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Grants that are over and are remembered for one holder.
const OVER_KEPT: usize = 1024;

/// Never, as a grant's time to live in nanoseconds.
const FOREVER: u64 = u64::MAX;

/// A grant's number at its registry; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a grant permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantTerms {
    /// What the holder calls it: the segment's name.
    pub name: String,
    /// The rights; those that the region does not have are left out.
    pub access: Access,
    /// How long it may be used; none: as long as its holder lives.
    pub time_to_live: Option<Duration>,
}

/// A peer's right to a region. Its key is unguessable, and opens the region to its holder alone.
pub struct Grant {
    id: GrantId,
    key: u64,
    name: String,
    holder: Option<(SessionId, PeerId)>,
    region: RegionId,
    generation: Generation,
    access: Access,
    given: Instant,
    /// Nanoseconds after `given`.
    expires_ns: AtomicU64,
    gate: Gate,
}

impl Grant {
    /// Its number.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// What its holder must present with each request.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The segment's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who may use it; none: anybody who has the key.
    pub fn peer(&self) -> Option<PeerId> {
        self.holder.map(|(_, peer)| peer)
    }

    /// The region.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// The generation of the region that it is good for.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What its holder may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Requests under it that are under way.
    pub fn leases(&self) -> u64 {
        self.gate.count()
    }

    /// Whether memory may be touched under it now: by requests, or by a peer itself, which a revocation has to take it from. What expires
    /// ends by itself for those who reach memory themselves, and they may keep what is of no use any more.
    fn is_used(&self) -> bool {
        self.gate.count() > 0 || (self.gate.is_retired() && self.gate.holds() > 0)
    }

    /// Until when it may be used, from `now` on; none: without end.
    pub fn expires_in(&self, now: Instant) -> Option<Duration> {
        let expires_ns = self.expires_ns.load(Ordering::Acquire);
        (expires_ns != FOREVER).then(|| Duration::from_nanos(expires_ns.saturating_sub(self.age_ns(now))))
    }

    /// Whether it was revoked or has expired. Requests that were admitted before may still be under way.
    pub fn is_over(&self, now: Instant) -> bool {
        let expires_ns = self.expires_ns.load(Ordering::Acquire);
        self.gate.is_retired() || (expires_ns != FOREVER && self.age_ns(now) >= expires_ns)
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    fn age_ns(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.given))
    }

    fn renew(&self, terms: &GrantTerms, now: Instant) {
        let ends = terms.time_to_live.map(|live| self.age_ns(now).saturating_add(nanoseconds(live)));
        self.expires_ns.store(ends.unwrap_or(FOREVER), Ordering::Release);
    }

    fn fits(&self, region: &Region, terms: &GrantTerms) -> bool {
        (self.region, self.generation) == (region.id(), region.generation())
            && (self.access, self.name.as_str()) == (terms.access & region.access(), terms.name.as_str())
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("peer", &self.peer())
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(FOREVER - 1)
}

/// Who has grants: a session with a peer, or anybody.
#[derive(Debug)]
pub struct Holder {
    who: Option<(SessionId, PeerId)>,
    /// By key. Replaced whole, so that a request is admitted without a lock.
    table: ArcSwap<HashMap<u64, Arc<Grant>>>,
    /// Held while the table is replaced; whether the holder is gone.
    gone: Mutex<bool>,
    /// What everybody may use.
    anybody: Option<Arc<Holder>>,
}

impl Holder {
    fn new(who: Option<(SessionId, PeerId)>, anybody: Option<Arc<Holder>>) -> Arc<Holder> {
        let (table, gone) = (ArcSwap::default(), Mutex::new(false));
        Arc::new(Holder { who, table, gone, anybody })
    }

    /// The grant of this key, if the holder may use it.
    pub fn find(&self, key: u64) -> Option<Arc<Grant>> {
        let own = self.table.load().get(&key).cloned();
        own.or_else(|| self.anybody.as_ref()?.table.load().get(&key).cloned())
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, Arc<Grant>>)) {
        let mut table = HashMap::clone(&self.table.load());
        change(&mut table);
        self.table.store(Arc::new(table));
    }

    fn forget(&self, region: RegionId) {
        let _changing = self.gone.lock();
        if self.table.load().values().any(|grant| grant.region == region) {
            self.change(|table| table.retain(|_, grant| grant.region != region));
        }
    }

    fn end(&self) {
        let mut gone = self.gone.lock();
        *gone = true;
        for grant in self.table.swap(Arc::default()).values() {
            grant.gate.retire();
        }
    }
}

/// All grants of a registry.
#[derive(Debug)]
pub struct Grants {
    anybody: Arc<Holder>,
    sessions: Mutex<HashMap<SessionId, Arc<Holder>>>,
    last: AtomicU64,
}

impl Default for Grants {
    fn default() -> Grants {
        let anybody = Holder::new(None, None);
        Grants { anybody, sessions: Mutex::default(), last: AtomicU64::new(0) }
    }
}

impl Grants {
    /// A session may have grants from now on.
    pub fn begin(&self, session: SessionId, peer: PeerId) {
        let holder = Holder::new(Some((session, peer)), Some(self.anybody.clone()));
        self.sessions.lock().insert(session, holder);
    }

    /// A session is over: all its grants are given back, and no request is admitted under them any more.
    pub fn end(&self, session: SessionId) {
        let holder = self.sessions.lock().remove(&session);
        if let Some(holder) = holder {
            holder.end();
        }
    }

    /// What a session has; nothing, for one that is not known.
    pub fn of(&self, session: SessionId) -> Arc<Holder> {
        self.sessions.lock().get(&session).unwrap_or(&self.anybody).clone()
    }

    /// What anybody may use who has the key.
    pub fn anybody(&self) -> &Arc<Holder> {
        &self.anybody
    }

    /// Gives a region to a session, or to anybody who is told the key. The same region on the same terms to the same holder is the
    /// same grant, which then expires later. At most `most` that are not over at one holder.
    ///
    /// # Errors
    /// [`MemoryError::TooManyGrants`], [`MemoryError::HolderGone`] for a session that is over, [`MemoryError::Retired`],
    /// [`MemoryError::BeingRevoked`], [`MemoryError::NoRandom`].
    pub fn give(
        &self,
        to: Option<SessionId>,
        region: &Region,
        terms: &GrantTerms,
        most: usize,
        now: Instant,
    ) -> Result<Arc<Grant>, MemoryError> {
        let holder = match to {
            None => self.anybody.clone(),
            Some(session) => self.sessions.lock().get(&session).cloned().ok_or(MemoryError::HolderGone)?,
        };
        let gone = holder.gone.lock();
        if *gone {
            return Err(MemoryError::HolderGone);
        }
        let table = holder.table.load();
        let valid = || table.values().filter(|grant| !grant.is_over(now));
        if let Some(same) = valid().find(|grant| grant.fits(region, terms)) {
            same.renew(terms, now);
            return Ok(same.clone());
        }
        let count = valid().count();
        if count >= most {
            return Err(MemoryError::TooManyGrants { limit: most });
        }
        let grant = Arc::new(Grant {
            id: GrantId(self.last.fetch_add(1, Ordering::Relaxed) + 1),
            key: random_key()?,
            name: terms.name.clone(),
            holder: holder.who,
            region: region.id(),
            generation: region.generation(),
            access: terms.access & region.access(),
            given: now,
            expires_ns: AtomicU64::new(FOREVER),
            gate: Gate::default(),
        });
        grant.renew(terms, now);
        let over = table.len() - count;
        drop(table);
        holder.change(|table| {
            // Those that are over stay for a while, so that a late request is told why it is refused; not without end.
            if over >= most.min(OVER_KEPT) {
                table.retain(|_, grant| !grant.is_over(now) || grant.is_used());
            }
            table.insert(grant.key, grant.clone());
        });
        // Whoever retires or revokes the region takes its grants out after that; this one may have come too late for it.
        let refusal = match region.is_retired() {
            true => MemoryError::Retired { region: region.id() },
            false if region.generation() == grant.generation => return Ok(grant),
            false => MemoryError::BeingRevoked { region: region.id() },
        };
        holder.change(|table| drop(table.remove(&grant.key)));
        Err(refusal)
    }

    /// All grants that are not over, under which requests are under way, or which were revoked while a peer still reaches memory by itself; in
    /// the order in which they were given.
    pub fn list(&self, now: Instant) -> Vec<Arc<Grant>> {
        let mut all: Vec<_> = self.holders().iter().flat_map(|holder| values(holder)).collect();
        all.retain(|grant| !grant.is_over(now) || grant.is_used());
        all.sort_unstable_by_key(|grant| grant.id);
        all
    }

    /// The grant of this number.
    pub fn get(&self, id: GrantId) -> Option<Arc<Grant>> {
        self.holders().iter().find_map(|holder| values(holder).into_iter().find(|grant| grant.id == id))
    }

    /// Takes out what is good for nothing, since the region was retired or its descriptors revoked.
    pub(crate) fn forget(&self, region: RegionId) {
        self.holders().iter().for_each(|holder| holder.forget(region));
    }

    fn holders(&self) -> Vec<Arc<Holder>> {
        let mut holders: Vec<_> = self.sessions.lock().values().cloned().collect();
        holders.push(self.anybody.clone());
        holders
    }
}

fn values(holder: &Holder) -> Vec<Arc<Grant>> {
    holder.table.load().values().cloned().collect()
}
