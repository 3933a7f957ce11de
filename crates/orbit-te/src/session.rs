//! A control link: questions and answers, and signs of life. Rule: runs on the control thread; whoever asks from
//! another thread gets its answer by a channel, and everybody who waits is told when the session ends.

use crate::error::Error;
use crate::letters::{self, Addressee, Deafness};
use crate::pulse::Pulse;
use crate::shared::Shared;
use crate::world::ControlLink;
use orbit_te_tcp::net::StreamSigns;
use orbit_te_wire::control::LENGTH_BYTES;
use orbit_te_wire::negotiate::Terms;
use orbit_te_wire::{Control, PeerId, RefusalCode, SessionId, WireError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Messages that wait to be written; a peer that does not read them makes senders wait.
const OUTGOING: usize = 256;
/// Questions that wait for their answers.
const MAX_WAITING: usize = 65_536;

/// Questions for a sign of life that may go unanswered.
const SILENT_BEATS: u32 = 3;

/// What waits to be written: a message's bytes, after the last of which the link is closed.
pub(crate) enum Outgoing {
    Message(Vec<u8>),
    Last(Vec<u8>),
}

/// One side of a control link.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) peer: PeerId,
    pub(crate) address: SocketAddr,
    terms: Terms,
    outgoing: mpsc::Sender<Outgoing>,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Control>>>,
    next: AtomicU64,
    gone: OnceLock<Arc<str>>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) deafness: Deafness,
}

impl Session {
    /// A session over a connection whose hello was answered, and the queue of its messages for [`run`].
    pub(crate) fn new(
        id: SessionId,
        peer: PeerId,
        address: SocketAddr,
        terms: Terms,
    ) -> (Arc<Session>, mpsc::Receiver<Outgoing>) {
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let session = Session {
            id,
            peer,
            address,
            terms,
            outgoing,
            waiting: Mutex::new(BTreeMap::new()),
            next: AtomicU64::new(1),
            gone: OnceLock::new(),
            pulse: Arc::new(Pulse::new()),
            deafness: Deafness::default(),
        };
        (Arc::new(session), queue)
    }

    /// Why it has ended, if it has.
    pub(crate) fn gone(&self) -> Option<Arc<str>> {
        self.gone.get().cloned()
    }

    fn gone_error(&self) -> Error {
        let cause = self.gone().map_or_else(|| "its session ended".to_string(), |c| c.to_string());
        Error::PeerGone { peer: self.peer, cause }
    }

    /// Asks and waits for the answer. A refusal is an error.
    pub(crate) async fn ask(
        &self,
        what: &'static str,
        limit: Duration,
        question: impl FnOnce(u64) -> Control,
    ) -> Result<Control, Error> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        // A question over the agreed limit is an error here, and never sent.
        let message = self.message(&question(request))?;
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if self.gone.get().is_some() {
                return Err(self.gone_error());
            }
            if waiting.len() >= MAX_WAITING {
                return Err(Error::Full { limit: MAX_WAITING });
            }
            waiting.insert(request, sender);
        }
        let exchange = async {
            self.outgoing.send(message).await.map_err(|_| self.gone_error())?;
            answer.await.map_err(|_| self.gone_error())
        };
        let answer = timeout(limit, exchange).await;
        self.waiting.lock().remove(&request);
        match answer {
            Err(_) => Err(Error::TimedOut { what, limit }),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Control::Refused { code, reason, .. })) => {
                Err(Error::Refused { address: self.address.to_string(), code: Some(code), reason })
            }
            Ok(Ok(answer)) => Ok(answer),
        }
    }

    /// Says something in the name of a transport; whether it will be written. Never waits.
    pub(crate) fn say(&self, transport: &str, bytes: Vec<u8>) -> bool {
        match self.message(&Control::Transport { transport: transport.to_string(), bytes }) {
            Ok(message) => self.gone.get().is_none() && self.outgoing.try_send(message).is_ok(),
            Err(error) => {
                tracing::warn!(peer = %self.peer, transport, %error, "a transport says what can't be written");
                false
            }
        }
    }

    /// Says goodbye, if there is room for it.
    pub(crate) fn goodbye(&self, reason: &str) {
        if let Ok(Outgoing::Message(bytes)) = self.message(&Control::Goodbye { reason: reason.to_string() }) {
            let _ = self.outgoing.try_send(Outgoing::Last(bytes));
        }
    }

    /// Waits until nothing is written any more.
    pub(crate) async fn ended(&self) {
        self.outgoing.closed().await;
    }

    /// What was agreed with the peer.
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    fn message(&self, message: &Control) -> Result<Outgoing, WireError> {
        Ok(Outgoing::Message(message.encode(self.terms.limits.control_bytes as usize)?))
    }

    fn ping(&self) {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        // A full queue is a sign of its own: the next beat finds out.
        if let Ok(ping) = self.message(&Control::Ping { request }) {
            let _ = self.outgoing.try_send(ping);
        }
    }

    fn answered(&self, request: u64, answer: Control) {
        // An answer that nobody waits for any more came after its question's limit.
        if let Some(sender) = self.waiting.lock().remove(&request) {
            let _ = sender.send(answer);
        }
    }

    fn end(&self, cause: &str) {
        let _ = self.gone.set(Arc::from(cause));
        self.waiting.lock().clear();
    }
}

