//! What the application takes back: single grants, all that peers know of a region, and regions. Rule: what is said to be over is
//! written anew at once; a right counts as over only when that is certain.

use super::App;
use crate::model::{Area, Memory, Opened, Opening, Revoking, Slot};
use crate::plant::Plant;
use orbit_te::{Access, Engine, MemoryError};
use std::time::Duration;

impl App {
    /// Whether an opening gives no right any more at this time, for certain.
    pub(super) fn is_over(&self, opened: &Opened, now_ns: u64) -> bool {
        let &Opened { life, memory, epoch, by_token, token_ends_ns, revoked, .. } = opened;
        let over = |ends_ns| now_ns > ends_ns;
        revoked
            || epoch < self.memories[memory].epoch
            || over(if by_token { token_ends_ns } else { self.own_ends_ns(life, memory) })
    }

    /// Until when the grant may last that a life has by the name of a memory's segment. Each opening renews it.
    fn own_ends_ns(&self, life: usize, memory: usize) -> u64 {
        if self.memories[memory].lasts.is_none() {
            return u64::MAX;
        }
        let renews = |o: &Opening| o.life == life && o.memory == memory && !o.by_token;
        if self.opening.iter().any(renews) {
            return u64::MAX;
        }
        self.last_ns.get(&(life, memory)).copied().unwrap_or(u64::MAX)
    }

    /// A segment was opened; the number of the opening.
    pub(super) fn granted(&mut self, opening: &Opening) -> usize {
        let lasts = self.memories[opening.memory].lasts;
        let now_ns = self.net.lock().now_ns;
        let ends_ns = lasts.map_or(u64::MAX, |lasts| now_ns + lasts.as_nanos() as u64);
        if !opening.by_token {
            let last_ns = self.last_ns.entry((opening.life, opening.memory)).or_default();
            *last_ns = ends_ns.max(*last_ns);
        }
        self.openings += 1;
        self.openings
    }

    /// A segment was not opened, and perhaps its grant was renewed, or will be.
    pub(super) fn not_opened(&mut self, opening: &Opening) {
        if !opening.by_token {
            self.last_ns.insert((opening.life, opening.memory), u64::MAX);
        }
    }

    /// Begins to revoke all grants by which one peer, or whoever has the token, reaches a region.
    pub(super) fn revoke_grants(&mut self, life: usize, engine: &Engine) {
        let Some(memory) = self.one_exposed(life) else { return };
        let Some((name, _)) = &self.memories[memory].exposed else { return };
        let given: Vec<_> = engine.grants().into_iter().filter(|grant| grant.segment == *name).collect();
        if given.is_empty() {
            return;
        }
        let peer = given[self.rng.usize(..given.len())].peer;
        let epoch = self.memories[memory].epoch;
        let whose = |o: &&Opened| match peer {
            None => o.by_token,
            Some(peer) => !o.by_token && self.peers.get(&o.life) == Some(&peer),
        };
        let mine = self.opened.iter().filter(|o| o.memory == memory && o.epoch == epoch).filter(whose);
        let openings = mine.map(|o| o.number).collect();
        let grants = given.iter().filter(|grant| grant.peer == peer).map(|grant| grant.id).collect();
        self.revoking.push(Revoking { memory, epoch, grants, openings, of_token: peer.is_none() });
        self.go_on_with_grants(life, engine);
    }

