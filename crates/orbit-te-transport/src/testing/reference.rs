//! A tiny transport inside one process, which passes the suite: the proof that it can be passed, and the ground on which
//! plants are made. Rule: as plain as can be; a target copies in steps, only when it is served, so that ops have a middle.
//!
//! It shows nothing about sockets, about threads, or about speed.

#![allow(unsafe_code)]

mod domain;
mod pair;
mod target;

pub use domain::ReferenceDomain;
pub use pair::ReferencePair;

use crate::capability::Capabilities;
use crate::error::{OpError, OpErrorCode, TransportError};
use crate::mailbox::Notice;
use crate::op::{LinkId, Op, Token};
use crate::progress::{Arm, Completion, Event, Progress};
use crate::signs::{LinkLanes, Signs};
use crate::transport::Transport;
use orbit_te_memory::KindSet;
use orbit_te_wire::PeerId;
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::{Cable, Request, lock};

/// Its name.
pub const NAME: &str = "reference";

/// After so long without a peer, ops on a link fail.
const PATIENCE: Duration = Duration::from_millis(60);

/// How the reference behaves.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceOptions {
    /// How many ops it holds.
    pub max_ops: u32,
    /// How many bytes an op may have.
    pub max_op_bytes: u64,
    /// How many pieces a list may have.
    pub max_pieces: u32,
    /// How many bytes a list may have.
    pub max_list_bytes: u64,
    /// How many bytes of an op a target moves each time it is served.
    pub step_bytes: u64,
    /// How often a target is served before it begins with an op.
    pub delay: u32,
    /// Whether a link is made by words over the control link, one from each side.
    pub handshake: bool,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        ReferenceOptions {
            max_ops: 64,
            max_op_bytes: 64 << 20,
            max_pieces: 1024,
            max_list_bytes: 1 << 20,
            step_bytes: 128 << 10,
            delay: 1,
            handshake: false,
        }
    }
}

impl ReferenceOptions {
    /// Whether an op keeps the limits, and is as long as its pieces together. Which piece is bad is the target's to tell.
    fn permit_length(&self, op: &Op) -> bool {
        let length = op.local.length;
        let Some(pieces) = op.pieces else { return (1..=self.max_op_bytes).contains(&length) };
        // SAFETY: the op is being submitted, so its slices live.
        let table = unsafe { pieces.remote() };
        let total = table.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()));
        pieces.len() <= self.max_pieces as usize && length <= self.max_list_bytes && total == Some(length)
    }
}

/// What a link is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    /// Looks for its peer; ops wait.
    Opening { since: Instant },
    /// Moves bytes.
    Up,
}

/// How far the two sides are with their words, where they need some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    None,
    Asked,
    Answered,
}

/// The words.
pub(super) const HELLO: &[u8] = b"hello";
pub(super) const WELCOME: &[u8] = b"welcome";

struct Link {
    target: usize,
    state: LinkState,
    words: Words,
    waiting: VecDeque<Op>,
}

/// The initiator's side of the reference transport.
pub struct Reference {
    options: ReferenceOptions,
    cable: Arc<Cable>,
    wake: UnixStream,
    links: HashMap<LinkId, Link>,
    next_link: u32,
    /// Accepted and not given out.
    held: HashMap<Token, LinkId>,
    done: VecDeque<Completion>,
    closed: bool,
}

impl Reference {
    fn new(options: ReferenceOptions, cable: Arc<Cable>, wake: UnixStream) -> Reference {
        let (links, held, done) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Reference { options, cable, wake, links, next_link: 0, held, done, closed: false }
    }

    fn end(&mut self, token: Token, code: OpErrorCode) {
        self.end_touched(token, code, matches!(code, OpErrorCode::Cancelled | OpErrorCode::LinkBroken));
    }

    /// `touched`: the target may have come some way with it; how far is not looked up.
    fn end_touched(&mut self, token: Token, code: OpErrorCode, touched: bool) {
        self.done.push_back(Completion { token, result: Err(OpError::new(code)), bytes: 0, touched });
    }

