//! One peer of the side that is reached: its QPs here, and the keys it was given. Rule: a hold is let go when the peer has let go of the keys,
//! when those keys are dead, or when its QPs are gone; whichever comes first.

use crate::adapter::{Adapters, Used};
use crate::attributes;
use crate::completion::Wc;
use crate::handle::{Cq, Qp, QpCaps, Retention, Ticket};
use crate::handshake::{self, Action, Input, Machine, Pace, Say as Words, Terms, Timed, Unfit};
use crate::link::MOST_SENDS;
use crate::memory::{Mrs, Stuck};
use crate::notices::Notice;
use crate::postbox::{Arrived, Handed, Line, Postbox};
use orbit_te_memory::{Access, Hold, Recalled};
use orbit_te_transport::Say;
use orbit_te_wire::rdma::{Answer, Body, CloseCode, Features, KeySet, Message, Offer, Queue, Side, Stamp};
use orbit_te_wire::{Generation, Incarnation, PeerId, RegionId, SessionId, WireError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Questions of one peer that wait for QPs which can't be destroyed; of more, the oldest is forgotten.
const FENCES: usize = 16;
/// How often a QP or a key that could not be taken back is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Keys that the peer has.
pub(crate) struct Given {
    hold: Hold,
    region: RegionId,
    generation: Generation,
    key: u64,
    /// Registrations for these keys alone, and when they end by themselves.
    own: Option<(Mrs, Option<Instant>)>,
    /// They end: the number of the notice, and how long the peer may take.
    ending: Option<(u32, Instant)>,
    /// They are over: nothing is held any more.
    over: bool,
}

impl Given {
    pub(crate) fn new(
        hold: Hold,
        (region, generation, key): (RegionId, Generation, u64),
        own: Option<(Mrs, Option<Instant>)>,
    ) -> Given {
        Given { hold, region, generation, key, own, ending: None, over: false }
    }
}

/// How long keys hold from now on, as a peer is told: 0 for without end.
pub(crate) fn lasts(left: Option<Duration>) -> u64 {
    left.map_or(0, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX).max(1))
}

/// QPs on one rail.
struct OnRail {
    used: Used,
    qps: Vec<Qp>,
}

struct Queues {
    attempt: u64,
    rails: Vec<OnRail>,
    /// The way of its notices, if it has one.
    line: Option<Line>,
    answer: Answer,
    up_since: Option<Instant>,
}

/// A peer.
pub(crate) struct Guest {
    life: Incarnation,
    theirs: Incarnation,
    session: SessionId,
    peer: PeerId,
    say: Arc<dyn Say>,
    adapters: Arc<Adapters>,
    /// Where its notices come in; none where they don't.
    postbox: Option<Arc<Postbox>>,
    machine: Timed,
    /// The offer that is being answered.
    offer: Option<Offer>,
    queues: Option<Queues>,
    /// By rail: where CQEs of its QPs go, of which there are none but for failures.
    cqs: Vec<Option<Cq>>,
    given: Vec<Given>,
    /// Keys of a grant that are over and can't be taken back yet, and what they reach.
    kept: Vec<(Vec<Stuck>, Hold)>,
    /// QPs that could not be destroyed: until they are gone the peer can touch what it has keys of.
    stuck: Vec<(Arc<Retention>, Ticket)>,
    /// Who asks whether something can still land: the number of the question, and from which attempt.
    fences: Vec<(u32, Stamp)>,
    notices: u32,
    /// Connections one after the other by which the peer was not heard: each takes the next GIDs.
    unheard: usize,
    leaving: bool,
    actions: Vec<Action>,
}