    /// Goes on revoking grants on a life's regions.
    pub(super) fn go_on_with_grants(&mut self, life: usize, engine: &Engine) {
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.revoking)
            .into_iter()
            .partition(|r| self.memories[r.memory].life == life);
        self.revoking = others;
        for mut revoking in mine {
            let planted = self.net.lock().plant == Some(Plant::GrantGoesOn);
            let mut unknown = false;
            let mut still = |id| {
                if planted {
                    return false;
                }
                match engine.revoke_grant(id, Duration::ZERO) {
                    Ok(()) => false,
                    Err(orbit_te::Error::Memory(MemoryError::StillLeased { .. })) => true,
                    // It is gone with its session, or all of the region is being taken back: what is under way is not told here.
                    Err(_) => {
                        unknown = true;
                        false
                    }
                }
            };
            revoking.grants.retain(|id| still(*id));
            match revoking.grants.is_empty() {
                true if unknown => {}
                true => self.grants_are_over(&revoking, engine),
                false => self.revoking.push(revoking),
            }
        }
    }

    /// Nothing lands under these grants any more: the owner writes what transfers under them were about.
    fn grants_are_over(&mut self, revoking: &Revoking, engine: &Engine) {
        let Revoking { memory, epoch, openings, of_token, .. } = revoking;
        if self.memories[*memory].epoch != *epoch {
            return;
        }
        self.counts.revoked += 1;
        self.opened.iter_mut().filter(|o| openings.contains(&o.number)).for_each(|o| o.revoked = true);
        let mut over = Vec::new();
        for request in self.moving.iter_mut().flat_map(|m| &mut m.requests) {
            if openings.contains(&request.opening) && request.epoch == Some(*epoch) {
                request.epoch = None;
                over.push(request.remote.clone());
            }
        }
        for area in over {
            let bytes = self.fresh(area.length());
            self.poke(&area, &bytes);
        }
        if *of_token {
            self.expose_anew(*memory, engine);
        }
    }

    /// A new token, of a new grant.
    fn expose_anew(&mut self, memory: usize, engine: &Engine) {
        let Some((name, _)) = self.memories[memory].exposed.take() else { return };
        engine.withdraw(&name);
        self.expose(memory, &name, engine);
    }

    fn one_exposed(&mut self, life: usize) -> Option<usize> {
        let fits =
            |m: &Memory| m.life == life && m.exposed.is_some() && !m.retiring && !m.retired && !m.revoking;
        let mine: Vec<usize> = (0..self.memories.len()).filter(|&m| fits(&self.memories[m])).collect();
        (!mine.is_empty()).then(|| mine[self.rng.usize(..mine.len())])
    }

    pub(super) fn revoke(&mut self, life: usize, engine: &Engine) {
        if let Some(memory) = self.one_exposed(life) {
            self.memories[memory].revoking = true;
            self.go_on_revoking(memory, engine);
        }
    }

    pub(super) fn go_on_revoking(&mut self, memory: usize, engine: &Engine) {
        if engine.revoke(&self.memories[memory].handle, Duration::ZERO).is_err() {
            return;
        }
        self.counts.withdrawn += 1;
        self.memories[memory].revoking = false;
        self.renew(memory);
        self.expose_anew(memory, engine);
    }

    /// Nothing that was admitted before can land any more: the owner writes all of it.
    pub(super) fn renew(&mut self, memory: usize) {
        let bytes = self.fresh(self.memories[memory].shadow.expected.len());
        self.memories[memory].epoch += 1;
        self.memories[memory].renewed_ns = self.net.lock().now_ns;
        self.memories[memory].shadow.renew(bytes.clone());
        let of = &self.memories[memory];
        let whole = Area::new(memory, of.slot_bytes, vec![(0, bytes.len())]);
        self.poke(&whole, &bytes);
        let lost = |slot: &&mut Slot| **slot == Slot::Lost;
        self.memories[memory].slots.iter_mut().filter(lost).for_each(|slot| *slot = Slot::Free);
    }

    pub(super) fn retire(&mut self, life: usize, engine: &Engine) {
        if let Some(memory) = self.one_exposed(life) {
            self.memories[memory].retiring = true;
            self.go_on_retiring(memory, engine);
            self.register(life, engine, Access::SHARED);
        }
    }

    pub(super) fn go_on_retiring(&mut self, memory: usize, engine: &Engine) {
        if engine.retire(&self.memories[memory].handle, Duration::ZERO).is_err() {
            return;
        }
        self.counts.withdrawn += 1;
        self.memories[memory].retiring = false;
        self.memories[memory].retired = true;
        self.net.lock().map.given_back(self.memories[memory].address);
        self.renew(memory);
    }
}
