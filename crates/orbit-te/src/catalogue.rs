//! The catalogue of errors: a stable number and name for each, what broke, whether another route may help, and the remedy. Rule: a
//! number is never reused, and `docs/errors.md` says the same, which a test holds.

use crate::condition::PeerCondition;
use crate::error::{Error, TransferError};
use orbit_te_memory::MemoryError;
use orbit_te_transport::ErrorClass::{self, Device, Link, Op};
use orbit_te_transport::{OpErrorCode, TransportError};
use std::fmt;

/// One row of the catalogue.
#[derive(Debug)]
struct Entry {
    number: u16,
    name: &'static str,
    class: ErrorClass,
    what: &'static str,
    remedy: &'static str,
}

/// The stable code of an error: [`Error::code`] and [`TransferError::code`] give it. Numbers below 100 are those of
/// [`OpErrorCode::number`].
#[derive(Clone, Copy)]
pub struct ErrorCode(&'static Entry);

impl ErrorCode {
    /// Its number. Never reused.
    pub fn number(self) -> u16 {
        self.0.number
    }

    /// Its short name. Never changed.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// What broke, in general; the error's own words say it of this case.
    pub fn what(self) -> &'static str {
        self.0.what
    }

    /// What is broken: the op or call alone, the link to the peer, or something of this host.
    pub fn class(self) -> ErrorClass {
        self.0.class
    }

    /// Whether the same on another link or transport may succeed.
    pub fn another_route_may_help(self) -> bool {
        self.0.class != ErrorClass::Op
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        self.0.remedy
    }

    /// All codes there are, by number.
    pub fn all() -> impl Iterator<Item = ErrorCode> {
        CATALOGUE.iter().map(ErrorCode)
    }

    /// The code of an op's error.
    pub fn of_op(code: OpErrorCode) -> ErrorCode {
        ErrorCode::numbered(code.number())
    }

    fn numbered(number: u16) -> ErrorCode {
        let found = CATALOGUE.binary_search_by_key(&number, |entry| entry.number);
        // A code that a newer transport has and this table lacks; a test holds that there is none.
        ErrorCode(found.map_or(&UNLISTED, |at| &CATALOGUE[at]))
    }
}

impl PartialEq for ErrorCode {
    fn eq(&self, other: &ErrorCode) -> bool {
        self.number() == other.number()
    }
}

impl Eq for ErrorCode {}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As in `E15 unreachable`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{} {}", self.number(), self.name())
    }
}

impl Error {
    /// Its code in the catalogue.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::numbered(match self {
            Error::Config(_) => 100,
            Error::Untrusted(_) => 101,
            Error::BadAddress { .. } => 102,
            Error::Unreachable { .. } => 103,
            Error::Refused { .. } => 104,
            Error::OtherPeer { .. } => 105,
            Error::PeerGone { .. } => 106,
            Error::NameTaken(_) => 107,
            Error::BadName { .. } => 108,
            Error::BadRequest { .. } => 109,
            Error::Full { .. } => 110,
            Error::TooLarge { .. } => 111,
            Error::TimedOut { .. } => 112,
            Error::Closed => 113,
            Error::Wire(_) => 114,
            Error::BadList(_) => 115,
            Error::Memory(error) => memory(error),
            Error::Registration(error) => memory(&error.source),
            Error::Transport(error) => match error {
                TransportError::Unavailable { .. } => 401,
                TransportError::BadAddress { .. } => 402,
                TransportError::TooManyLinks { .. } => 403,
                TransportError::NoLink { .. } => 404,
                TransportError::Wire(_) => 114,
                TransportError::RefusedByPeer(_) => 405,
                TransportError::Io { .. } => 406,
                _ => 400,
            },
        })
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        self.code().remedy()
    }
}

