//! One connection's memory: which attempts, which lives, and what the table's steps mean with them. Rule: it knows no clock, and no QPs:
//! it says what is to be done ([`Action`]) and is told what came of it ([`Input`]).

use super::pace::Pace;
use super::table::{Blame, Event, Next, Row, State, Step, row};
use orbit_te_wire::Incarnation;
use orbit_te_wire::rdma::{CloseCode, Stamp};
use std::time::Duration;
use thiserror::Error;

/// What a message of the handshake says; what else it holds is the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Say {
    /// [`orbit_te_wire::rdma::Body::Offer`].
    Offer,
    /// [`orbit_te_wire::rdma::Body::Answer`].
    Answer,
    /// [`orbit_te_wire::rdma::Body::Ready`].
    Ready,
    /// [`orbit_te_wire::rdma::Body::Close`].
    Close(CloseCode),
}

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// It is wanted here.
    Want,
    /// It is not wanted ever again.
    Disconnect,
    /// There is a new control link, to this life of the peer.
    LinkUp {
        /// Which life.
        peer: Incarnation,
    },
    /// There is no control link any more.
    LinkLost,
    /// A message came.
    Heard {
        /// What it says.
        say: Say,
        /// Who says it.
        from: Stamp,
        /// To whom.
        to: Stamp,
    },
    /// What [`Action::Make`] or [`Action::Answer`] asked for is done.
    Made {
        /// Whose QPs.
        attempt: u64,
    },
    /// What [`Action::Wire`] asked for is done.
    Wired {
        /// Whose QPs.
        attempt: u64,
    },
    /// What an action asked for could not be done (the offer or the answer does not fit, the device refused), or a QP failed later.
    Failed {
        /// Whose QPs.
        attempt: u64,
        /// Why.
        code: CloseCode,
    },
    /// [`Machine::patience`] is over.
    Time,
}

/// What is to be done. Actions that ask for QPs are answered by an [`Input`] in their time; [`Action::Destroy`] may come before that,
/// and then the QPs are destroyed as soon as they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make QPs, in the state INIT.
    Make {
        /// For which attempt.
        attempt: u64,
    },
    /// Judge the offer that was just heard; make QPs, and wire them to those in it (RTR and RTS). This side does not send before
    /// [`Action::Up`].
    Answer {
        /// For which attempt.
        attempt: u64,
        /// Whose offer.
        offer: Stamp,
    },
    /// Judge the answer that was just heard, and wire the QPs to those in it.
    Wire {
        /// Whose QPs.
        attempt: u64,
        /// Whose answer.
        answer: Stamp,
    },
    /// Send this.
    Send {
        /// What.
        say: Say,
        /// From which attempt.
        from: Stamp,
        /// To which.
        to: Stamp,
    },
    /// The attempt is over: destroy its QPs, whatever state they are in. Comes once for each attempt.
    Destroy {
        /// Whose QPs.
        attempt: u64,
        /// Why.
        code: CloseCode,
        /// Whether the peer ended it.
        by_peer: bool,
        /// Whether the connection stood.
        was_up: bool,
    },
    /// The connection stands: bytes may be moved.
    Up {
        /// Our attempt.
        ours: Stamp,
        /// The peer's.
        theirs: Stamp,
    },
}

/// An input that must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The peer broke the protocol; the attempt was ended, and no other connection is concerned.
    #[error("the peer broke the protocol of the handshake while {state:?}: {why}")]
    Peer {
        /// In which state.
        state: State,
        /// What is wrong.
        why: &'static str,
    },
    /// The driver did something that it must not; nothing was changed.
    #[error("a handshake was driven wrongly while {state:?}: {why}")]
    Driver {
        /// In which state.
        state: State,
        /// What is wrong.
        why: &'static str,
    },
}

/// One connection, as one side sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    life: Incarnation,
    /// Whether this side's peer id is the lower of the two.
    lower: bool,
    /// How often a message is sent before there is no patience left.
    most_sends: u8,
    state: State,
    wanted: bool,
    /// The life of the peer at the other end of the control link.
    link: Option<Incarnation>,
    /// The life that `seen` is about.
    known: Option<Incarnation>,
    /// The newest attempt of that life that was answered, taken for an answer, or said to be over.
    seen: u64,
    /// Our newest attempt.
    attempt: u64,
    /// The peer's attempt that ours belongs to.
    theirs: Option<Stamp>,
    /// How often the message of this state was sent.
    sends: u8,
    /// Attempts that failed, one after the other, counted up to [`Machine::MOST_FAILURES`].
    failures: u8,
}

impl Machine {
    /// Failures are counted up to here; the pause grows no more after as many.
    pub const MOST_FAILURES: u8 = 16;

