//! What can be wrong with bytes from a peer. Rule: an error says what was expected and what was there instead.

use thiserror::Error;

/// Why bytes were refused. A decoder that returns one has consumed nothing that needs undoing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// The first bytes are not those of an OrbitTE connection.
    #[error("not an OrbitTE connection: it begins with {found}, not with `ORBITTE`")]
    BadMagic {
        /// The first bytes as text, with others escaped.
        found: String,
    },
    /// Both sides speak OrbitTE, but no protocol version is common to both.
    #[error(
        "no common protocol version: we speak {ours_min} to {ours_max}, the peer speaks {theirs_min} to {theirs_max}; \
         update the older side"
    )]
    VersionMismatch {
        /// The lowest version this side speaks.
        ours_min: u16,
        /// The highest version this side speaks.
        ours_max: u16,
        /// The lowest version the peer speaks.
        theirs_min: u16,
        /// The highest version the peer speaks.
        theirs_max: u16,
    },
    /// A length field is over its limit.
    #[error("{what} of {got} bytes is over the limit of {limit}")]
    TooLong {
        /// What was too long.
        what: &'static str,
        /// The length that was given.
        got: u64,
        /// The limit for it.
        limit: u64,
    },
    /// A list has more elements than its limit.
    #[error("{got} {what} are over the limit of {limit}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        got: u64,
        /// The limit for them.
        limit: u64,
    },
    /// There are fewer bytes than the format needs.
    #[error("{what} is cut short: {got} of {need} bytes")]
    Truncated {
        /// What was cut.
        what: &'static str,
        /// Bytes that are there.
        got: u64,
        /// Bytes that are needed.
        need: u64,
    },
    /// A frame's header does not carry its own checksum.
    #[error("a frame's header is damaged: checksum {found:#010x}, computed {computed:#010x}")]
    HeaderChecksum {
        /// The checksum in the header.
        found: u32,
        /// The checksum of the header's other bytes.
        computed: u32,
    },
    /// A field holds a value that has no meaning.
    #[error("{what} {value} is unknown")]
    Unknown {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A field holds a value that contradicts another, or that must not be there.
    #[error("{what}")]
    Invalid {
        /// What is wrong, in words.
        what: &'static str,
    },
    /// Serialized data does not decode.
    #[error("{what} does not decode: {why}")]
    Undecodable {
        /// What was being decoded.
        what: &'static str,
        /// The decoder's own words.
        why: String,
    },
    /// A value of our own does not serialize.
    #[error("{what} does not encode: {why}")]
    Unencodable {
        /// What was being encoded.
        what: &'static str,
        /// The encoder's own words.
        why: String,
    },
    /// A printable token is malformed.
    #[error("not a segment token: {why}")]
    BadToken {
        /// What is wrong with it.
        why: String,
    },
}