impl Guest {
    pub(crate) fn new(
        life: Incarnation,
        theirs: Incarnation,
        (session, peer): (SessionId, PeerId),
        say: Arc<dyn Say>,
        (adapters, postbox): (Arc<Adapters>, Option<Arc<Postbox>>),
        now: Instant,
    ) -> Guest {
        let mut guest = Guest {
            life,
            theirs,
            session,
            peer,
            say,
            postbox,
            machine: Timed::new(Machine::new(life, false, MOST_SENDS), Pace::default()),
            offer: None,
            queues: None,
            cqs: adapters.all().iter().map(|_| None).collect(),
            adapters,
            given: Vec::new(),
            kept: Vec::new(),
            stuck: Vec::new(),
            fences: Vec::new(),
            notices: 0,
            unheard: 0,
            leaving: false,
            actions: Vec::new(),
        };
        guest.drive(Input::LinkUp { peer: theirs }, now);
        guest
    }

    /// How many keys the peer has, or may still have.
    pub(crate) fn given(&self) -> usize {
        self.given.len() + self.kept.len()
    }

    /// Keys of a region that the peer has already and asks for again, because it has forgotten them, or because they would have ended: nothing
    /// is registered, and nothing more is held. They last as long as the grant does now. None: it has none; `Some(None)`: it has the region's.
    pub(crate) fn again(
        &mut self,
        shown: (RegionId, Generation, u64),
        granted: Option<(Access, Option<Duration>)>,
        now: Instant,
    ) -> Option<Option<KeySet>> {
        let same = |given: &&mut Given| {
            (given.region, given.generation, given.key) == shown && given.ending.is_none() && !given.over
        };
        let given = self.given.iter_mut().find(same)?;
        Some(given.own.as_mut().zip(granted).map(|((own, ends), (access, left))| {
            *ends = left.map(|left| now + left);
            own.remote(access, lasts(left))
        }))
    }

