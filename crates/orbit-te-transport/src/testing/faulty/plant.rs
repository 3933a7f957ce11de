//! The list of breaches. Rule: each names the promise that it breaks, and the row that must find it.
//!
//! A row that finds a plant may find others as well; that is not written down.

/// One breach of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// One success of ten is given out twice.
    CompletesTwice,
    /// One success of ten is never given out.
    LosesCompletion,
    /// A large op succeeds before its bytes have moved.
    CompletesEarly,
    /// Says that it has carried out an op by one call, and has not.
    ClaimsAtOnce,
    /// A read writes into its local span after its completion.
    TouchesAfterRead,
    /// A write is sent once more after its completion, as an unfenced retry would be.
    SendsAgain,
    /// A write puts one byte more into the target than asked.
    OverrunsTarget,
    /// The last byte does not move.
    MissesLastByte,
    /// A success counts one byte too few.
    CountsTooFew,
    /// A write to memory that peers may only read is done.
    IgnoresRights,
    /// A write to memory that peers may only read is refused, and done.
    WritesThenRefuses,
    /// A write lands in a region that was withdrawn.
    LandsAfterRetire,
    /// A write lands in a region that was withdrawn a while ago, and succeeds.
    SucceedsAfterRetire,
    /// A refused op takes its link with it.
    RefusalBreaksLink,
    /// When a link breaks, an op of another link fails.
    FailsOtherLink,
    /// A write whose link broke is said to be fenced, and lands a little later.
    LandsAfterBreak,
    /// Ops of a broken link never complete.
    LosesOpsOfBrokenLink,
    /// Ops never complete after closing.
    LosesOpsAtClose,
    /// All ops are accepted, and those that found no room are dropped.
    DropsWhenFull,
    /// A poll gives one completion too many.
    ExceedsBudget,
    /// A poll empties the caller's buffer.
    ClearsTheBuffer,
    /// A cancelled op completes at once, and goes on.
    LandsAfterCancel,
    /// An op that ended with its link and has moved bytes says that it touched nothing.
    SaysUntouched,
    /// Cancelling does nothing.
    IgnoresCancel,
    /// Cancelling a token that is not in flight completes it.
    CancelsStrangers,
    /// `arm` says sleep though a reply has come.
    SleepsThroughReplies,
    /// `arm` never says sleep.
    NeverSleeps,
    /// Two pieces of a list that are as long as each other take each other's place.
    SwapsPieces,
    /// A list write with a bad piece is refused when the pieces before it are in place.
    ChecksAsItGoes,
    /// The error of a bad piece does not say which it is.
    ForgetsThePiece,
    /// A list write puts one byte more behind its first piece.
    OverrunsPiece,
    /// A list that says another length than that of its pieces is done all the same.
    BelievesLength,
    /// A list write whose pieces overlap is done all the same.
    AllowsOverlap,
    /// The addresses of a list are looked at again after its completion.
    KeepsTheList,
    /// An op that is to be verified is refused.
    RefusesToVerify,
    /// A damaged payload is a success.
    DamagePasses,
    /// A damaged payload is said to have both sums alike.
    SumsAreAlike,
    /// A damaged payload is blamed on bytes that came well.
    BlamesOtherBytes,
    /// A damaged payload takes its link with it.
    DamageBreaksLink,
    /// Lanes of a link that was closed are still counted.
    CountsLanesOfTheGone,
    /// It is drained at all times.
    SaysDrained,
    /// It is drained at no time.
    NeverDrained,
}
