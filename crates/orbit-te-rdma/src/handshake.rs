//! How two sides come to a connection: QP arrays that are wired to each other, of one attempt of each side. Rule: what happens is a table
//! ([`row`]); the rest of it ([`Machine`]) only says which of its columns an input is, and which numbers its steps mean.
//!
//! ```text
//!   offers:   Waiting ─▶ Making ─▶ Offered ─▶ Joining ─▶ Joined ─▶ UpOffered
//!                                  Offer ──▶   ◀── Answer   Ready ──▶  ◀── Ready
//!   answers:  Idle or Waiting ────────▶ Answering ─▶ Answered ────▶ UpAnswered
//! ```
//!
//! - An attempt has a number ([`Stamp`](orbit_te_wire::rdma::Stamp)); each message names those of both sides, so that one of them that
//!   comes late, twice, in another order, or from a life that is over is told from all others. What belongs to nothing here is answered
//!   by a close to exactly the attempt that sent it, so that no half of a connection is left over.
//! - Both sides may offer at once, which is the usual case: the offer of the peer with the lower id has precedence, and the other side
//!   drops its own and answers.
//! - A connection belongs to the life of the peer that the control link was made with. Once the link is lost, or another life is at its
//!   end, the connection is over, since revocations and closes travel there.
//! - An attempt's QPs are destroyed before the next attempt's are made, and are used for no other.
//! - What offers and answers hold is chosen by the side that answers ([`judge_offer`]) and checked by the side that offered
//!   ([`judge_answer`]).
//! - Whatever is waited for has an end ([`Machine::patience`]), and after a failure the next attempt comes after a pause that grows.

mod machine;
mod pace;
mod table;
mod terms;

pub use machine::{Action, Fault, Input, Machine, Say};
pub use pace::{Pace, Timed};
pub use table::{Blame, Event, Next, Row, State, Step, row};
pub use terms::{Meeting, Terms, Unfit, answer, judge_answer, judge_offer, offer};
