//! What comes back from a transport. Rule: the caller owns the buffers and gives the same ones each time, so that polling
//! allocates nothing.

use crate::error::{OpError, TransportError};
use crate::op::{LinkId, Token};
use std::os::fd::RawFd;
use std::time::Instant;

/// The end of one op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Which op.
    pub token: Token,
    /// How it ended. On success all its bytes are in place at the side that was to receive them.
    pub result: Result<(), OpError>,
    /// Bytes that are known to be in place: all of them on success, any number otherwise.
    pub bytes: u64,
    /// Whether a byte at the side that was to receive may have changed. False only when that is known not to be so.
    pub touched: bool,
}

/// An op was not carried out by [`Transport::at_once`](crate::Transport::at_once).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undone {
    /// Whether a byte at the side that was to receive may have changed all the same.
    pub touched: bool,
}

/// Something that happened to a link, or that must be carried to its peer.
#[derive(Debug)]
pub enum Event {
    /// The link can move bytes. Ops may be submitted before; they wait for it.
    LinkUp {
        /// Which link.
        link: LinkId,
    },
    /// The link is broken; its ops complete with errors. It is tried again by itself, with growing pauses, until
    /// [`crate::Transport::disconnect`].
    LinkDown {
        /// Which link.
        link: LinkId,
        /// Why.
        error: TransportError,
    },
    /// Bytes for this transport's counterpart at the peer. The caller carries them over the control link, in order, to
    /// [`crate::Counterpart::deliver`] there; where they can't be carried, it closes the link by [`crate::Transport::disconnect`].
    Control {
        /// Which link.
        link: LinkId,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// What a poll found.
#[derive(Debug, Default)]
pub struct Progress {
    /// Ops that ended.
    pub completions: Vec<Completion>,
    /// Things that happened to links.
    pub events: Vec<Event>,
}

impl Progress {
    /// Buffers with room for `capacity` completions, so that a poll within that budget allocates nothing.
    pub fn with_capacity(capacity: usize) -> Progress {
        Progress { completions: Vec::with_capacity(capacity), events: Vec::new() }
    }

    /// Empties both buffers, and keeps their memory.
    pub fn clear(&mut self) {
        self.completions.clear();
        self.events.clear();
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.events.is_empty()
    }
}

/// How the caller may wait for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Something is ready now: poll again at once.
    Ready,
    /// Nothing is ready. Sleep until the descriptor is readable, if there is one, and no longer than the time, if there
    /// is one; with neither, only a new op or link can bring anything.
    Sleep {
        /// Readable when there is something to poll for.
        fd: Option<RawFd>,
        /// Poll at this time at the latest.
        until: Option<Instant>,
    },
}