    pub(crate) fn give(&mut self, given: Given) {
        self.given.push(given);
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_over(&self) -> bool {
        self.leaving && self.queues.is_none() && self.given() == 0 && self.stuck.is_empty()
    }

    /// Takes a message of the handshake.
    pub(crate) fn hear(&mut self, message: Message, now: Instant) {
        let say = match message.body {
            Body::Offer(offer) => {
                self.offer = Some(offer);
                Words::Offer
            }
            Body::Answer(_) => Words::Answer,
            Body::Ready => Words::Ready,
            Body::Close { code, .. } => Words::Close(code),
            _ => return,
        };
        self.drive(Input::Heard { say, from: message.from, to: message.to }, now);
    }

    /// Answers a question about keys.
    pub(crate) fn answer(&mut self, to: Stamp, body: Body) {
        let machine = self.machine.machine();
        if let Some(ours) = machine.ours() {
            self.tell(ours, to, body);
        }
    }

    /// The peer has let go of keys that end.
    pub(crate) fn let_go(&mut self, request: u32) {
        let ended = |given: &&mut Given| given.ending.is_some_and(|(number, _)| number == request);
        self.given.iter_mut().filter(ended).for_each(|given| given.over = true);
    }

    /// The peer asks whether something of an attempt of its that is over can still land.
    pub(crate) fn fence(&mut self, request: u32, from: Stamp, now: Instant) {
        if self.machine.machine().theirs() == Some(from) {
            self.end(CloseCode::Gone, now);
        }
        if self.fences.len() == FENCES {
            self.fences.remove(0);
        }
        self.fences.push((request, from));
        self.answer_fences();
    }

    /// Nothing lands any more, when no QP is left that it could come by.
    fn answer_fences(&mut self) {
        if self.stuck.is_empty() {
            let fences = std::mem::take(&mut self.fences);
            for (request, asker) in fences {
                self.tell(Stamp::none(self.life), asker, Body::Fenced { request });
            }
        }
    }

    /// Keys of what ends are taken back: first the peer is told, and later they are made dead.
    pub(crate) fn recall(&mut self, what: Recalled, now: Instant) {
        let due = now + self.adapters.config().revoke_timeout;
        let ends: Vec<usize> = (0..self.given.len()).filter(|at| what.ends(&self.given[*at].hold)).collect();
        ends.into_iter().for_each(|at| self.revoke(at, due));
    }

    fn revoke(&mut self, at: usize, due: Instant) {
        let Some(given) = self.given.get_mut(at).filter(|given| given.ending.is_none()) else { return };
        self.notices = self.notices.wrapping_add(1);
        let request = self.notices;
        given.ending = Some((request, due));
        let body = Body::Revoked {
            request,
            region: given.region,
            generation: given.generation,
            key: Some(given.key),
        };
        let machine = self.machine.machine();
        if let (Some(ours), Some(theirs)) = (machine.ours(), machine.theirs()) {
            self.tell(ours, theirs, body);
        }
    }

    /// Its session has ended.
    pub(crate) fn leave(&mut self, now: Instant) {
        if !self.leaving {
            self.leaving = true;
            self.drive(Input::Disconnect, now);
        }
    }

    /// Ends its connection, which may be made again.
    pub(crate) fn end(&mut self, code: CloseCode, now: Instant) {
        if let Some(attempt) = self.queues.as_ref().map(|queues| queues.attempt) {
            self.drive(Input::Failed { attempt, code }, now);
        }
    }

    /// Something has happened to the rails: a connection that it happened to ends, and the peer makes it anew.
    pub(crate) fn happened(&mut self, notice: Notice, now: Instant) {
        let adapters = self.adapters.clone();
        let is_of = |rail: usize, device: u8| {
            adapters.all().get(rail).is_some_and(|adapter| adapter.device_number() == device)
        };
        let code = self
            .queues
            .as_ref()
            .and_then(|queues| queues.rails.iter().find_map(|on| self.hit_by(notice, on)));
        if let Some(code) = code.or_else(|| self.line_is_hit(notice).then_some(CloseCode::QueueFailed)) {
            tracing::info!(peer = %self.peer, ?notice, %code, "rdma: a connection ends by what happened to its rail");
            self.end(code, now);
        }
        // Those that are of no use any more; QPs that are still there hold theirs.
        for (rail, place) in self.cqs.iter_mut().enumerate() {
            place.take_if(|cq| match notice {
                Notice::Completions { cookie } => cq.cookie() == cookie,
                Notice::DeviceLost { device } => is_of(rail, device),
                Notice::Missed => true,
                _ => false,
            });
        }
    }

    /// Whether its notices can't come any more after this.
    fn line_is_hit(&self, notice: Notice) -> bool {
        let Some(line) = self.queues.as_ref().and_then(|queues| queues.line.as_ref()) else { return false };
        match notice {
            Notice::Queue { device, number } => {
                let of =
                    self.adapters.get(line.rail).is_some_and(|adapter| adapter.device_number() == device);
                of && line.letterbox.qp().is_some_and(|qp| qp.number() == number)
            }
            Notice::Completions { cookie } => line.cookie == cookie,
            _ => false,
        }
    }

    /// The queue for notices of a rail has failed.
    pub(crate) fn notices_failed(&mut self, rail: u8, now: Instant) {
        if self.queues.as_ref().and_then(|queues| queues.line.as_ref()).is_some_and(|line| line.rail == rail)
        {
            self.end(CloseCode::QueueFailed, now);
        }
    }

    /// A CQE of its notices: the notice that has come.
    pub(crate) fn arrived(&mut self, wc: &Wc, now: Instant) -> Option<Arrived> {
        let session = self.session;
        let line = self.queues.as_mut()?.line.as_mut().filter(|line| line.is_of(wc))?;
        match line.arrived(session, wc) {
            Ok(arrived) => arrived,
            Err(why) => {
                tracing::debug!(peer = %self.peer, why, "rdma: notices of a peer can't come any more");
                self.end(CloseCode::QueueFailed, now);
                None
            }
        }
    }

    /// A notice by this line was handed in, or was none: its sender is told.
    pub(crate) fn handed(&mut self, line: u32, handed: Result<Handed, WireError>, now: Instant) {
        let Some(line) =
            self.queues.as_mut().and_then(|queues| queues.line.as_mut()).filter(|l| l.number == line)
        else {
            return;
        };
        let (code, why) = match handed {
            Ok(handed) => match line.answer(&handed) {
                Ok(()) => return,
                Err(errno) => (CloseCode::DeviceRefused, errno.to_string()),
            },
            Err(error) => (CloseCode::Protocol, error.to_string()),
        };
        tracing::info!(peer = %self.peer, why, %code, "rdma: a connection ends by a notice");
        self.end(code, now);
    }

    /// Why a connection can't go on after this, if it has QPs on a rail that it happened to.
    fn hit_by(&self, notice: Notice, on: &OnRail) -> Option<CloseCode> {
        let adapter = self.adapters.get(on.used.rail())?;
        let (rail, device) = (adapter.number, adapter.device_number());
        let (hit, code) = match notice {
            Notice::RailDown { rail: down } => (down == rail, CloseCode::RailDown),
            Notice::RailAgain { .. } => return None,
            Notice::Addresses { rail: changed } => {
                let still = changed != rail || adapter.is_still(&on.used, self.adapters.config());
                (!still, CloseCode::AddressChanged)
            }
            Notice::Queue { device: of, number } => {
                let ours = of == device && on.qps.iter().any(|qp| qp.number() == number);
                (ours, CloseCode::QueueFailed)
            }
            Notice::Completions { cookie } => {
                let ours = self.cqs[usize::from(rail)].as_ref().is_some_and(|cq| cq.cookie() == cookie);
                (ours, CloseCode::QueueFailed)
            }
            Notice::DeviceLost { device: lost } => (lost == device, CloseCode::RailDown),
            Notice::Missed => (true, CloseCode::QueueFailed),
        };
        hit.then_some(code)
    }

    /// Tells the peer what there is now, so that it tries again what has failed.
    pub(crate) fn tell_rails(&self, side: &Side) {
        let (from, to) = (Stamp::none(self.life), Stamp::none(self.theirs));
        self.tell(from, to, Body::Rails(side.clone()));
    }

    /// When it is to be looked after.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        // Keys that others have as well end with its QPs, which are tried again in their own time.
        let only_stuck = self.queues.is_none() && !self.stuck.is_empty();
        let given = self.given.iter().flat_map(|given| {
            let waits = only_stuck && given.own.is_none();
            let ends = given.ending.map(|(_, due)| due).filter(|_| !waits);
            let expires = given.own.as_ref().and_then(|(_, expires)| *expires).filter(|_| ends.is_none());
            [ends, expires].into_iter().flatten()
        });
        let retry = (!self.stuck.is_empty() || !self.kept.is_empty()).then_some(now + RETRY);
        given.chain(self.machine.due()).chain(retry).min()
    }