fn memory(error: &MemoryError) -> u16 {
    match error {
        MemoryError::ZeroLength { .. } => 301,
        MemoryError::OutOfRange { .. } => 302,
        MemoryError::NoMemory { .. } => 303,
        MemoryError::NoRandom(_) => 304,
        MemoryError::Retired { .. } => 305,
        MemoryError::BeingRevoked { .. } => 306,
        MemoryError::StillLeased { .. } => 307,
        MemoryError::Refused { .. } => 308,
        MemoryError::BadRemoteKey { .. } => 309,
        MemoryError::OverLimit { .. } => 310,
        MemoryError::Overlap { .. } => 311,
        MemoryError::TooManyGrants { .. } => 312,
        MemoryError::HolderGone => 313,
        MemoryError::UnknownGrant { .. } => 314,
        _ => 300,
    }
}

impl TransferError {
    /// Its code in the catalogue. That of a failed request is the code of its op error.
    pub fn code(&self) -> ErrorCode {
        match self {
            TransferError::Request { error, .. } => ErrorCode::of_op(error.code),
            TransferError::Deadline { peer, .. } => ErrorCode::numbered(match peer {
                None => 200,
                Some(PeerCondition::Slow { .. }) => 205,
                Some(PeerCondition::Stalled { .. }) => 206,
                Some(PeerCondition::Unreachable { .. }) => 207,
            }),
            TransferError::Cancelled { .. } => ErrorCode::numbered(201),
            TransferError::Notification(_) => ErrorCode::numbered(202),
            TransferError::Closed { .. } => ErrorCode::numbered(203),
            TransferError::WorkerFailed(_) => ErrorCode::numbered(204),
        }
    }