/// Runs a session until it ends; why it did.
pub(crate) async fn run(
    session: Arc<Session>,
    link: ControlLink,
    queue: mpsc::Receiver<Outgoing>,
    (shared, letters_to): (Weak<Shared>, Addressee),
    heartbeat: Duration,
) -> Arc<str> {
    let ControlLink { reader, writer, signs } = link;
    // In order, here and below: which of two causes is told when both are there is then no chance.
    let cause = tokio::select! {
        biased;
        cause = read(&session, reader, &signs, (&shared, &letters_to), heartbeat) => cause,
        cause = write(writer, queue) => cause,
    };
    session.end(&cause);
    session.gone().unwrap_or_else(|| Arc::from(cause))
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Outgoing>) -> String {
    while let Some(message) = queue.recv().await {
        let (bytes, last) = match message {
            Outgoing::Message(bytes) => (bytes, false),
            Outgoing::Last(bytes) => (bytes, true),
        };
        if let Err(error) = writer.write_all(&bytes).await {
            return format!("writing to its control link failed: {error}");
        }
        if last {
            let _ = writer.shutdown().await;
            break;
        }
    }
    "this engine closed the session".to_string()
}

async fn read(
    session: &Arc<Session>,
    mut reader: impl AsyncRead + Unpin,
    signs: &(dyn Fn() -> Option<StreamSigns> + Sync),
    (shared, letters_to): (&Weak<Shared>, &Addressee),
    heartbeat: Duration,
) -> String {
    let heard = AtomicBool::new(true);
    let messages = async {
        loop {
            let message = match receive(&mut reader, session.terms.limits.control_bytes as usize).await {
                Ok(message) => message,
                Err(cause) => return cause,
            };
            heard.store(true, Ordering::Relaxed);
            session.pulse.heard();
            if let Some(cause) = handle(session, message, shared, letters_to).await {
                return cause;
            }
        }
    };
    let alive = async {
        // Counted, not timed: while this process itself is stopped, no beat passes.
        let mut silent_beats = 0;
        loop {
            let beat = tokio::time::sleep(heartbeat);
            tokio::pin!(beat);
            loop {
                tokio::select! {
                    biased;
                    () = &mut beat => break,
                    () = session.pulse.asked() => session.ping(),
                }
            }
            if heard.swap(false, Ordering::Relaxed) {
                silent_beats = 0;
                continue;
            }
            silent_beats += 1;
            if silent_beats > SILENT_BEATS {
                let silent = (heartbeat * silent_beats).as_secs_f32();
                return match signs().and_then(|signs| signs.unacknowledged_for) {
                    Some(lost) => format!(
                        "its host has acknowledged nothing for {:.1} s; is it, or the path to it, gone?",
                        lost.as_secs_f32()
                    ),
                    None => format!(
                        "silent for {silent:.1} s although its connection stands; is the process stopped?"
                    ),
                };
            }
            session.ping();
        }
    };
    tokio::select! {
        biased;
        cause = messages => cause,
        cause = alive => cause,
    }
}

async fn receive(reader: &mut (impl AsyncRead + Unpin), limit: usize) -> Result<Control, String> {
    let mut length = [0u8; LENGTH_BYTES];
    reader.read_exact(&mut length).await.map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "its process ended or closed the control link".to_string(),
        _ => format!("its control link broke: {e}"),
    })?;
    let length = Control::decode_length(length, limit).map_err(|e| format!("it broke the protocol: {e}"))?;
    // Grows with what has come, so that a length alone makes us allocate nothing.
    let mut body = Vec::new();
    let got = reader.take(length as u64).read_to_end(&mut body).await;
    match got {
        Ok(got) if got == length => {
            Control::decode_body(&body).map_err(|e| format!("it broke the protocol: {e}"))
        }
        Ok(_) => Err("its control link ended inside a message".to_string()),
        Err(e) => Err(format!("its control link broke: {e}")),
    }
}

/// Takes one message; the cause, if it ends the session.
async fn handle(
    session: &Arc<Session>,
    message: Control,
    shared: &Weak<Shared>,
    letters_to: &Addressee,
) -> Option<String> {
    let refused =
        |request, code, reason: &str| Control::Refused { request, code, reason: reason.to_string() };
    let closed = |request| refused(request, RefusalCode::ShuttingDown, "the engine is shutting down");
    let answer = match message {
        Control::Ping { request } => Control::Pong { request },
        Control::OpenSegment { request, name } => match shared.upgrade() {
            None => closed(request),
            Some(shared) => match shared.open_for(session.id, &name) {
                Ok(descriptor) => Control::Segment { request, descriptor },
                Err((code, reason)) => refused(request, code, &reason),
            },
        },
        Control::Addresses { request } => {
            let addresses = shared.upgrade().map(|shared| shared.addresses_for(session));
            Control::AddressesAre { request, addresses: addresses.unwrap_or_default() }
        }
        Control::Pong { request }
        | Control::Segment { request, .. }
        | Control::AddressesAre { request, .. }
        | Control::Refused { request, .. } => {
            session.answered(request, message);
            return None;
        }
        Control::Transport { transport, bytes } => {
            return letters::take(session, letters_to, shared, (&transport, bytes)).await;
        }
        Control::Goodbye { reason } => return Some(format!("it closed the session: {reason}")),
    };
    let answer = match session.message(&answer) {
        Ok(answer) => answer,
        Err(error) => return Some(format!("an answer to it can't be written: {error}")),
    };
    if session.outgoing.send(answer).await.is_err() {
        return Some("this engine closed the session".to_string());
    }
    None
}
