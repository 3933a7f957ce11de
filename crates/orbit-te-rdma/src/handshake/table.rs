//! The table of a connection: each state with each event. Rule: there is no row for "anything else", so that the compiler asks for each
//! new state and event what is to happen.

use orbit_te_wire::rdma::CloseCode;

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Nobody here wants it; an offer is answered.
    Idle,
    /// It is wanted; the next attempt begins after a pause, once there is a control link. An offer is answered.
    Waiting,
    /// Our QPs are made, for an offer.
    Making,
    /// Our offer was sent.
    Offered,
    /// The answer came, and our QPs are wired to those in it.
    Joining,
    /// Our QPs are wired, and the peer was told; it has to say that it heard.
    Joined,
    /// An offer came: our QPs are made, and wired to those in it.
    Answering,
    /// Our answer was sent.
    Answered,
    /// It stands, by our offer.
    UpOffered,
    /// It stands, by the peer's offer.
    UpAnswered,
    /// It is over for good.
    Closed,
}

impl State {
    /// All.
    pub const ALL: [State; 11] = [
        State::Idle,
        State::Waiting,
        State::Making,
        State::Offered,
        State::Joining,
        State::Joined,
        State::Answering,
        State::Answered,
        State::UpOffered,
        State::UpAnswered,
        State::Closed,
    ];

    /// Whether QPs of ours exist or are being made.
    pub fn has_attempt(self) -> bool {
        !matches!(self, State::Idle | State::Waiting | State::Closed)
    }

    /// Whether bytes may be moved.
    pub fn is_up(self) -> bool {
        matches!(self, State::UpOffered | State::UpAnswered)
    }
}

/// What happens to a connection, told apart as far as it matters.
///
/// *Old* is a message that belongs to nothing here: its attempts are not those of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Somebody here wants it.
    Want,
    /// Nobody here wants it ever again.
    Disconnect,
    /// There is a new control link; whatever was before it is over.
    LinkUp,
    /// The control link was lost.
    LinkLost,
    /// A new attempt of the peer, which has the lower id, and so precedence.
    OfferLower,
    /// A new attempt of the peer, which has the higher id.
    OfferHigher,
    /// The offer that we answer, again.
    OfferSame,
    /// An offer of an attempt that is over.
    OfferOld,
    /// An answer to our attempt.
    Answer,
    /// The answer that we took, again.
    AnswerSame,
    /// An answer to another attempt.
    AnswerOld,
    /// The peer's QPs are wired to ours.
    Ready,
    /// The same of other attempts.
    ReadyOld,
    /// The peer ends our attempt, or its own that ours belongs to.
    Close,
    /// The peer ends another attempt.
    CloseOld,
    /// A message of a life of the peer other than that at the control link, or while there is no link.
    Foreign,
    /// Our QPs are made (and wired, for an answer).
    Made,
    /// Our QPs are wired.
    Wired,
    /// A step on our QPs failed, or a QP did.
    Failed,
    /// One of the last three, of an attempt that is over.
    Late,
    /// What is waited for has not come; there is patience left.
    Tick,
    /// There is no patience left.
    Expired,
}

impl Event {
    /// All.
    pub const ALL: [Event; 22] = [
        Event::Want,
        Event::Disconnect,
        Event::LinkUp,
        Event::LinkLost,
        Event::OfferLower,
        Event::OfferHigher,
        Event::OfferSame,
        Event::OfferOld,
        Event::Answer,
        Event::AnswerSame,
        Event::AnswerOld,
        Event::Ready,
        Event::ReadyOld,
        Event::Close,
        Event::CloseOld,
        Event::Foreign,
        Event::Made,
        Event::Wired,
        Event::Failed,
        Event::Late,
        Event::Tick,
        Event::Expired,
    ];
}

/// What is done, in the order of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Begin an attempt: make QPs for an offer.
    Make,
    /// Begin an attempt: make QPs and wire them to those of the offer that just came.
    Answer,
    /// Wire our QPs to those of the answer that just came.
    Wire,
    /// Send the offer.
    SendOffer,
    /// Send the answer.
    SendAnswer,
    /// Say that our QPs are wired.
    SendReady,
    /// Tell the peer that our attempt is over.
    SendClose,
    /// Tell whoever sent this message that the attempt that it was sent from is over.
    Refuse(CloseCode),
    /// Destroy our QPs, and say why the attempt ended.
    End,
    /// The same, and count it: the next attempt comes after a longer pause.
    EndFailed,
    /// Say that the connection stands.
    TellUp,
}

/// Where a row leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nowhere.
    Stay,
    /// There.
    To(State),
    /// To [`State::Waiting`] where the connection is wanted here, otherwise to [`State::Idle`].
    Rest,
}

/// Who is to blame for what must not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The peer broke the protocol: the attempt ends.
    Peer,
    /// Whoever drives this side: nothing changes.
    Driver,
}

