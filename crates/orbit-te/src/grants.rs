//! Exposing regions to peers, and what peers have of them. Rule: who may reach a region has a grant for it, which is listed here and
//! can be revoked alone.

use crate::clock;
use crate::engine::Engine;
use crate::error::Error;
use crate::region::Region;
use crate::serving::Held;
use crate::shared::Shared;
use orbit_te_memory::{Access, Grant, GrantId, GrantTerms, MemoryError};
use orbit_te_wire::limits::MAX_NAME_BYTES;
use orbit_te_wire::{PeerId, RefusalCode, RegionDescriptor, RegionId, SegmentToken, SessionId};
use std::time::{Duration, Instant};

/// How a region is exposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExposeOptions {
    /// What peers may do, of what the region permits; none: all of it.
    pub access: Option<Access>,
    /// How long a grant lasts; whoever opens the segment again by its name has it for that time anew. None: as long as the peer's
    /// session, and for a token as long as this engine.
    pub time_to_live: Option<Duration>,
}

/// A right of a peer to a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantInfo {
    /// Its number at this engine; never reused.
    pub id: GrantId,
    /// The name of the segment that was opened.
    pub segment: String,
    /// The region.
    pub region: RegionId,
    /// Who has it; none: whoever has the segment's token.
    pub peer: Option<PeerId>,
    /// What it permits.
    pub access: Access,
    /// How much longer; none: as long as the peer's session, or this engine for a token.
    pub expires_in: Option<Duration>,
    /// Requests under it that are under way.
    pub requests: u64,
}

/// A segment that peers may open.
pub(crate) struct Exposed {
    pub(crate) region: Region,
    access: Access,
    time_to_live: Option<Duration>,
}

impl Engine {
    /// Exposes a region to peers under a name, with all the rights it gives them, and gives the token by which it can also be
    /// reached. [`Engine::expose_with`] says more.
    ///
    /// # Errors
    /// As [`Engine::expose_with`].
    pub fn expose(&self, name: &str, region: &Region) -> Result<SegmentToken, Error> {
        self.expose_with(name, region, ExposeOptions::default())
    }

    /// Exposes a region to peers under a name. A peer that opens it gets a grant of its own, which nobody else can use: it ends with
    /// the peer's session, when its time is over, or when it is revoked.
    ///
    /// The token is a grant as well, to anybody who has the token: keep it as one keeps a password. It is good for the life of this
    /// engine, until its time is over, or the region or the grant is revoked, or the region retired.
    ///
    /// # Errors
    /// [`Error::NameTaken`], [`Error::BadName`], [`Error::Config`] when the region gives peers no right, or not those of the options,
    /// or the engine does not listen; [`Error::Memory`] when the region is retired.
    pub fn expose_with(
        &self,
        name: &str,
        region: &Region,
        options: ExposeOptions,
    ) -> Result<SegmentToken, Error> {
        let shared = self.shared();
        check_name(name)?;
        let peers = Access::REMOTE_READ | Access::REMOTE_WRITE;
        if !region.access().is_remote() {
            return Err(Error::Config("the region gives peers no right; register it with one".to_string()));
        }
        let access = options.access.unwrap_or(region.access());
        if !access.is_remote() || !region.access().contains(access & peers) {
            return Err(Error::Config(format!(
                "the segment would give peers {access:?}, but must give them a right, and none beyond {:?} of its region",
                region.access()
            )));
        }
        if shared.addresses.is_empty() {
            return Err(Error::Config(
                "this engine does not listen, so nobody could reach the segment".to_string(),
            ));
        }
        let exposed = Exposed { region: region.clone(), access, time_to_live: options.time_to_live };
        let mut all = shared.exposed.write();
        if all.contains_key(name) {
            return Err(Error::NameTaken(name.to_string()));
        }
        let descriptor = shared.grant(None, name, &exposed)?;
        let token = SegmentToken {
            peer: shared.identity.peer,
            incarnation: shared.identity.incarnation,
            addresses: shared.addresses.clone(),
            name: name.to_string(),
            descriptor,
        };
        token.validate()?;
        all.insert(name.to_string(), exposed);
        Ok(token)
    }

    /// Takes a segment's name back; whether there was one. Peers that have opened it keep their access until their grant ends, or the
    /// region is retired or revoked.
    pub fn withdraw(&self, name: &str) -> bool {
        self.shared().exposed.write().remove(name).is_some()
    }

    /// The grants that peers have, in the order in which they were given. Those that are over are left out once no request under
    /// them is under way; those that were revoked, once no peer reaches memory by them itself.
    pub fn grants(&self) -> Vec<GrantInfo> {
        let now = clock::now();
        self.shared().registry.grants().list(now).iter().map(|grant| info(grant, now)).collect()
    }

    /// Ends one grant: requests under it are refused from now on, with a status of their own, and the call returns when those that
    /// were under way have ended. Other grants to the same region stay. The peer may open the segment again while it is exposed.
    /// Blocks, and closes lanes at the limit, as [`Engine::retire`] does.
    ///
    /// # Errors
    /// [`Error::Memory`] when there is no such grant, or requests under it are under way even after the limit.
    pub fn revoke_grant(&self, id: GrantId, limit: Duration) -> Result<(), Error> {
        let shared = self.shared();
        shared.registry.revoke_grant_or(id, limit, || shared.evict(Held::Grant(id)))?;
        Ok(())
    }
}

impl Shared {
    /// Answers a peer that asks for a segment: what it needs to reach it, or why not.
    pub(crate) fn open_for(
        &self,
        session: SessionId,
        name: &str,
    ) -> Result<RegionDescriptor, (RefusalCode, String)> {
        let exposed = self.exposed.read();
        let Some(segment) = exposed.get(name) else {
            return Err((RefusalCode::UnknownSegment, format!("no segment is named `{name}` here")));
        };
        self.grant(Some(session), name, segment).map_err(|error| {
            let code = match error {
                MemoryError::TooManyGrants { .. } => RefusalCode::OverLimit,
                MemoryError::HolderGone => RefusalCode::Unsupported,
                _ => RefusalCode::UnknownSegment,
            };
            (code, error.to_string())
        })
    }

    /// A grant for a session, or for anybody who is told of it, as the descriptor that carries its key.
    fn grant(
        &self,
        to: Option<SessionId>,
        name: &str,
        exposed: &Exposed,
    ) -> Result<RegionDescriptor, MemoryError> {
        let Exposed { region, access, time_to_live } = exposed;
        let terms = GrantTerms { name: name.to_string(), access: *access, time_to_live: *time_to_live };
        // The limit is for peers; what this side exposes is its own to bound.
        let most = if to.is_some() { self.config.session_grants.max(1) } else { usize::MAX };
        let grant = self.registry.grants().give(to, &region.raw, &terms, most, clock::now())?;
        Ok(RegionDescriptor {
            generation: grant.generation(),
            access: grant.access(),
            ..region.describe(&self.domains, grant.key())
        })
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let bad = |why| Err(Error::BadName { name: name.to_string(), why });
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return bad("it has more than 255 bytes");
    }
    if name.contains(['@', '\n']) {
        return bad("`@` and line breaks have a meaning of their own in addresses");
    }
    Ok(())
}

fn info(grant: &Grant, now: Instant) -> GrantInfo {
    GrantInfo {
        id: grant.id(),
        segment: grant.name().to_string(),
        region: grant.region(),
        peer: grant.peer(),
        access: grant.access(),
        expires_in: grant.expires_in(now),
        requests: grant.leases(),
    }
}
