//! A mailbox for rows about notifications. Rule: it takes each number of a session once, as the engine's does, and remembers all that was handed in.

use crate::mailbox::{Mailbox, Undelivered};
use orbit_te_wire::SessionId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A notification that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Of which session.
    pub session: SessionId,
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Its payload.
    pub payload: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    taken: Vec<Letter>,
    /// What became of the number that came last, by session.
    last: HashMap<SessionId, (u64, Result<(), Undelivered>)>,
    refusal: Option<Undelivered>,
    offered: usize,
}

/// A mailbox that keeps what it takes.
#[derive(Debug, Default)]
pub struct Letters {
    state: Mutex<State>,
}

impl Letters {
    /// All that was taken, in its order.
    pub fn taken(&self) -> Vec<Letter> {
        self.with(|state| state.taken.clone())
    }

    /// How often something was handed in, taken or not.
    pub fn offered(&self) -> usize {
        self.with(|state| state.offered)
    }

    /// Refuses everything new for this reason, or takes it again.
    pub fn refuse(&self, why: Option<Undelivered>) {
        self.with(|state| state.refusal = why);
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Mailbox for Letters {
    fn deliver(
        &self,
        session: SessionId,
        number: u64,
        name: &str,
        payload: &[u8],
    ) -> Result<(), Undelivered> {
        self.with(|state| {
            state.offered += 1;
            let last = state.last.get(&session).copied().unwrap_or((0, Ok(())));
            if number <= last.0 {
                return last.1;
            }
            let answer = state.refusal.map_or(Ok(()), Err);
            state.last.insert(session, (number, answer));
            if answer.is_ok() {
                let (name, payload) = (name.to_string(), payload.to_vec());
                state.taken.push(Letter { session, number, name, payload });
            }
            answer
        })
    }
}