/// What happens in a state by an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    /// This.
    Do(Next, &'static [Step]),
    /// It must not happen, by the fault of somebody, in words.
    Illegal(Blame, &'static str),
}

const fn stay(steps: &'static [Step]) -> Row {
    Row::Do(Next::Stay, steps)
}

const fn to(state: State, steps: &'static [Step]) -> Row {
    Row::Do(Next::To(state), steps)
}

const fn rest(steps: &'static [Step]) -> Row {
    Row::Do(Next::Rest, steps)
}

const fn driver(why: &'static str) -> Row {
    Row::Illegal(Blame::Driver, why)
}

const fn peer(why: &'static str) -> Row {
    Row::Illegal(Blame::Peer, why)
}

const GONE: Step = Step::Refuse(CloseCode::Gone);
const UNWANTED: Step = Step::Refuse(CloseCode::Unwanted);

/// The table.
pub const fn row(state: State, event: Event) -> Row {
    use Event as E;
    use State as S;
    match (state, event) {
        // Wanting it, and no longer wanting it.
        (S::Idle, E::Want) => to(S::Waiting, &[]),
        (S::Closed, E::Want) => driver("a connection is wanted that was given up"),
        (_, E::Want) => stay(&[]),
        (S::Idle | S::Waiting | S::Closed, E::Disconnect) => to(S::Closed, &[]),
        (S::Making, E::Disconnect) => to(S::Closed, &[Step::End]),
        (_, E::Disconnect) => to(S::Closed, &[Step::SendClose, Step::End]),

        // The control link. A new one begins with nothing, whatever was before it.
        (S::Idle | S::Waiting | S::Closed, E::LinkUp | E::LinkLost) => stay(&[]),
        (_, E::LinkUp | E::LinkLost) => rest(&[Step::End]),

        // An offer of a new attempt.
        (S::Idle | S::Waiting, E::OfferLower | E::OfferHigher) => to(S::Answering, &[Step::Answer]),
        (S::Making | S::Offered, E::OfferLower) => to(S::Answering, &[Step::End, Step::Answer]),
        // Ours has precedence, and the peer will see it. Should ours come to nothing, the peer's comes again.
        (S::Making | S::Offered, E::OfferHigher) => stay(&[]),
        // A peer that offers anew has nothing any more of what it had agreed to before.
        (
            S::Joining | S::Joined | S::Answering | S::Answered | S::UpOffered | S::UpAnswered,
            E::OfferLower | E::OfferHigher,
        ) => to(S::Answering, &[Step::End, Step::Answer]),
        (S::Answering | S::UpAnswered, E::OfferSame) => stay(&[]),
        (S::Answered, E::OfferSame) => stay(&[Step::SendAnswer]),
        (S::Joining | S::Joined | S::UpOffered, E::OfferSame) => {
            peer("an attempt that was an answer is offered")
        }

        // An answer.
        (S::Offered, E::Answer) => to(S::Joining, &[Step::Wire]),
        (S::Making, E::Answer) => peer("an offer is answered that was not made"),
        (S::Joining | S::Joined | S::Answering | S::Answered | S::UpOffered | S::UpAnswered, E::Answer) => {
            peer("an attempt is answered that has its counterpart")
        }
        (S::Joining | S::UpOffered, E::AnswerSame) => stay(&[]),
        // The peer asks again because it did not hear that we are ready.
        (S::Joined, E::AnswerSame) => stay(&[Step::SendReady]),
        (S::Answering | S::Answered | S::UpAnswered, E::AnswerSame) => peer("an answer is answered"),

        // Both are wired: first the side that offered says so, then the other.
        (S::Joined, E::Ready) => to(S::UpOffered, &[Step::TellUp]),
        (S::Answered, E::Ready) => to(S::UpAnswered, &[Step::SendReady, Step::TellUp]),
        (S::UpOffered, E::Ready) => stay(&[]),
        (S::UpAnswered, E::Ready) => stay(&[Step::SendReady]),
        (S::Joining | S::Answering, E::Ready) => peer("it is ready before its turn"),

        // What belongs to nothing here. The first three can't be told apart from an old one where there is no counterpart.
        (S::Idle | S::Waiting | S::Making | S::Offered, E::OfferSame | E::AnswerSame | E::Ready) => {
            stay(&[GONE])
        }
        (S::Idle | S::Waiting, E::Answer) => stay(&[GONE]),
        (
            S::Closed,
            E::OfferLower
            | E::OfferHigher
            | E::OfferSame
            | E::OfferOld
            | E::Answer
            | E::AnswerSame
            | E::AnswerOld
            | E::Ready
            | E::ReadyOld,
        ) => stay(&[UNWANTED]),
        (_, E::OfferOld | E::AnswerOld | E::ReadyOld) => stay(&[GONE]),
        (_, E::CloseOld | E::Foreign | E::Late) => stay(&[]),

        // The peer ends it.
        (S::Idle | S::Waiting | S::Closed, E::Close) => stay(&[]),
        (S::Making, E::Close) => peer("an attempt is closed that it was not told of"),
        (_, E::Close) => rest(&[Step::EndFailed]),

        // Our own QPs.
        (S::Making, E::Made) => to(S::Offered, &[Step::SendOffer]),
        (S::Answering, E::Made) => to(S::Answered, &[Step::SendAnswer]),
        (S::Joining, E::Wired) => to(S::Joined, &[Step::SendReady]),
        (_, E::Made) => driver("QPs are made that nobody asked for"),
        (_, E::Wired) => driver("QPs are wired that nobody asked for"),
        (S::Idle | S::Waiting | S::Closed, E::Failed) => driver("QPs failed that there are none of"),
        (S::Making, E::Failed) => rest(&[Step::EndFailed]),
        (_, E::Failed) => rest(&[Step::SendClose, Step::EndFailed]),

        // Time.
        (S::Waiting, E::Tick | E::Expired) => to(S::Making, &[Step::Make]),
        (S::Offered, E::Tick) => stay(&[Step::SendOffer]),
        (S::Joined, E::Tick) => stay(&[Step::SendReady]),
        (S::Answered, E::Tick) => stay(&[Step::SendAnswer]),
        (S::Idle | S::UpOffered | S::UpAnswered | S::Closed, E::Tick | E::Expired) => stay(&[]),
        (S::Making, E::Tick | E::Expired) => rest(&[Step::EndFailed]),
        (S::Joining | S::Answering, E::Tick | E::Expired) | (_, E::Expired) => {
            rest(&[Step::SendClose, Step::EndFailed])
        }
    }
}
