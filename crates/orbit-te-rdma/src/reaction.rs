//! What is done about a device's asynchronous events. Rule: each event that is known has one row, with its reason; what is not known is
//! noted and changes nothing.

use std::fmt;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// One QP.
    Queue,
    /// One CQ.
    CompletionQueue,
    /// One shared receive queue (SRQ), or one work queue.
    ReceiveQueue,
    /// One port.
    Port,
    /// The device.
    Device,
}

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
    /// The port's GIDs are read again; QPs whose own GID is no longer at its index are made anew, and the peer is told what there is.
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
    /// The receive queue is destroyed with all QPs that receive there, and all made anew.
    RebuildReceiveQueue,
    /// Everything of the device is given up, what can't be destroyed is retained with its owners, and the device is looked for again.
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
    pub event: AsyncEvent,
    /// The number that verbs have for it (`enum ibv_event_type`).
    pub number: u32,
    /// What it is about.
    pub subject: Subject,
    /// What is done.
    pub reaction: Reaction,
    /// Why that.
    pub why: &'static str,
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $subject:ident, $reaction:ident, $why:literal;)*) => {
        /// An asynchronous event (`enum ibv_event_type`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum AsyncEvent {
            $($(#[$doc])* $name,)*
            /// A number that is not known here.
            Unknown(u32),
        }

        /// The table, in the order of the numbers.
        pub const ROWS: &[Row] = &[$(Row {
            event: AsyncEvent::$name,
            number: $number,
            subject: Subject::$subject,
            reaction: Reaction::$reaction,
            why: $why,
        },)*];

        impl AsyncEvent {
            /// That of a number of verbs.
            pub fn from_number(number: u32) -> AsyncEvent {
                match number {
                    $($number => AsyncEvent::$name,)*
                    other => AsyncEvent::Unknown(other),
                }
            }
        }
    };
}

events! {
    /// `IBV_EVENT_CQ_ERR`
    CqError = 0, CompletionQueue, RebuildCompletionQueue, "completions were lost, so that nobody knows which requests ended; only destroying their QPs settles them";
    /// `IBV_EVENT_QP_FATAL`
    QpFatal = 1, Queue, RebuildQueue, "the QP is in error and may complete nothing more";
    /// `IBV_EVENT_QP_REQ_ERR`
    QpRequestError = 2, Queue, RebuildQueue, "a request of the peer made no sense; the QP is in error";
    /// `IBV_EVENT_QP_ACCESS_ERR`
    QpAccessError = 3, Queue, RebuildQueue, "the peer used a key that is over; the QP is in error, and the peer's ops get the reason by their completions";
    /// `IBV_EVENT_COMM_EST`
    CommunicationEstablished = 4, Queue, Note, "the first message came before the handshake had ended; the handshake decides";
    /// `IBV_EVENT_SQ_DRAINED`
    SendQueueDrained = 5, Queue, Note, "follows a change of state that was asked for";
    /// `IBV_EVENT_PATH_MIG`
    PathMigrated = 6, Queue, Note, "no alternate paths are set, so that a switch does this by itself; bytes go on";
    /// `IBV_EVENT_PATH_MIG_ERR`
    PathMigrationFailed = 7, Queue, Note, "no alternate paths are set; the QP goes on by its own path, or fails by itself";
    /// `IBV_EVENT_DEVICE_FATAL`
    DeviceFatal = 8, Device, DropDevice, "the device is gone or has to be reset; no object of it works, and destroying some may fail";
    /// `IBV_EVENT_PORT_ACTIVE`
    PortActive = 9, Port, RailAgain, "the port carries packets again; QPs that were stuck don't recover by it, and are made anew by the attempt";
    /// `IBV_EVENT_PORT_ERR`
    PortError = 10, Port, RailDown, "no packet goes out, and requests may neither end nor fail: their completions may never come";
    /// `IBV_EVENT_LID_CHANGE`
    LidChange = 11, Port, RequeryLid, "peers send to the former LID";
    /// `IBV_EVENT_PKEY_CHANGE`
    PkeyChange = 12, Port, RequeryPartitions, "a QP's index may stand for another partition now";
    /// `IBV_EVENT_SM_CHANGE`
    SmChange = 13, Port, Note, "paths stay as they are; a change of LIDs or P_Keys comes as its own event";
    /// `IBV_EVENT_SRQ_ERR`
    SrqError = 14, ReceiveQueue, RebuildReceiveQueue, "receives of it are lost, for all QPs that share it";
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`
    SrqLimit = 15, ReceiveQueue, Note, "receives run low; they are posted again at each completion in any case";
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`
    LastWqeReached = 16, Queue, Note, "a QP in error with a shared receive queue takes no more receives; the error itself is handled";
    /// `IBV_EVENT_CLIENT_REREGISTER`
    ClientReregister = 17, Port, RequeryPort, "the subnet manager has begun anew, and may have given out other addresses";
    /// `IBV_EVENT_GID_CHANGE`
    GidChange = 18, Port, RequeryGids, "an address was added or taken away; QPs that send from one that is gone fail at their next packet";
    /// `IBV_EVENT_WQ_FATAL`
    WqFatal = 19, ReceiveQueue, RebuildReceiveQueue, "a work queue is in error, for all QPs that use it";
}

/// The row of an event; none for one that is not known, which is noted.
pub fn row(event: AsyncEvent) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.event == event)
}

/// What is done about an event.
pub fn reaction(event: AsyncEvent) -> Reaction {
    row(event).map_or(Reaction::Note, |row| row.reaction)
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, row(*self)) {
            (AsyncEvent::Unknown(number), _) => {
                write!(f, "an event of number {number}, which is not known here")
            }
            (event, Some(row)) => write!(f, "{event:?}: {}", row.why),
            (event, None) => write!(f, "{event:?}"),
        }
    }
}