    /// Ends all ops of a link; what the target was doing for it has ended when this returns.
    fn end_all(&mut self, link: LinkId, code: OpErrorCode) {
        {
            let mut state = lock(&self.cable.state);
            state.requests.retain(|request| request.op.link != link);
            let finished = std::mem::take(&mut state.replies);
            self.done.extend(finished);
        }
        let ended: Vec<_> =
            self.held.iter().filter(|(_, of)| **of == link).map(|(token, _)| *token).collect();
        for token in ended {
            if !self.done.iter().any(|completion| completion.token == token) {
                // A link that never stood has begun with nothing.
                self.end_touched(token, code, code != OpErrorCode::Unreachable);
            }
        }
        if let Some(link) = self.links.get_mut(&link) {
            link.waiting.clear();
        }
    }

    fn tend_links(&mut self, now: Instant, out: &mut Progress) {
        let cut = std::mem::take(&mut lock(&self.cable.state).cut);
        for link in cut {
            let Some(state) = self.links.get_mut(&link) else { continue };
            let was_up =
                std::mem::replace(&mut state.state, LinkState::Opening { since: now }) == LinkState::Up;
            state.words = Words::None;
            self.end_all(link, OpErrorCode::LinkBroken);
            if was_up {
                let source = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                let error = TransportError::Io { what: "the link was cut".to_string(), source };
                out.events.push(Event::LinkDown { link, error });
            }
        }
        let opening: Vec<_> =
            self.links.iter().filter(|(_, l)| l.state != LinkState::Up).map(|(id, _)| *id).collect();
        for id in opening {
            let Some(link) = self.links.get_mut(&id) else { continue };
            if link.target < self.cable.targets && self.options.handshake && link.words != Words::Answered {
                if link.words == Words::None {
                    link.words = Words::Asked;
                    out.events.push(Event::Control { link: id, bytes: HELLO.to_vec() });
                }
            } else if link.target < self.cable.targets {
                link.state = LinkState::Up;
                let (target, delay) = (link.target, self.options.delay);
                let requests = link.waiting.drain(..).map(|op| Request::new(op, target, delay));
                lock(&self.cable.state).requests.extend(requests);
                out.events.push(Event::LinkUp { link: id });
            } else if matches!(link.state, LinkState::Opening { since } if now >= since + PATIENCE) {
                link.state = LinkState::Opening { since: now };
                self.end_all(id, OpErrorCode::Unreachable);
            }
        }
    }

    fn take(&mut self, op: &Op, now: Instant) {
        self.held.insert(op.token, op.link);
        if self.closed {
            return self.end(op.token, OpErrorCode::Closed);
        }
        let Some(link) = self.links.get_mut(&op.link) else {
            return self.end(op.token, OpErrorCode::NoLink);
        };
        if !self.options.permit_length(op) {
            return self.end(op.token, OpErrorCode::BadLength);
        }
        match link.state {
            LinkState::Up => {
                let request = Request::new(*op, link.target, self.options.delay);
                lock(&self.cable.state).requests.push_back(request);
            }
            LinkState::Opening { .. } => {
                if link.waiting.is_empty() {
                    link.state = LinkState::Opening { since: now };
                }
                link.waiting.push_back(*op);
            }
        }
    }

    fn give_up(&mut self, token: Token) {
        let Some(link) = self.held.get(&token) else { return };
        let mut gone = false;
        if let Some(link) = self.links.get_mut(link) {
            let before = link.waiting.len();
            link.waiting.retain(|op| op.token != token);
            gone = link.waiting.len() < before;
        }
        {
            let mut state = lock(&self.cable.state);
            let before = state.requests.len();
            state.requests.retain(|request| request.op.token != token);
            gone |= state.requests.len() < before;
        }
        if gone {
            self.end(token, OpErrorCode::Cancelled);
        }
    }
}