    /// Does what is due; whether anything was. What is not held any more goes to `gone`.
    pub(crate) fn look_after(&mut self, now: Instant, gone: &mut Vec<Hold>) -> bool {
        let mut any = false;
        if self.machine.due().is_some_and(|due| due <= now) {
            self.drive(Input::Time, now);
            any = true;
        }
        self.stuck.retain(|(retention, ticket)| {
            retention.sweep();
            retention.holds(*ticket)
        });
        self.answer_fences();
        for (mut stuck, hold) in std::mem::take(&mut self.kept) {
            stuck.retain(Stuck::stays);
            match stuck.is_empty() {
                true => gone.push(hold),
                false => self.kept.push((stuck, hold)),
            }
        }
        let expired = |given: &Given| {
            given.ending.is_none() && given.own.as_ref().and_then(|(_, at)| *at).is_some_and(|at| at <= now)
        };
        let due = now + self.adapters.config().revoke_timeout;
        for at in 0..self.given.len() {
            if expired(&self.given[at]) {
                self.revoke(at, due);
                any = true;
            }
        }
        if self.queues.is_none() && self.stuck.is_empty() {
            // Nobody reaches anything by what has been given.
            self.given.iter_mut().for_each(|given| given.over = true);
        }
        let late = |given: &Given| given.ending.is_some_and(|(_, due)| due <= now) && !given.over;
        if self.queues.is_some() && self.given.iter().any(|given| late(given) && given.own.is_none()) {
            // The keys are not for this peer alone: it loses its QPs.
            tracing::warn!(peer = %self.peer, "rdma: a peer does not let go of keys that end, and loses its connection");
            self.end(CloseCode::QueueFailed, now);
            any = true;
        }
        for given in &mut self.given {
            // Those that were made for it are made dead.
            given.over |= late(given) && given.own.is_some();
        }
        let all = std::mem::take(&mut self.given);
        for given in all {
            if !given.over {
                self.given.push(given);
                continue;
            }
            any = true;
            let stuck = given.own.map(|(own, _)| own.deregister(&self.adapters)).unwrap_or_default();
            if !stuck.is_empty() {
                // The keys may still work: what they reach is held until they do not.
                tracing::error!(peer = %self.peer, "rdma: keys of a grant can't be taken back; the region is kept");
                self.kept.push((stuck, given.hold));
                continue;
            }
            gone.push(given.hold);
        }
        any
    }