    /// What is known of the first cause, in words.
    pub fn cause(&self) -> Option<&str> {
        match self {
            TransferError::Request { cause, .. } | TransferError::Deadline { cause, .. } => cause.as_deref(),
            TransferError::Notification(cause) | TransferError::WorkerFailed(cause) => Some(cause),
            TransferError::Cancelled { .. } | TransferError::Closed { .. } => None,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        self.code().remedy()
    }
}

static UNLISTED: Entry = entry(
    0,
    "unlisted",
    Op,
    "a transport gave a code that this version does not list",
    "use crates of one version; see the error's own words",
);

const fn entry(
    number: u16,
    name: &'static str,
    class: ErrorClass,
    what: &'static str,
    remedy: &'static str,
) -> Entry {
    Entry { number, name, class, what, remedy }
}

const REOPEN: &str = "open the segment again";
const OWN_LIMITS: &str = "keep requests inside of the segment, as long as its `len` says";
const RETRY_LATER: &str = "submit it again; if it comes back, look at the network and at the peer's log";

/// In the order of their numbers.
static CATALOGUE: &[Entry] = &[
    entry(1, "unknown-region", Op, "the peer has no such region, or has withdrawn it", REOPEN),
    entry(2, "stale-generation", Op, "the peer has revoked what this side knew of the region", REOPEN),
    entry(3, "out-of-range", Op, "the range reaches past the end of the peer's region", OWN_LIMITS),
    entry(
        4,
        "access-denied",
        Op,
        "the peer's region does not permit this",
        "have its owner register it with the right that is needed",
    ),
    entry(5, "bad-key", Op, "the region key is wrong", REOPEN),
    entry(
        6,
        "bad-length",
        Op,
        "the length is zero or over a limit",
        "divide the request, and leave out empty ones",
    ),
    entry(
        7,
        "remote-memory-fault",
        Op,
        "the peer could not touch its memory",
        "look at the peer: a served file cut short, or a full disk",
    ),
    entry(
        8,
        "local-memory-fault",
        Op,
        "the local memory could not be touched",
        "keep the mapped file as long as it was, and the memory mapped",
    ),
    entry(
        9,
        "checksum",
        Op,
        "the payload came damaged",
        "submit it again; if it comes back, test the host's memory and network",
    ),
    entry(
        10,
        "peer-shutting-down",
        Link,
        "the peer is shutting down",
        "open a segment of a peer that stays, or wait for its successor",
    ),
    entry(
        11,
        "cancelled",
        Op,
        "the request was given up, and nobody can touch its memory any more",
        "none is needed; submit it again if it is wanted after all",
    ),
    entry(
        12,
        "cancelled-unfenced",
        Op,
        "the request was given up, and the peer could not be asked to fence it",
        "do not reuse the peer's memory until its engine has ended or revoked the region",
    ),
    entry(13, "no-link", Link, "the link to the peer was closed", REOPEN),
    entry(
        14,
        "link-broken",
        Link,
        "the link broke under the request, and nobody can touch its memory any more",
        RETRY_LATER,
    ),
    entry(
        15,
        "unreachable",
        Link,
        "the peer can't be reached",
        "see whether its process runs and its port is open from here",
    ),
    entry(
        16,
        "protocol",
        Link,
        "the peer broke the protocol",
        "use the same version at both sides; otherwise report it",
    ),
    entry(17, "transport-closed", Device, "the transport was closed", "start a new engine"),
    entry(
        18,
        "unsupported",
        Op,
        "the transport does not do this",
        "see the capabilities of the transport, and ask for another",
    ),
    entry(
        19,
        "link-broken-unfenced",
        Link,
        "the link broke under the request, and the peer could not be asked to fence it",
        "do not reuse the peer's memory until its engine has ended or revoked the region",
    ),
    entry(20, "grant-ended", Op, "the grant to the region was revoked, or has expired", REOPEN),
    entry(
        21,
        "overlap",
        Op,
        "pieces of a list overlap where they are written",
        "give every byte one piece; the message names the first that overlaps",
    ),
    entry(
        22,
        "queue-full",
        Op,
        "the peer's queue of notifications is full",
        "send it again later; have the peer take its notifications",
    ),
    entry(
        23,
        "nobody-listens",
        Op,
        "nobody takes notifications at the peer any more",
        "have the peer keep the receiver of its notifications",
    ),
    entry(100, "config", Op, "the configuration can't be used", "change the setting that the message names"),
    entry(
        101,
        "untrusted-network",
        Op,
        "the engine would listen where strangers can reach it",
        "say that the network is trusted, or listen on the loopback interface",
    ),
    entry(
        102,
        "bad-address",
        Op,
        "the address of a segment can't be understood",
        "write HOST:PORT/NAME, or give a token",
    ),
    entry(
        103,
        "no-connection",
        Link,
        "no connection to the peer could be made",
        "see whether its process runs and its port is open from here",
    ),
    entry(
        104,
        "refused",
        Op,
        "the peer refused",
        "the peer's words say why: a name it does not expose, a full queue, a limit",
    ),
    entry(
        105,
        "other-peer",
        Op,
        "another process answers where the owner of the token was",
        "ask for a new token",
    ),
    entry(106, "peer-gone", Link, "the session with the peer has ended", REOPEN),
    entry(
        107,
        "name-taken",
        Op,
        "a segment of that name is exposed already",
        "withdraw it first, or take another name",
    ),
    entry(
        108,
        "bad-name",
        Op,
        "the name is not usable",
        "take a name of 1 to 255 bytes without `@` and line breaks",
    ),
    entry(
        109,
        "bad-request",
        Op,
        "a request does not fit its segment or its slice",
        "correct the request that the message names by its index",
    ),
    entry(
        110,
        "full",
        Op,
        "as much is under way as may be",
        "wait for a transfer to end, or use the `submit` that waits",
    ),
    entry(
        111,
        "too-large",
        Op,
        "the batch has more requests than may ever be under way",
        "divide the batch, or raise `queued_requests`",
    ),
    entry(
        112,
        "timed-out",
        Link,
        "the call took longer than its limit",
        "see whether the peer is stopped or slow; raise the limit if it is merely far",
    ),
    entry(113, "engine-closed", Op, "the engine is shut down", "start a new engine"),
    entry(
        114,
        "wire",
        Link,
        "a token or a message does not decode",
        "give the token whole; use the same version at both sides",
    ),
    entry(
        115,
        "bad-list",
        Op,
        "a list of pieces can't be prepared or posted",
        "correct the piece that the message names by its number",
    ),
    entry(
        200,
        "deadline",
        Link,
        "the transfer was not done at its deadline",
        "see the error's own words; give large transfers more time",
    ),
    entry(
        201,
        "transfer-cancelled",
        Op,
        "the transfer was cancelled",
        "none is needed; see `landed` and `fenced` before memory of the peer is reused",
    ),
    entry(
        202,
        "notification",
        Op,
        "the bytes are in place, and the notification was not delivered",
        "send the notification again by itself; have the peer take its notifications",
    ),
    entry(
        203,
        "transfer-closed",
        Op,
        "the engine was shut down under the transfer",
        "wait for transfers before shutting down; see `landed` and `fenced`",
    ),
    entry(
        204,
        "worker-failed",
        Device,
        "the engine's worker has panicked under the transfer",
        "start a new engine, and report the message; the memory is kept, and listed as retained",
    ),
    entry(
        205,
        "deadline-slow",
        Link,
        "the transfer was not done at its deadline, though the peer was moving its bytes",
        "give it more time, or move less at once; see what slows the peer or the path",
    ),
    entry(
        206,
        "deadline-stalled",
        Link,
        "the transfer was not done at its deadline, and the peer's process took and answered nothing",
        "see whether its process is stopped, hangs or gets no CPU; submit it again when it goes on",
    ),
    entry(
        207,
        "deadline-unreachable",
        Link,
        "the transfer was not done at its deadline, and the peer's host acknowledged nothing",
        "see whether its host runs and the network to it works; submit it again when it does",
    ),
    entry(
        300,
        "memory",
        Op,
        "memory could not be had, registered, reached or retired",
        "see the error's own words",
    ),
    entry(301, "zero-length", Op, "the length is zero", "give it at least one byte"),
    entry(
        302,
        "memory-out-of-range",
        Op,
        "the range lies outside of its region or buffer",
        "keep ranges inside of the region",
    ),
    entry(
        303,
        "no-memory",
        Device,
        "the operating system gave no memory",
        "ask for less, or give the process more",
    ),
    entry(
        304,
        "no-random",
        Device,
        "the operating system gave no random bytes",
        "see whether the process may use `getrandom`",
    ),
    entry(305, "retired", Op, "the region is retired, or is being retired", "register its memory again"),
    entry(
        306,
        "being-revoked",
        Op,
        "the region is being revoked, and old requests have not ended",
        "try again a little later",
    ),
    entry(
        307,
        "still-leased",
        Op,
        "requests still touch the region at the limit",
        "wait for transfers that use it, or cancel them; the memory is kept until then",
    ),
    entry(
        308,
        "memory-refused",
        Device,
        "a transport can't register this memory",
        "see the error's own words: the kind, size or alignment of the memory",
    ),
    entry(
        309,
        "bad-remote-key",
        Op,
        "the peer's key for the region does not parse",
        "use the same version at both sides",
    ),
    entry(
        310,
        "over-limit",
        Op,
        "more bytes would be registered than the limit permits",
        "retire regions and drop their handles, or raise the limit",
    ),
    entry(
        311,
        "rights-overlap",
        Op,
        "the memory is registered already with other rights, where a transport shares one registration",
        "register it once with all rights that are needed",
    ),
    entry(
        312,
        "too-many-grants",
        Op,
        "the peer's session has as many segments open as it may",
        "drop segments that are not needed, or raise `session_grants` at the owner",
    ),
    entry(313, "holder-gone", Link, "the session that asked for the grant has ended", REOPEN),
    entry(
        314,
        "unknown-grant",
        Op,
        "there is no such grant, or it has ended",
        "see `Engine::grants` for those there are",
    ),
    entry(
        400,
        "transport",
        Device,
        "a transport could not be opened, or a link not be made",
        "see the error's own words",
    ),
    entry(
        401,
        "transport-unavailable",
        Device,
        "the transport is not there on this machine",
        "see the error's own words for what is missing",
    ),
    entry(
        402,
        "bad-transport-address",
        Link,
        "the peer's address can't be used by the transport",
        "have the peer advertise an address that is reachable from here",
    ),
    entry(
        403,
        "too-many-links",
        Device,
        "all slots for links are in use",
        "drop segments of peers that are not needed, or raise `max_links`",
    ),
    entry(404, "no-such-link", Link, "the link was closed", REOPEN),
    entry(
        405,
        "connection-refused",
        Link,
        "the peer refused the connection",
        "the peer's words say why: too many peers, an unknown session, another version",
    ),
    entry(
        406,
        "system",
        Device,
        "the operating system refused something",
        "the message has the system's own error; mostly the limit of open files",
    ),
];
