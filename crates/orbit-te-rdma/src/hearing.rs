//! What a peer's counterpart says. Rule: what it says is believed as far as it was asked; what belongs to nothing is left alone, and what can't
//! be understood ends the link.

use crate::entry::{Entry, Open, Shown};
use crate::handshake::{Input, Say};
use crate::link::Ending;
use crate::ops::OpSlot;
use crate::transport::{RdmaTransport, link_of};
use orbit_te_memory::Access;
use orbit_te_transport::{LinkId, OpError, OpErrorCode, TransportError};
use orbit_te_wire::rdma::{Body, KeyRefusal, KeySet, Message};
use orbit_te_wire::{Generation, RegionId};
use std::time::{Duration, Instant};

impl RdmaTransport {
    /// Takes one message.
    pub(crate) fn hear(&mut self, id: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        let Message { from, to, body, .. } = Message::decode(bytes)?;
        if matches!(body, Body::Close { .. }) {
            // Why it closes may be in a CQE that came before.
            self.poll_queues(now);
        }
        let Some(link) = link_of(&mut self.links, id) else { return Ok(()) };
        let is_of_now = from.incarnation == link.peer && to.incarnation == self.life;
        let say = match body {
            Body::Offer(_) => Say::Offer,
            Body::Answer(answer) => {
                link.answer = Some(answer);
                Say::Answer
            }
            Body::Ready => Say::Ready,
            Body::Close { code, words } => {
                tracing::debug!(%code, words, "rdma: the peer closes");
                Say::Close(code)
            }
            Body::Keys { request, keys } if is_of_now => {
                self.keys_came(id, request, &keys, now);
                return Ok(());
            }
            Body::KeysRefused { request, code } if is_of_now => {
                let asked = link.entries.asked(request);
                if let Some(Entry::Asked { waiting, .. }) = asked.and_then(|key| link.entries.remove(&key)) {
                    let error = OpError::new(refusal(code));
                    waiting.into_iter().for_each(|slot| self.give_up(slot, error, now));
                }
                return Ok(());
            }
            Body::Revoked { request, region, generation, key } if is_of_now => {
                let ending = Ending { region: region.0, generation: generation.0, key };
                link.entries.remove_open(|shown| ending.ends(shown));
                link.ending.push((request, ending));
                self.let_go(id);
                return Ok(());
            }
            Body::Fenced { request } if is_of_now => {
                if let Some((_, attempt)) = link.fence_asked.filter(|(asked, _)| *asked == request) {
                    self.fenced(id, attempt + 1);
                }
                return Ok(());
            }
            // What the peer has is asked for with each attempt, which may go well now.
            Body::Rails(_) if is_of_now => {
                self.hurry(id, now);
                return Ok(());
            }
            Body::Keys { .. }
            | Body::KeysRefused { .. }
            | Body::Revoked { .. }
            | Body::Fenced { .. }
            | Body::Rails(_) => {
                return Ok(());
            }
            Body::KeysWanted { .. } | Body::LetGo { .. } | Body::FenceWanted { .. } => {
                return Err(TransportError::RefusedByPeer("it says what only this side may say".to_string()));
            }
        };
        self.drive(id, Input::Heard { say, from, to }, now);
        Ok(())
    }

    /// Asks the owner for the keys of a region, for this op and those that come meanwhile.
    pub(crate) fn ask(&mut self, id: LinkId, key: Shown, slot: OpSlot, now: Instant) {
        let most = self.config.regions as usize;
        let Some(link) = link_of(&mut self.links, id) else {
            return self.ops.fail(slot, OpErrorCode::NoLink);
        };
        let (Some(ours), Some(theirs)) = (link.machine.machine().ours(), link.machine.machine().theirs())
        else {
            return self.give_up(slot, OpError::new(OpErrorCode::LinkBroken), now);
        };
        if link.entries.len() >= most {
            // Its owner remembers this side for it, and asks it to let go one day, which it does at once.
            if let Some(oldest) = link.entries.oldest() {
                link.entries.remove(&oldest);
            }
        }
        link.last_request = link.last_request.wrapping_add(1);
        let request = link.last_request;
        link.entries.insert(key, Entry::Asked { request, since: now, waiting: vec![slot] });
        let (region, generation) = (RegionId(key[0]), Generation(key[1]));
        let body = Body::KeysWanted { request, region, generation, key: key[2] };
        self.tell(id, Message::new(0, ours, theirs, body));
    }

    fn keys_came(&mut self, id: LinkId, request: u32, keys: &KeySet, now: Instant) {
        let Some(link) = link_of(&mut self.links, id) else { return };
        let remote_rail = link.attempt.as_ref().map(|attempt| attempt.remote_rail);
        let Some(shown) = link.entries.asked(request) else { return };
        let Some(Entry::Asked { waiting, since, .. }) = link.entries.remove(&shown) else { return };
        match remote_rail.and_then(|rail| keys.rail(rail)) {
            Some(on_rail) => {
                // From when it was asked on: the owner answered later, so that the right does not end later here than there.
                let expires = match keys.expires_ns {
                    0 => None,
                    left => since.checked_add(Duration::from_nanos(left)),
                };
                let access = Access::from_bits_truncate(keys.access);
                let open = Open { keys: on_rail.clone(), length: keys.length, access, expires };
                link.entries.insert(shown, Entry::Open(open));
                waiting.into_iter().for_each(|slot| self.place(slot, now));
            }
            None => {
                let error = OpError::new(OpErrorCode::Unsupported);
                waiting.into_iter().for_each(|slot| self.give_up(slot, error, now));
            }
        }
    }

    /// Tells owners of keys that end that nothing of this side's names them any more, where that is so.
    pub(crate) fn let_go(&mut self, id: LinkId) {
        let Some(link) = link_of(&mut self.links, id) else { return };
        let ends = std::mem::take(&mut link.ending);
        for (request, ending) in ends {
            let named = self.ops.find(|state| {
                state.op.link == id
                    && state.posted > 0
                    && ending.ends(&crate::entry::shown(&state.op.remote.key))
            });
            let Some(link) = link_of(&mut self.links, id) else { return };
            let machine = link.machine.machine();
            match (machine.ours(), machine.theirs()) {
                (Some(ours), Some(theirs)) if named.is_empty() => {
                    self.tell(id, Message::new(0, ours, theirs, Body::LetGo { request }));
                }
                // The connection is over, and its QPs with it.
                (None, _) | (_, None) => {}
                _ => link.ending.push((request, ending)),
            }
        }
    }
}

/// The error that a refusal means.
fn refusal(code: KeyRefusal) -> OpErrorCode {
    match code {
        KeyRefusal::UnknownRegion => OpErrorCode::UnknownRegion,
        KeyRefusal::StaleGeneration => OpErrorCode::StaleGeneration,
        KeyRefusal::BadKey => OpErrorCode::BadKey,
        KeyRefusal::GrantEnded => OpErrorCode::GrantEnded,
        KeyRefusal::AccessDenied => OpErrorCode::AccessDenied,
        KeyRefusal::ShuttingDown => OpErrorCode::PeerShuttingDown,
        KeyRefusal::NotRegistered | KeyRefusal::NoRoom | KeyRefusal::Busy | KeyRefusal::Other(_) => {
            OpErrorCode::Unsupported
        }
    }
}
