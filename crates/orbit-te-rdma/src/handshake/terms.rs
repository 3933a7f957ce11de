//! What offers and answers hold: which rails meet, by which GIDs, and how their QPs are set up. Rule: the side that answers chooses; the
//! side that offered checks the choice against what it offered, and takes nothing on trust.

use crate::attributes::{Agreed, Quality, agree, path};
use crate::gid::{Candidate, candidates};
use crate::handle::Address;
use crate::rails::{Preferences, WhyNot, pair};
use orbit_te_wire::rdma::{Answer, CloseCode, Lane, Offer, Queue, QueueArray, Rail, Side};
use thiserror::Error;

/// What this side goes by.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// What it has, as the peer is told.
    pub side: &'a Side,
    /// How it pairs rails.
    pub preferences: &'a Preferences,
    /// What its paths are to be like.
    pub quality: &'a Quality,
    /// How many attempts came to nothing since the last connection: each takes the next pair of GIDs, round and round.
    pub failed_attempts: usize,
}

/// Two rails that meet, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The number of our rail.
    pub ours: u8,
    /// The peer's QPs, and the number of its rail. Ours are as many.
    pub theirs: QueueArray,
    /// The GIDs, and in its words why these.
    pub gids: Candidate,
    /// What both rails can do together.
    pub agreed: Agreed,
    /// Where our QPs send to.
    pub path: Address,
}

/// Why an offer or an answer is not taken: what the close says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{code} ({words})")]
pub struct Unfit {
    /// For a program.
    pub code: CloseCode,
    /// For a person: what exactly.
    pub words: String,
}

/// Our offer with these QPs, one array for each rail that is offered.
pub fn offer(terms: &Terms<'_>, arrays: Vec<QueueArray>) -> Offer {
    Offer { side: terms.side.clone(), arrays }
}

/// Judges an offer: which of our rails meet which of those that are offered.
///
/// # Errors
/// [`Unfit`] where none does.
pub fn judge_offer(terms: &Terms<'_>, offer: &Offer) -> Result<Vec<Meeting>, Unfit> {
    let offered = offer.arrays.iter().filter_map(|array| offer.side.rail(array.rail));
    let theirs: Vec<Rail> = offered.cloned().collect();
    let pairing = pair(&terms.side.rails, &theirs, terms.preferences);
    let (mut meetings, mut no_path) = (Vec::new(), None);
    for found in &pairing.pairs {
        let at = terms.failed_attempts % found.gids.len().max(1);
        let gids = found.gids.get(at);
        let rails = (terms.side.rail(found.ours), offer.side.rail(found.theirs));
        let array = offer.arrays.iter().find(|array| array.rail == found.theirs);
        if let (Some(gids), (Some(ours), Some(theirs)), Some(array)) = (gids, rails, array) {
            match meet(terms, &offer.side, (ours, theirs), *gids, array) {
                Ok(meeting) => meetings.push(meeting),
                Err(why) => no_path = Some(why),
            }
        }
    }
    if !meetings.is_empty() {
        return Ok(meetings);
    }
    if let Some(why) = no_path {
        return Err(why);
    }
    let gids_only = |why: &WhyNot| matches!(why, WhyNot::Gid(_));
    let code = match pairing.refused.iter().all(|refused| gids_only(&refused.why)) {
        true if !pairing.refused.is_empty() => CloseCode::NoCommonGid,
        _ => CloseCode::NoCommonRail,
    };
    let reasons = pairing.refused.iter().map(|r| format!("rail {} with {}: {}", r.theirs, r.ours, r.why));
    let mut words = reasons.collect::<Vec<_>>().join("; ");
    if words.is_empty() {
        words = "a side has no rail at all".to_string();
    }
    Err(Unfit { code, words: cut(words) })
}

/// The answer to an offer, with our QPs for each meeting in its order: as many as are offered.
///
/// # Errors
/// [`Unfit`] where a list is not as long as it has to be, which is this side's own mistake.
pub fn answer(terms: &Terms<'_>, meetings: &[Meeting], queues: Vec<Vec<Queue>>) -> Result<Answer, Unfit> {
    let fits = queues.len() == meetings.len()
        && meetings.iter().zip(&queues).all(|(meeting, ours)| meeting.theirs.queues.len() == ours.len());
    if !fits {
        return unfit(CloseCode::DeviceRefused, "not as many QPs were made as were offered");
    }
    let lanes = meetings.iter().zip(queues).map(|(meeting, queues)| Lane {
        offered: meeting.theirs.rail,
        offered_gid: meeting.gids.remote.index,
        answered_gid: meeting.gids.local.index,
        array: QueueArray { rail: meeting.ours, queues },
    });
    Ok(Answer { side: terms.side.clone(), lanes: lanes.collect() })
}

/// Judges the answer to our offer with these arrays.
///
/// # Errors
/// [`Unfit`] for an answer that is not one to that offer, or that names rails or GIDs that can't meet.
pub fn judge_answer(
    terms: &Terms<'_>,
    offered: &[QueueArray],
    answer: &Answer,
) -> Result<Vec<Meeting>, Unfit> {
    let mut meetings = Vec::new();
    for lane in &answer.lanes {
        let array = offered.iter().find(|array| array.rail == lane.offered);
        let rails = (terms.side.rail(lane.offered), answer.side.rail(lane.array.rail));
        let (Some(array), (Some(ours), Some(theirs))) = (array, rails) else {
            return unfit(CloseCode::Protocol, "the answer is for a rail that was not offered");
        };
        if array.queues.len() != lane.array.queues.len() {
            return unfit(CloseCode::Protocol, "the answer has not as many QPs as were offered");
        }
        let possible = candidates(ours, theirs, terms.preferences.gid_index)
            .map_err(|why| Unfit { code: CloseCode::NoCommonGid, words: cut(why.to_string()) })?;
        let chosen = possible
            .into_iter()
            .find(|gids| gids.local.index == lane.offered_gid && gids.remote.index == lane.answered_gid);
        let Some(gids) = chosen else {
            return unfit(CloseCode::NoCommonGid, "the answer names GIDs that can't meet");
        };
        meetings.push(meet(terms, &answer.side, (ours, theirs), gids, &lane.array)?);
    }
    if meetings.is_empty() {
        return unfit(CloseCode::Protocol, "the answer has no lanes");
    }
    Ok(meetings)
}

fn meet(
    terms: &Terms<'_>,
    their_side: &Side,
    (ours, theirs): (&Rail, &Rail),
    gids: Candidate,
    array: &QueueArray,
) -> Result<Meeting, Unfit> {
    let agreed = agree(
        (ours, &terms.side.limits, terms.side.features),
        (theirs, &their_side.limits, their_side.features),
    );
    let path = path(ours, theirs, &gids, terms.quality).map_err(|code| Unfit {
        code,
        words: format!("rail {} has no address that rail {} can send to", theirs.number, ours.number),
    })?;
    Ok(Meeting { ours: ours.number, theirs: array.clone(), gids, agreed, path })
}

fn unfit<T>(code: CloseCode, words: &str) -> Result<T, Unfit> {
    Err(Unfit { code, words: words.to_string() })
}

/// Cuts words to what a close may carry.
fn cut(mut words: String) -> String {
    let mut end = words.len().min(orbit_te_wire::rdma::MAX_WORDS_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words.truncate(end);
    words
}