    /// A connection that nobody wants yet, of this life of ours. `lower`: our peer id is the lower one. `most_sends`: how often a
    /// message is sent before the attempt is given up, at least 1.
    pub fn new(life: Incarnation, lower: bool, most_sends: u8) -> Machine {
        Machine {
            life,
            lower,
            most_sends: most_sends.max(1),
            state: State::Idle,
            wanted: false,
            link: None,
            known: None,
            seen: 0,
            attempt: 0,
            theirs: None,
            sends: 0,
            failures: 0,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Our attempt of now.
    pub fn ours(&self) -> Option<Stamp> {
        self.state.has_attempt().then_some(Stamp { incarnation: self.life, attempt: self.attempt })
    }

    /// The peer's attempt that ours belongs to.
    pub fn theirs(&self) -> Option<Stamp> {
        self.theirs
    }

    /// Forgets failures: the connection has stood for long enough.
    pub fn settle(&mut self) {
        self.failures = 0;
    }

    /// How long to wait before [`Input::Time`], counted from the last input that gave an action, or from the pause's begin; none: for
    /// ever.
    pub fn patience(&self, pace: &Pace) -> Option<Duration> {
        match self.state {
            State::Idle | State::UpOffered | State::UpAnswered | State::Closed => None,
            State::Waiting => {
                // The side whose offer has no precedence lets the other go first.
                let yielding = if self.lower { Duration::ZERO } else { pace.yielding };
                self.link.map(|_| yielding + pace.pause(self.failures))
            }
            State::Making | State::Joining | State::Answering => Some(pace.work),
            State::Offered | State::Joined | State::Answered => Some(pace.resend(self.sends)),
        }
    }

    /// Takes an input, and adds what is to be done to `out`, in order.
    ///
    /// # Errors
    /// [`Fault`]; this connection alone is concerned, and what is in `out` is to be done all the same.
    pub fn take(&mut self, input: Input, out: &mut Vec<Action>) -> Result<(), Fault> {
        let event = self.event(&input);
        let state = self.state;
        let found = row(state, event);
        if !matches!(found, Row::Illegal(Blame::Driver, _)) {
            self.learn(&input);
        }
        match found {
            Row::Do(next, steps) => {
                self.run(next, steps, &input, event, out);
                Ok(())
            }
            Row::Illegal(Blame::Driver, why) => Err(Fault::Driver { state, why }),
            Row::Illegal(Blame::Peer, why) => {
                self.close(CloseCode::Protocol, out);
                self.end(CloseCode::Protocol, false, out);
                self.failures = Machine::MOST_FAILURES;
                self.go(Next::Rest);
                Err(Fault::Peer { state, why })
            }
        }
    }

    /// What the table calls this input.
    fn event(&self, input: &Input) -> Event {
        let of_now = |attempt: u64, event| {
            if self.state.has_attempt() && attempt == self.attempt { event } else { Event::Late }
        };
        match *input {
            Input::Want => Event::Want,
            Input::Disconnect => Event::Disconnect,
            Input::LinkUp { .. } => Event::LinkUp,
            Input::LinkLost => Event::LinkLost,
            Input::Made { attempt } => of_now(attempt, Event::Made),
            Input::Wired { attempt } => of_now(attempt, Event::Wired),
            Input::Failed { attempt, .. } => of_now(attempt, Event::Failed),
            Input::Time if self.sends < self.most_sends => Event::Tick,
            Input::Time => Event::Expired,
            Input::Heard { from, .. } if self.link != Some(from.incarnation) => Event::Foreign,
            Input::Heard { say, from, to } => self.heard(say, from, to),
        }
    }

    fn heard(&self, say: Say, from: Stamp, to: Stamp) -> Event {
        let to_our_life = to.incarnation == self.life;
        let to_us = self.ours() == Some(to);
        let from_theirs = from.attempt != 0 && self.theirs == Some(from);
        match say {
            Say::Offer if !to_our_life || from.attempt == 0 => Event::OfferOld,
            Say::Offer if from_theirs => Event::OfferSame,
            Say::Offer if from.attempt <= self.seen => Event::OfferOld,
            Say::Offer if self.lower => Event::OfferHigher,
            Say::Offer => Event::OfferLower,
            Say::Answer if to_us && from_theirs => Event::AnswerSame,
            Say::Answer if to_us && self.theirs.is_none() && from.attempt > self.seen => Event::Answer,
            Say::Answer => Event::AnswerOld,
            Say::Ready if to_us && from_theirs => Event::Ready,
            Say::Ready => Event::ReadyOld,
            Say::Close(_) if to_us || (from_theirs && to_our_life) => Event::Close,
            Say::Close(_) => Event::CloseOld,
        }
    }

    /// Keeps what is true after an input whatever the state is.
    fn learn(&mut self, input: &Input) {
        match *input {
            Input::Want => self.wanted = true,
            Input::Disconnect => self.wanted = false,
            Input::LinkLost => self.link = None,
            Input::LinkUp { peer } => {
                self.link = Some(peer);
                if self.known != Some(peer) {
                    (self.known, self.seen, self.failures) = (Some(peer), 0, 0);
                }
            }
            // An offer of an attempt that was closed may still be under way behind its close.
            Input::Heard { say: Say::Close(_), from, .. } if self.link == Some(from.incarnation) => {
                self.seen = self.seen.max(from.attempt);
            }
            Input::Heard { .. }
            | Input::Made { .. }
            | Input::Wired { .. }
            | Input::Failed { .. }
            | Input::Time => {}
        }
    }

    fn run(&mut self, next: Next, steps: &[Step], input: &Input, event: Event, out: &mut Vec<Action>) {
        let code = cause(input, event);
        let by_peer = matches!(input, Input::Heard { .. });
        for step in steps {
            match step {
                Step::Make => {
                    let attempt = self.begin();
                    out.push(Action::Make { attempt });
                }
                Step::Answer => {
                    let Input::Heard { from: offer, .. } = *input else { continue };
                    let attempt = self.begin();
                    self.meet(offer);
                    out.push(Action::Answer { attempt, offer });
                }
                Step::Wire => {
                    let Input::Heard { from: answer, .. } = *input else { continue };
                    self.meet(answer);
                    out.push(Action::Wire { attempt: self.attempt, answer });
                }
                Step::SendOffer => self.send(Say::Offer, out),
                Step::SendAnswer => self.send(Say::Answer, out),
                Step::SendReady => self.send(Say::Ready, out),
                Step::SendClose => self.close(code, out),
                Step::Refuse(code) => {
                    let Input::Heard { from: to, .. } = *input else { continue };
                    let from = Stamp::none(self.life);
                    out.push(Action::Send { say: Say::Close(*code), from, to });
                }
                Step::End => self.end(code, by_peer, out),
                Step::EndFailed => {
                    self.end(code, by_peer, out);
                    let more = self.failures.saturating_add(1).min(Machine::MOST_FAILURES);
                    self.failures = if code.may_pass() { more } else { Machine::MOST_FAILURES };
                }
                Step::TellUp => {
                    let ours = Stamp { incarnation: self.life, attempt: self.attempt };
                    let Some(theirs) = self.theirs else { continue };
                    out.push(Action::Up { ours, theirs });
                }
            }
        }
        let sent = steps.iter().any(|s| matches!(s, Step::SendOffer | Step::SendAnswer | Step::SendReady));
        if next != Next::Stay {
            self.go(next);
            self.sends = u8::from(sent);
        } else if event == Event::Tick && sent {
            self.sends = self.sends.saturating_add(1);
        }
    }

    fn go(&mut self, next: Next) {
        self.state = match next {
            Next::Stay => return,
            Next::To(state) => state,
            Next::Rest if self.wanted => State::Waiting,
            Next::Rest => State::Idle,
        };
        self.sends = 0;
        if !self.state.has_attempt() {
            self.theirs = None;
        }
    }

    fn begin(&mut self) -> u64 {
        self.attempt += 1;
        self.theirs = None;
        self.attempt
    }

    fn meet(&mut self, theirs: Stamp) {
        self.theirs = Some(theirs);
        self.seen = self.seen.max(theirs.attempt);
    }

    fn send(&self, say: Say, out: &mut Vec<Action>) {
        let Some(link) = self.link else { return };
        let from = Stamp { incarnation: self.life, attempt: self.attempt };
        out.push(Action::Send { say, from, to: self.theirs.unwrap_or(Stamp::none(link)) });
    }

    fn close(&self, code: CloseCode, out: &mut Vec<Action>) {
        self.send(Say::Close(code), out);
    }

    fn end(&mut self, code: CloseCode, by_peer: bool, out: &mut Vec<Action>) {
        let was_up = self.state.is_up();
        out.push(Action::Destroy { attempt: self.attempt, code, by_peer, was_up });
        self.theirs = None;
    }
}

/// Why an attempt ends by this.
fn cause(input: &Input, event: Event) -> CloseCode {
    match (*input, event) {
        (Input::Heard { say: Say::Close(code), .. }, _) | (Input::Failed { code, .. }, _) => code,
        (Input::Heard { .. }, _) => CloseCode::Superseded,
        (Input::Disconnect, _) => CloseCode::Unwanted,
        (Input::LinkUp { .. } | Input::LinkLost, _) => CloseCode::LinkLost,
        _ => CloseCode::TimedOut,
    }
}
