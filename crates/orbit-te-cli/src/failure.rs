//! How a command fails: one line with the first cause, and an exit code that says what kind of trouble it was. Rule: the codes
//! are part of the interface; `--help` lists them.

use orbit_te::{Error, ErrorCode, TransferError};
use serde::Serialize;
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
    /// An error of the library, which its catalogue lists.
    #[error("{words} [{error}]; {}", error.remedy())]
    Listed {
        /// What kind of trouble it is for the program's user.
        exit: u8,
        /// The error's own words.
        words: String,
        /// Its code.
        error: ErrorCode,
    },
}

/// A failure as a line of JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    error: Reported<'a>,
}

#[derive(Debug, Serialize)]
struct Reported<'a> {
    /// The catalogue's number and name; none for trouble that is the program's own.
    code: Option<u16>,
    name: Option<&'a str>,
    cause: String,
    remedy: Option<&'a str>,
    exit: u8,
}

impl Failure {
    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Transfer(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Peer(_) => 3,
            Failure::Local(_) => 4,
            Failure::Listed { exit, .. } => *exit,
        }
    }

    /// The line of JSON that stands for it on stdout.
    pub(crate) fn json(&self) -> String {
        let (error, cause) = match self {
            Failure::Listed { words, error, .. } => (Some(*error), words.clone()),
            other => (None, other.to_string()),
        };
        let (code, name) = (error.map(ErrorCode::number), error.map(ErrorCode::name));
        let remedy = error.map(ErrorCode::remedy);
        let report = Report { error: Reported { code, name, cause, remedy, exit: self.code() } };
        serde_json::to_string(&report).unwrap_or_default()
    }

    /// The same failure, with what was being done before its words.
    pub(crate) fn while_doing(self, what: impl Display) -> Failure {
        match self {
            Failure::Transfer(why) => Failure::Transfer(format!("{what}: {why}")),
            Failure::Usage(why) => Failure::Usage(format!("{what}: {why}")),
            Failure::Peer(why) => Failure::Peer(format!("{what}: {why}")),
            Failure::Local(why) => Failure::Local(format!("{what}: {why}")),
            Failure::Listed { exit, words, error } => {
                Failure::Listed { exit, words: format!("{what}: {words}"), error }
            }
        }
    }

    /// Trouble with a file or another resource of this host.
    pub(crate) fn local(what: impl Display, cause: impl Display) -> Failure {
        Failure::Local(format!("{what}: {cause}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (words, code) = (error.to_string(), error.code());
        let exit = match error {
            Error::Config(_) | Error::Untrusted(_) | Error::BadAddress { .. } | Error::BadName { .. } => 2,
            Error::Memory(_) | Error::Transport(_) | Error::NameTaken(_) => 4,
            Error::PeerGone { .. } | Error::BadRequest { .. } | Error::Full { .. } | Error::Closed => 1,
            _ => 3,
        };
        Failure::Listed { exit, words, error: code }
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Failure {
        Failure::Listed { exit: 1, words: error.to_string(), error: error.code() }
    }
}

impl From<orbit_te::MemoryError> for Failure {
    fn from(error: orbit_te::MemoryError) -> Failure {
        Error::from(error).into()
    }
}
