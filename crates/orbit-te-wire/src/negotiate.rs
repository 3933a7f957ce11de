//! What two sides agree on, from what each has said. Rule: a pure function of both hellos, and a mismatch is told in
//! words that name both sides' values.

use crate::error::WireError;
use crate::hello::{Features, Hello, HelloReply, Prelude, Role, VERSION_MAX, VERSION_MIN};
use crate::ids::{Incarnation, PeerId, SessionId};
use crate::limits::Limits;

/// The terms of a connection that both sides keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The protocol version.
    pub version: u16,
    /// What both can do.
    pub features: Features,
    /// What both can live with.
    pub limits: Limits,
}

/// The highest version that both speak.
pub fn version(theirs: &Prelude) -> Result<u16, WireError> {
    let highest = VERSION_MAX.min(theirs.version_max);
    if highest < VERSION_MIN || highest < theirs.version_min {
        return Err(WireError::VersionMismatch {
            ours_min: VERSION_MIN,
            ours_max: VERSION_MAX,
            theirs_min: theirs.version_min,
            theirs_max: theirs.version_max,
        });
    }
    Ok(highest)
}

/// The terms under which a hello is accepted by a side with these limits, or why it is refused.
pub fn terms(prelude: &Prelude, hello: &Hello, ours: &Limits) -> Result<Terms, WireError> {
    let version = version(prelude)?;
    if hello.auth.method != 0 {
        let value = u64::from(hello.auth.method);
        return Err(WireError::Unknown { what: "authentication method", value });
    }
    if !hello.auth.data.is_empty() {
        return Err(WireError::Invalid { what: "authentication method 0 carries data" });
    }
    let limits = ours.agree(&hello.limits);
    if let Some(what) = limits.unworkable() {
        return Err(WireError::Invalid { what });
    }
    Ok(Terms { version, features: Features::OURS & hello.features, limits })
}

/// What the accepting side has said about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Who it is.
    pub peer: PeerId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The session.
    pub session: SessionId,
    /// The terms.
    pub terms: Terms,
}

/// What an answer to our hello means. Inside: the other side's words, when it refused.
///
/// # Errors
/// [`WireError`] when the answer does not fit the hello: terms that were not offered, or another session than the one asked
/// for.
pub fn answer(
    prelude: &Prelude,
    reply: HelloReply,
    asked: &Hello,
) -> Result<Result<Accepted, String>, WireError> {
    let highest = version(prelude)?;
    let invalid = |what| Err(WireError::Invalid { what });
    match reply {
        HelloReply::Refused { reason } => Ok(Err(reason)),
        HelloReply::Accepted { version, peer, incarnation, session, features, limits, auth } => {
            if version < VERSION_MIN || version > highest {
                return invalid("the answer chose a protocol version that was not offered");
            }
            if !asked.features.contains(features) {
                return invalid("the answer chose features that were not offered");
            }
            if limits.agree(&asked.limits) != limits {
                return invalid("the answer chose limits over those that were offered");
            }
            if auth != asked.auth {
                return invalid("the answer chose an authentication method that was not offered");
            }
            match asked.role {
                Role::Lane { session: wanted, .. } if wanted != session => {
                    invalid("the answer to a lane names another session")
                }
                _ => Ok(Ok(Accepted {
                    peer,
                    incarnation,
                    session,
                    terms: Terms { version, features, limits },
                })),
            }
        }
    }
}
