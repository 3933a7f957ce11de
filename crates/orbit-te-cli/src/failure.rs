//! How a command fails: one line with the first cause, and an exit code that says what kind of trouble it was. Rule: the codes
//! are part of the interface; `--help` lists them.

use orbit_te::{Error, TransferError};
use std::fmt::Display;
use thiserror::Error as ThisError;

/// Why a command failed; the words are what the user reads after `orbit-te: `.
#[derive(Debug, ThisError)]
pub(crate) enum Failure {
    /// Bytes did not arrive, or were not the right ones.
    #[error("{0}")]
    Transfer(String),
    /// The command was given something that can't be meant.
    #[error("{0}")]
    Usage(String),
    /// The peer can't be reached, or refuses.
    #[error("{0}")]
    Peer(String),
    /// A file, an address or another resource of this host.
    #[error("{0}")]
    Local(String),
}

impl Failure {
    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Transfer(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Peer(_) => 3,
            Failure::Local(_) => 4,
        }
    }

    /// The same failure, with what was being done before its words.
    pub(crate) fn while_doing(self, what: impl Display) -> Failure {
        match self {
            Failure::Transfer(why) => Failure::Transfer(format!("{what}: {why}")),
            Failure::Usage(why) => Failure::Usage(format!("{what}: {why}")),
            Failure::Peer(why) => Failure::Peer(format!("{what}: {why}")),
            Failure::Local(why) => Failure::Local(format!("{what}: {why}")),
        }
    }

    /// Trouble with a file or another resource of this host.
    pub(crate) fn local(what: impl Display, cause: impl Display) -> Failure {
        Failure::Local(format!("{what}: {cause}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let words = error.to_string();
        match error {
            Error::Config(_) | Error::Untrusted(_) | Error::BadAddress { .. } | Error::BadName { .. } => {
                Failure::Usage(words)
            }
            Error::Memory(_) | Error::Transport(_) | Error::NameTaken(_) => Failure::Local(words),
            Error::PeerGone { .. } | Error::BadRequest { .. } | Error::Full { .. } | Error::Closed => {
                Failure::Transfer(words)
            }
            _ => Failure::Peer(words),
        }
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Failure {
        Failure::Transfer(error.to_string())
    }
}

impl From<orbit_te::MemoryError> for Failure {
    fn from(error: orbit_te::MemoryError) -> Failure {
        Failure::Local(error.to_string())
    }
}
