//! Planted faults of the engine, one of each class that a checker is for. Rule: each breaks one promise, once (a fence: always), at the
//! boundary of the engine; the engine itself has no hook for it.

/// A fault to be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The transport completes an op a second time.
    DoubleCompletion,
    /// A lease is taken and never given back.
    LostLease,
    /// The transport says that a write is over before it has sent it.
    EarlyCompletion,
    /// A notification that was acknowledged does not reach the application.
    DroppedNotification,
    /// A notification reaches the application twice.
    DoubleNotification,
    /// The transport never completes an op.
    LeakedTransfer,
    /// A byte of a payload is changed on its way into memory.
    WrongByte,
    /// Two pieces of a list take each other's place.
    MisplacedPiece,
    /// An op whose payload came damaged is a success.
    DamagePasses,
    /// The error of a damaged payload names another range.
    OtherRange,
    /// Revoking a grant does nothing, and says that it is over.
    GrantGoesOn,
    /// An engine says that it is shut down while its transfers go on.
    ShutDownTooSoon,
    /// The worker takes more transfers than it may.
    OverfullQueue,
    /// A handle of an engine is never dropped.
    LostEngine,
    /// The transport says of every write that nothing of it can land any more.
    FencedAnyhow,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 15] = [
        Plant::DoubleCompletion,
        Plant::LostLease,
        Plant::EarlyCompletion,
        Plant::DroppedNotification,
        Plant::DoubleNotification,
        Plant::LeakedTransfer,
        Plant::WrongByte,
        Plant::MisplacedPiece,
        Plant::DamagePasses,
        Plant::OtherRange,
        Plant::GrantGoesOn,
        Plant::ShutDownTooSoon,
        Plant::OverfullQueue,
        Plant::LostEngine,
        Plant::FencedAnyhow,
    ];
}
