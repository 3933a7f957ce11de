//! What two sides agree on, from what each has said. Rule: a pure function of both hellos, and a mismatch is told in
//! words that name both sides' values.

use crate::error::WireError;
use crate::hello::{Features, Hello, Prelude, VERSION_MAX, VERSION_MIN};
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
