//! Lanes: the QPs of a transport, each with what it was given. Rule: a lane outlives its connection until all its WRs are over; a WR is over
//! by a CQE, or by the QP that is gone, and by nothing else.

use crate::handle::{NotFreed, Qp, QpDestroyed, Retention, Ticket};
use crate::send_queue::SendQueue;
use orbit_te_transport::LinkId;
use std::sync::Arc;
use std::time::Instant;

/// What a lane is for now.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Its connection is being made, or stands.
    Live,
    /// Its connection is over; its WRs are flushed, at the latest by then.
    Ending { due: Instant },
    /// The QP could not be destroyed; its WRs are over when it is gone.
    Stuck { retention: Arc<Retention>, ticket: Ticket },
}

/// A QP, and what it has under way.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) link: LinkId,
    /// Of which attempt of the link.
    pub(crate) attempt: u64,
    /// The number of our rail.
    pub(crate) rail: u8,
    /// None once it is destroyed, or retained.
    pub(crate) qp: Option<Qp>,
    pub(crate) queue: SendQueue,
    /// WRs that it holds.
    pub(crate) depth: u32,
    /// When a WR was last over, or the first of those under way was posted.
    pub(crate) progress: Instant,
    pub(crate) stage: Stage,
}

impl Lane {
    pub(crate) fn new(link: LinkId, (attempt, rail): (u64, u8), qp: Qp, depth: u32, now: Instant) -> Lane {
        Lane {
            link,
            attempt,
            rail,
            qp: Some(qp),
            queue: SendQueue::new(depth),
            depth,
            progress: now,
            stage: Stage::Live,
        }
    }

    /// How many more WRs it takes now, of so many at most.
    #[inline]
    pub(crate) fn room(&self, most: usize) -> usize {
        (self.depth.saturating_sub(self.queue.len()) as usize).min(most)
    }

    /// Destroys the QP. None: it is gone, and the WRs with it; otherwise where to look for it.
    pub(crate) fn destroy(&mut self, retention: &Arc<Retention>) -> Result<Option<QpDestroyed>, Ticket> {
        match self.qp.take().map(Qp::destroy) {
            None => Ok(None),
            Some(Ok(gone)) => Ok(Some(gone)),
            Some(Err(NotFreed { ticket, .. })) => {
                self.stage = Stage::Stuck { retention: retention.clone(), ticket };
                Err(ticket)
            }
        }
    }
}

/// The name of a lane's WR in its CQE: which lane, which use of its place, which WR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrName {
    pub(crate) lane: u16,
    pub(crate) turn: u16,
    pub(crate) number: u32,
}

impl WrName {
    #[inline]
    pub(crate) const fn to_u64(self) -> u64 {
        (self.lane as u64) << 48 | (self.turn as u64) << 32 | self.number as u64
    }

    pub(crate) const fn from_u64(wr_id: u64) -> WrName {
        WrName { lane: (wr_id >> 48) as u16, turn: (wr_id >> 32) as u16, number: wr_id as u32 }
    }
}

struct Place {
    turn: u16,
    lane: Option<Lane>,
}

/// All lanes of a transport.
#[derive(Default)]
pub(crate) struct Lanes {
    places: Vec<Place>,
    free: Vec<u16>,
}

impl Lanes {
    /// Takes a lane in; when there are too many it is dropped, and its QP with it.
    pub(crate) fn insert(&mut self, lane: Lane) -> Option<u16> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < usize::from(u16::MAX) => {
                self.places.push(Place { turn: 0, lane: None });
                (self.places.len() - 1) as u16
            }
            None => return None,
        };
        let place = &mut self.places[usize::from(at)];
        place.turn = place.turn.wrapping_add(1);
        place.lane = Some(lane);
        Some(at)
    }

    pub(crate) fn get_mut(&mut self, at: u16) -> Option<&mut Lane> {
        self.places.get_mut(usize::from(at))?.lane.as_mut()
    }

    /// A lane, and which use of its place it is.
    pub(crate) fn with_turn(&mut self, at: u16) -> Option<(&mut Lane, u16)> {
        let place = self.places.get_mut(usize::from(at))?;
        let turn = place.turn;
        place.lane.as_mut().map(|lane| (lane, turn))
    }

    /// The lane of a WR; none for one that is gone, and for one that has its place now.
    pub(crate) fn of(&mut self, name: WrName) -> Option<&mut Lane> {
        let place = self.places.get_mut(usize::from(name.lane)).filter(|place| place.turn == name.turn)?;
        place.lane.as_mut()
    }

    /// Lets a lane go.
    pub(crate) fn remove(&mut self, at: u16) -> Option<Lane> {
        let lane = self.places.get_mut(usize::from(at))?.lane.take();
        if lane.is_some() {
            self.free.push(at);
        }
        lane
    }

    /// Whether any WR is under way.
    pub(crate) fn any_under_way(&self) -> bool {
        self.places.iter().filter_map(|place| place.lane.as_ref()).any(|lane| !lane.queue.is_empty())
    }

    /// The numbers of all places that there are or were.
    pub(crate) fn numbers(&self) -> std::ops::Range<u16> {
        0..self.places.len() as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_went() {
        for (lane, turn, number) in [(0, 0, 0), (1, 2, 3), (u16::MAX, 0, u32::MAX), (0, u16::MAX, 7)] {
            let name = WrName { lane, turn, number };
            assert_eq!(WrName::from_u64(name.to_u64()), name);
        }
    }
}