    fn drive(&mut self, input: Input, now: Instant) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut actions = std::mem::take(&mut self.actions);
            if let Err(fault) = self.machine.take(input, now, &mut actions) {
                tracing::warn!(peer = %self.peer, %fault, "rdma: the handshake with a peer failed");
            }
            for action in actions.drain(..) {
                inputs.extend(self.act(action, now));
            }
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action, now: Instant) -> Option<Input> {
        match action {
            Action::Answer { attempt, .. } => Some(match self.make(attempt) {
                Ok(()) => Input::Made { attempt },
                Err((code, why)) => {
                    tracing::info!(peer = %self.peer, why, %code, "rdma: a peer is not let in");
                    Input::Failed { attempt, code }
                }
            }),
            // This side only answers.
            Action::Make { attempt } | Action::Wire { attempt, .. } => {
                Some(Input::Failed { attempt, code: CloseCode::Unwanted })
            }
            Action::Send { say, from, to } => {
                let body = match say {
                    Words::Answer => self.queues.as_ref().map(|queues| Body::Answer(queues.answer.clone())),
                    Words::Ready => Some(Body::Ready),
                    Words::Close(code) => Some(Body::Close { code, words: code.to_string() }),
                    Words::Offer => None,
                };
                if let Some(body) = body {
                    self.tell(from, to, body);
                }
                None
            }
            Action::Destroy { attempt, code, was_up, .. } => {
                tracing::debug!(peer = %self.peer, %code, "rdma: a connection is over");
                let since = self.queues.as_ref().and_then(|queues| queues.up_since);
                let stood = since.is_some_and(|since| since + Pace::default().settled <= now);
                let unheard = code == CloseCode::TimedOut && was_up && !stood;
                self.unheard = if unheard { self.unheard.saturating_add(1) } else { 0 };
                self.destroy(attempt);
                None
            }
            Action::Up { .. } => {
                if let Some(queues) = &mut self.queues {
                    queues.up_since = Some(now);
                }
                None
            }
        }
    }

    /// Makes QPs for an offer, and wires them to those in it.
    fn make(&mut self, attempt: u64) -> Result<(), (CloseCode, String)> {
        let offer = self.offer.take().ok_or((CloseCode::Protocol, "an offer without content".to_string()))?;
        if !self.stuck.is_empty() {
            return Err((
                CloseCode::DeviceRefused,
                "QPs of a former connection can't be destroyed".to_string(),
            ));
        }
        let adapters = self.adapters.clone();
        let (preferences, quality) = (adapters.config().preferences(), adapters.config().quality());
        let retry = attributes::retry_for(adapters.config().ack_budget);
        let have = adapters.now();
        let (side, failed_attempts) = (&have.side, self.unheard);
        let terms = Terms { side, preferences: &preferences, quality: &quality, failed_attempts };
        let unfit = |unfit: Unfit| (unfit.code, unfit.words);
        let refused = |error: crate::VerbsError| (CloseCode::DeviceRefused, error.to_string());
        let gone = || (CloseCode::RailDown, "the rail is gone".to_string());
        let meetings = handshake::judge_offer(&terms, &offer).map_err(unfit)?;
        let caps =
            QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        // The last QP of an array is for notices, where both sides have them.
        let wanted = offer.side.features.contains(Features::NOTIFICATIONS);
        let (mut rails, mut arrays, mut line) = (Vec::new(), Vec::new(), None);
        for meeting in &meetings {
            let adapter = adapters.get(meeting.ours).ok_or_else(gone)?;
            let mut used = have.used(meeting.ours).ok_or_else(gone)?;
            used.gid = Some(meeting.gids.local.index);
            let cq = match &mut self.cqs[usize::from(meeting.ours)] {
                Some(cq) => cq,
                place => place.insert(adapter.pd.context().create_cq(64, None, 0).map_err(refused)?),
            };
            let (mut qps, mut queues) = (Vec::new(), Vec::new());
            for (at, theirs) in meeting.theirs.queues.iter().enumerate() {
                let is_last = at > 0 && at + 1 == meeting.theirs.queues.len();
                let postbox = self.postbox.as_ref().filter(|_| wanted && is_last && line.is_none());
                if let Some(mut new) = postbox.and_then(|postbox| postbox.open(adapter, self.session)) {
                    let steps =
                        (used.init(false), attributes::rtr(&meeting.agreed, *theirs, meeting.path, &retry));
                    queues.push(
                        new.wire(steps, |own| attributes::rts(&meeting.agreed, own, &retry))
                            .map_err(refused)?,
                    );
                    line = Some(new);
                    continue;
                }
                let numbered = adapter.pd.create_qp(caps, cq, cq, None).and_then(|qp| {
                    let own = Queue { number: qp.number(), psn: crate::connecting::psn() };
                    qp.to_init(&used.init(true))?;
                    qp.to_rtr(&attributes::rtr(&meeting.agreed, *theirs, meeting.path, &retry))?;
                    qp.to_rts(&attributes::rts(&meeting.agreed, own, &retry))?;
                    Ok((qp, own))
                });
                let (qp, own) = numbered.map_err(refused)?;
                qps.push(qp);
                queues.push(own);
            }
            let (device, mtu) = (adapter.device(), meeting.agreed.mtu);
            tracing::debug!(peer = %self.peer, device, gids = %meeting.gids, %mtu, "rdma: a peer is let in");
            rails.push(OnRail { used, qps });
            arrays.push(queues);
        }
        let mut answer = handshake::answer(&terms, &meetings, arrays).map_err(unfit)?;
        answer.side.features.set(Features::NOTIFICATIONS, line.is_some());
        self.queues = Some(Queues { attempt, rails, line, answer, up_since: None });
        Ok(())
    }

    /// Destroys the QPs of an attempt, after which its peer touches nothing any more.
    fn destroy(&mut self, attempt: u64) {
        let Some(mut queues) = self.queues.take_if(|queues| queues.attempt == attempt) else { return };
        if let Some(line) = &mut queues.line {
            if let (Some(ticket), Some(adapter)) = (line.end(), self.adapters.get(line.rail)) {
                self.stuck.push((adapter.pd.context().retention().clone(), ticket));
            }
        }
        for OnRail { used, qps } in queues.rails {
            let Some(adapter) = self.adapters.get(used.rail()) else { continue };
            let retention = adapter.pd.context().retention();
            for not_freed in qps.into_iter().filter_map(|qp| qp.destroy().err()) {
                self.stuck.push((retention.clone(), not_freed.ticket));
            }
        }
    }

    fn tell(&self, from: Stamp, to: Stamp, body: Body) {
        match Message::new(0, from, to, body).encode() {
            Ok(bytes) => {
                if !self.say.say(bytes) {
                    tracing::debug!(peer = %self.peer, "rdma: a peer can't be told anything any more");
                }
            }
            Err(error) => tracing::error!(%error, "rdma: a message can't be said"),
        }
    }
}