// SAFETY: the promises, by number. 1: a token is in `held` from acceptance to its completion, and every way out of
// `requests` or `waiting` puts one completion into `replies` or `done`. 2: a target puts the completion into `replies`
// after the last copy. 3 and 4: all copies are made under the lock of the cable's state, for ops that are in `requests`;
// an op is taken out under the same lock before its completion is made, whatever the reason; ends concern the ops of one
// link or token.
unsafe impl Transport for Reference {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            read: true,
            write: true,
            kinds: KindSet::HOST,
            vanishing: true,
            max_op_bytes: self.options.max_op_bytes,
            max_pieces: self.options.max_pieces,
            max_list_bytes: self.options.max_list_bytes,
            max_ops: self.options.max_ops,
            needs_target_cpu: true,
            moves_by_calls: false,
            admits: true,
            fences: true,
            checksums: true,
            notifications: false,
        }
    }

    fn connect(&mut self, _peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError> {
        let &[target] = address else {
            let reason = format!("it has {} bytes and should have one", address.len());
            return Err(TransportError::BadAddress { transport: NAME, reason });
        };
        self.next_link += 1;
        let id = LinkId { slot: 0, generation: self.next_link * 2 };
        let state = LinkState::Opening { since: now };
        let (target, words) = (usize::from(target), Words::None);
        self.links.insert(id, Link { target, state, words, waiting: VecDeque::new() });
        Ok(id)
    }

    fn deliver(&mut self, link: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        let known = self.links.get_mut(&link).ok_or(TransportError::NoLink { transport: NAME })?;
        match (bytes, known.words) {
            (WELCOME, Words::Asked) => known.words = Words::Answered,
            // The link was cut after it had asked: the answer to its next question comes.
            (WELCOME, _) => {}
            _ => {
                self.disconnect(link, now);
                return Err(TransportError::RefusedByPeer("it says what it should not".to_string()));
            }
        }
        Ok(())
    }

    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize {
        let room = (self.options.max_ops as usize).saturating_sub(self.held.len());
        let taken = room.min(ops.len());
        for op in &ops[..taken] {
            self.take(op, now);
        }
        taken
    }

    unsafe fn notify(&mut self, _: &Notice, _: Instant) -> bool {
        false
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, _now: Instant) {
        let given_up: Vec<Token> = self.held.keys().filter(|t| tokens.contains(t)).copied().collect();
        given_up.into_iter().for_each(|token| self.give_up(token));
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        let events = out.events.len();
        self.tend_links(now, out);
        let replies = std::mem::take(&mut lock(&self.cable.state).replies);
        self.done.extend(replies);
        let count = budget.min(self.done.len());
        for completion in self.done.drain(..count) {
            self.held.remove(&completion.token);
            out.completions.push(completion);
        }
        count > 0 || out.events.len() > events
    }

    fn arm(&mut self, now: Instant) -> Arm {
        let mut sink = [0; 64];
        while matches!(self.wake.read(&mut sink), Ok(count) if count > 0) {}
        let state = lock(&self.cable.state);
        let reachable = |link: &Link| link.target < self.cable.targets;
        let may_go_on = |link: &Link| {
            let asked = self.options.handshake && link.words == Words::Asked;
            link.state != LinkState::Up && reachable(link) && !asked
        };
        let ready = !self.done.is_empty() || !state.replies.is_empty() || !state.cut.is_empty();
        if ready || self.links.values().any(may_go_on) {
            return Arm::Ready;
        }
        let given_up = |link: &Link| match link.state {
            LinkState::Opening { since } if !link.waiting.is_empty() && !reachable(link) => {
                Some((since + PATIENCE).max(now))
            }
            _ => None,
        };
        Arm::Sleep { fd: Some(self.wake.as_raw_fd()), until: self.links.values().filter_map(given_up).min() }
    }

    fn lanes(&self, link: LinkId, _now: Instant) -> Option<LinkLanes> {
        let link = self.links.get(&link)?;
        // What waits for a peer that is nowhere fails once in a while, and nothing is known in between.
        Some(LinkLanes { up: u32::from(link.state == LinkState::Up), wanted: 1, unreachable: false })
    }

    fn signs(&mut self, _link: LinkId, _now: Instant) -> Signs {
        Signs::default()
    }

    fn disconnect(&mut self, link: LinkId, _now: Instant) {
        self.end_all(link, OpErrorCode::NoLink);
        self.links.remove(&link);
    }

    fn close(&mut self, _now: Instant) {
        self.closed = true;
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            self.end_all(link, OpErrorCode::Closed);
        }
        self.links.clear();
    }

    fn is_drained(&self) -> bool {
        self.held.is_empty()
    }
}
