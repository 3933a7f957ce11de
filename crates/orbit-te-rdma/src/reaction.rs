//! What is done about a device's asynchronous events. Rule: each event that is known has one row, with its reason; what is not known is
//! noted and changes nothing.

use crate::handle::AsyncKind;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reaction {
    /// It is counted and logged.
    Note,
    /// The rail is down: its ops fail with an error of the link once its QPs are destroyed, others go another way, and it is tried again
    /// when the port is active.
    RailDown,
    /// The rail is tried again, at once.
    RailAgain,
    /// The port's GIDs are read again; QPs whose own GID is no longer at its index are made anew. Whoever connects to this side is told what
    /// there is.
    RequeryGids,
    /// The port is read again; all its QPs are made anew where its LID has changed.
    RequeryLid,
    /// The port's P_Keys are read again; QPs whose partition is no longer at its index are made anew.
    RequeryPartitions,
    /// The port's subnet may have forgotten it: LID, GIDs and P_Keys are read again, and its QPs are made anew where theirs changed.
    RequeryPort,
    /// The QP is destroyed, its ops settled, and its connection made anew.
    RebuildQueue,
    /// The CQ is destroyed with all QPs that complete there, their ops settled, and all made anew.
    RebuildCompletionQueue,
    /// The receive queue is destroyed with all QPs that receive there, and all made anew. There is none: QPs share no receive queues here, so
    /// that nothing is done.
    RebuildReceiveQueue,
    /// Everything of the device is given up: its rails are out of use, and their connections are made anew over others. What can't be destroyed
    /// is retained with its owners, memory included. The device is not opened again by this process, also where it comes back: memory would
    /// have to be registered there anew.
    DropDevice,
}

impl Reaction {
    /// Whether ops can fail by it.
    pub fn breaks_ops(self) -> bool {
        !matches!(self, Reaction::Note | Reaction::RailAgain)
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Which event.
    pub kind: AsyncKind,
    /// What is done.
    pub reaction: Reaction,
    /// Why that.
    pub why: &'static str,
}

macro_rules! rows {
    ($($kind:ident, $reaction:ident, $why:literal;)*) => {
        /// The table, in the order of the numbers of verbs.
        pub const ROWS: &[Row] =
            &[$(Row { kind: AsyncKind::$kind, reaction: Reaction::$reaction, why: $why },)*];
    };
}

rows! {
    CqError, RebuildCompletionQueue, "completions were lost, so that nobody knows which requests ended; only destroying their QPs settles them";
    QpFatal, RebuildQueue, "the QP is in error and may complete nothing more";
    QpRequestError, RebuildQueue, "a request of the peer made no sense; the QP is in error";
    QpAccessError, RebuildQueue, "the peer used a key that is over; the QP is in error, and the peer's ops get the reason by their completions";
    CommunicationEstablished, Note, "the first message came before the handshake had ended; the handshake decides";
    SendQueueDrained, Note, "follows a change of state that was asked for";
    PathMigrated, Note, "no alternate paths are set, so that a switch does this by itself; bytes go on";
    PathMigrationFailed, Note, "no alternate paths are set; the QP goes on by its own path, or fails by itself";
    DeviceFatal, DropDevice, "the device is gone or has to be reset; no object of it works, and destroying some may fail";
    PortActive, RailAgain, "the port carries packets again; QPs that were stuck don't recover by it, and are made anew by the attempt";
    PortError, RailDown, "no packet goes out, and requests may neither end nor fail: their completions may never come";
    LidChange, RequeryLid, "peers send to the former LID";
    PkeyChange, RequeryPartitions, "a QP's index may stand for another partition now";
    SmChange, Note, "paths stay as they are; a change of LIDs or P_Keys comes as its own event";
    SrqError, RebuildReceiveQueue, "receives of it are lost, for all QPs that share it";
    SrqLimit, Note, "receives run low; they are posted again at each completion in any case";
    LastWqeReached, Note, "a QP in error with a shared receive queue takes no more receives; the error itself is handled";
    ClientReregister, RequeryPort, "the subnet manager has begun anew, and may have given out other addresses";
    GidChange, RequeryGids, "an address was added or taken away; QPs that send from one that is gone fail at their next packet";
    WqFatal, RebuildReceiveQueue, "a work queue is in error, for all QPs that use it";
}

/// The row of an event; none for one that is not known, which is noted.
pub fn row(kind: AsyncKind) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.kind == kind)
}

/// What is done about an event.
pub fn reaction(kind: AsyncKind) -> Reaction {
    row(kind).map_or(Reaction::Note, |row| row.reaction)
}
