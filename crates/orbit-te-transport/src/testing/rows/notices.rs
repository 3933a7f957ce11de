//! Rows about notifications: each that is accepted completes once, with the mailbox's answer or with an error of its link; one that is sent again under
//! its number is taken once; and none keeps its bytes when it is over.
//!
//! Not checked here: order, which is made by whoever sends one at a time.

#![allow(unsafe_code)]

use crate::error::OpErrorCode;
use crate::mailbox::{Notice, Undelivered};
use crate::op::{LinkId, Token};
use crate::progress::{Completion, Event, Progress};
use crate::testing::letters::Letters;
use crate::testing::pair::Pair;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::{LocalKey, LocalSpan};
use orbit_te_wire::notification;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NEEDS: &[Need] = &[Need::Notifications];

pub(crate) const ROWS: &[Row] = &[
    Row { name: "notices_are_taken", needs: NEEDS, check: notices_are_taken },
    Row { name: "notices_wait_for_their_link", needs: NEEDS, check: notices_wait_for_their_link },
    Row { name: "refused_notices_are_told", needs: NEEDS, check: refused_notices_are_told },
    Row { name: "many_notices_on_many_links", needs: NEEDS, check: many_notices_on_many_links },
    Row { name: "notices_on_a_broken_link", needs: NEEDS, check: notices_on_a_broken_link },
    Row { name: "cancel_of_notices", needs: NEEDS, check: cancel_of_notices },
    Row { name: "disconnect_with_notices", needs: NEEDS, check: disconnect_with_notices },
    Row { name: "close_with_notices", needs: NEEDS, check: close_with_notices },
    Row { name: "notices_of_unknown_links", needs: NEEDS, check: notices_of_unknown_links },
];

/// Drives a pair through a row. Bytes of notices are kept apart from each other, and made foreign once their notice is over.
struct Sender<'p> {
    pair: &'p mut dyn Pair,
    letters: Arc<Letters>,
    bytes: HashMap<Token, Box<[u8]>>,
    done: HashMap<Token, Completion>,
    /// Bytes of those that are over: they stay mapped, since a transport that breaks its word may still look at them.
    over: Vec<Box<[u8]>>,
    tokens: u64,
    serves: bool,
}

impl<'p> Sender<'p> {
    fn new(pair: &'p mut dyn Pair) -> Sender<'p> {
        let Some(letters) = pair.letters() else { panic!("the pair has no letters") };
        let (bytes, done) = (HashMap::new(), HashMap::new());
        Sender { pair, letters, bytes, done, over: Vec::new(), tokens: 0, serves: true }
    }

    /// Both sides, once; whether the initiator did anything.
    fn step(&mut self) -> bool {
        if self.serves {
            self.pair.pump();
        }
        let mut progress = Progress::with_capacity(16);
        let any = self.pair.initiator().poll(Instant::now(), 16, &mut progress);
        for event in progress.events {
            if let Event::Control { link, bytes } = event {
                self.pair.carry(link, bytes);
            }
        }
        for completion in progress.completions {
            let Some(mut bytes) = self.bytes.remove(&completion.token) else {
                panic!("a completion of {:?}, which is under way no more or never was", completion.token)
            };
            bytes.fill(0xee);
            self.over.push(bytes);
            self.done.insert(completion.token, completion);
        }
        if !any {
            // Whoever drives a transport asks before it sleeps.
            self.pair.initiator().arm(Instant::now());
        }
        any
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Sender<'p>) -> bool) {
        let end = Instant::now() + self.pair.limit();
        while !holds(self) {
            assert!(Instant::now() < end, "{what}: not within {:?}", self.pair.limit());
            if !self.step() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Offers a notice once; its token if it was accepted.
    fn offer(&mut self, link: LinkId, number: u64, name: &str, payload: &[u8]) -> Option<Token> {
        let Ok(bytes) = notification::encode(name, payload) else { panic!("a row sends too much") };
        let bytes: Box<[u8]> = bytes.into();
        self.tokens += 1;
        let token = Token(1 << 63 | self.tokens);
        let (address, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let span = LocalSpan { address, length, key: LocalKey::default() };
        let notice = Notice { link, token, number, bytes: span };
        // SAFETY: the bytes are kept, and not changed, until the completion; after it they stay mapped for the rest of the row. Tokens differ.
        let taken = unsafe { self.pair.initiator().notify(&notice, Instant::now()) };
        if !taken {
            return None;
        }
        self.bytes.insert(token, bytes);
        Some(token)
    }

    /// Offers a notice until it is accepted.
    #[track_caller]
    fn send(&mut self, link: LinkId, number: u64, payload: &[u8]) -> Token {
        let mut token = None;
        self.until("a notice is accepted", |sender| {
            token = sender.offer(link, number, "row", payload);
            token.is_some()
        });
        let Some(token) = token else { unreachable!("it was accepted") };
        token
    }

    /// How a notice ends.
    #[track_caller]
    fn end(&mut self, token: Token) -> Result<(), OpErrorCode> {
        self.until("a notice ends", |sender| sender.done.contains_key(&token));
        let Some(completion) = self.done.remove(&token) else { unreachable!("it is there") };
        completion.result.map_err(|error| error.code)
    }

    /// Sends until it is taken, as the engine does.
    #[track_caller]
    fn send_through(&mut self, link: LinkId, number: u64, payload: &[u8]) {
        let end = Instant::now() + self.pair.limit();
        loop {
            let token = self.send(link, number, payload);
            match self.end(token) {
                Ok(()) => return,
                // A link that broke may take its time to be there again.
                Err(OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced | OpErrorCode::Unreachable)
                    if Instant::now() < end => {}
                Err(code) => panic!("notice {number} failed with {code:?}"),
            }
        }
    }

    /// The payloads that were taken.
    fn taken(&self) -> Vec<Vec<u8>> {
        self.letters.taken().into_iter().map(|letter| letter.payload).collect()
    }

    #[track_caller]
    fn finish(mut self) {
        self.until("everything ends", |sender| sender.bytes.is_empty());
        let initiator = self.pair.initiator();
        initiator.close(Instant::now());
        self.until("it is drained after closing", |sender| sender.pair.initiator().is_drained());
    }
}

/// Each arrives as it was sent, whatever its size.
pub fn notices_are_taken(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let link = sender.pair.connect();
    let sizes = [0, 1, 7, 8, 63, 64, 100, 200, 230];
    for (number, size) in (1..).zip(sizes) {
        sender.send_through(link, number, &vec![number as u8; size]);
    }
    let taken = sender.letters.taken();
    assert_eq!(taken.len(), sizes.len());
    for ((letter, number), size) in taken.iter().zip(1..).zip(sizes) {
        assert_eq!((letter.number, letter.name.as_str()), (number, "row"));
        assert!(letter.payload == vec![number as u8; size], "the payload of {number}");
    }
    sender.finish();
}

/// One that is sent before the link is up waits for it.
pub fn notices_wait_for_their_link(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let link = sender.pair.connect();
    let Some(token) = sender.offer(link, 1, "row", b"early") else { panic!("it was not accepted") };
    assert_eq!(sender.end(token), Ok(()));
    assert_eq!(sender.taken(), [b"early"]);
    sender.finish();
}

/// What the mailbox says is told, and what it refused may be sent under another number.
pub fn refused_notices_are_told(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let link = sender.pair.connect();
    sender.send_through(link, 1, b"first");
    let refusals = [
        (Undelivered::QueueFull, OpErrorCode::QueueFull),
        (Undelivered::NobodyListens, OpErrorCode::NobodyListens),
        (Undelivered::ShuttingDown, OpErrorCode::PeerShuttingDown),
    ];
    for (number, (why, code)) in (2..).zip(refusals) {
        sender.letters.refuse(Some(why));
        let token = sender.send(link, number, b"refused");
        assert_eq!(sender.end(token), Err(code));
    }
    sender.letters.refuse(None);
    // Again under the number of before: the answer is that of before.
    let token = sender.send(link, 4, b"refused");
    assert_eq!(sender.end(token), Err(OpErrorCode::PeerShuttingDown));
    sender.send_through(link, 5, b"last");
    assert_eq!(sender.taken(), [&b"first"[..], b"last"]);
    sender.finish();
}

/// More than anybody has room for, on several links at once: none is lost, none comes twice, and nothing is accepted that does not end.
pub fn many_notices_on_many_links(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let links: Vec<LinkId> = (0..3).map(|_| sender.pair.connect()).collect();
    // One at a time on each link, since two may overtake each other.
    let mut next = [0u64; 3];
    let mut current: [Option<Token>; 3] = [None; 3];
    sender.until("all are taken", |sender| {
        for (at, link) in links.iter().enumerate() {
            if let Some(done) = current[at].and_then(|token| sender.done.remove(&token)) {
                current[at] = None;
                match done.result.map_err(|error| error.code) {
                    Ok(()) => next[at] += 1,
                    Err(OpErrorCode::LinkBroken) => {}
                    Err(code) => panic!("a notice failed with {code:?}"),
                }
            }
            if current[at].is_none() && next[at] < 100 {
                let payload = [at as u8, next[at] as u8];
                current[at] = sender.offer(*link, next[at] + 1, "row", &payload);
            }
        }
        next == [100; 3]
    });
    let taken = sender.taken();
    assert_eq!(taken.len(), 300);
    for at in 0..3u8 {
        let of_link: Vec<u8> = taken.iter().filter(|payload| payload[0] == at).map(|p| p[1]).collect();
        assert!(of_link == (0..100).collect::<Vec<u8>>(), "link {at}: {of_link:?}");
    }
    sender.finish();
}

/// A link that breaks again and again: each ends once, and those that are sent again are taken once.
pub fn notices_on_a_broken_link(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let (link, other) = (sender.pair.connect(), sender.pair.connect());
    sender.send_through(link, 1, &[1]);
    sender.send_through(other, 1, &[101]);
    for number in 2..12u64 {
        let token = sender.send(link, number, &[number as u8]);
        // From before it has gone until after it was answered.
        for _ in 0..number - 2 {
            sender.step();
        }
        sender.pair.break_link(link);
        match sender.end(token) {
            Ok(()) => {}
            Err(OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced) => {
                sender.send_through(link, number, &[number as u8]);
            }
            Err(code) => panic!("notice {number} failed with {code:?}"),
        }
        sender.send_through(other, number, &[100 + number as u8]);
    }
    let mut taken: Vec<u8> = sender.taken().into_iter().map(|payload| payload[0]).collect();
    taken.sort_unstable();
    let want: Vec<u8> = (1..12).chain(101..112).collect();
    assert_eq!(taken, want);
    sender.finish();
}

/// One that is given up ends soon, also where the target is silent; later ones go.
pub fn cancel_of_notices(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let link = sender.pair.connect();
    sender.send_through(link, 1, b"before");
    sender.serves = false;
    let mut tokens = Vec::new();
    for number in 2..40 {
        tokens.extend(sender.offer(link, number, "row", b"given up"));
        if number % 2 == 0 {
            sender.step();
        }
    }
    assert!(!tokens.is_empty());
    for token in &tokens {
        sender.pair.initiator().cancel(*token..=*token, Instant::now());
    }
    // Strangers are no trouble.
    sender.pair.initiator().cancel(Token(5)..=Token(9), Instant::now());
    for token in tokens {
        let end = sender.end(token);
        let broken = matches!(end, Err(OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced));
        let cancelled = matches!(end, Err(OpErrorCode::Cancelled | OpErrorCode::CancelledUnfenced));
        assert!(broken || cancelled, "{end:?}");
    }
    sender.serves = true;
    sender.send_through(link, 40, b"after");
    assert_eq!(sender.taken().last().map(Vec::as_slice), Some(&b"after"[..]));
    sender.finish();
}

/// A link that is closed ends its own.
pub fn disconnect_with_notices(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let (link, other) = (sender.pair.connect(), sender.pair.connect());
    sender.send_through(link, 1, b"before");
    let tokens: Vec<_> =
        (2..20).filter_map(|number| sender.offer(link, number, "row", b"under way")).collect();
    sender.pair.initiator().disconnect(link, Instant::now());
    for token in tokens {
        let end = sender.end(token);
        let broken = matches!(end, Err(OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced));
        assert!(matches!(end, Ok(()) | Err(OpErrorCode::NoLink)) || broken, "{end:?}");
    }
    sender.send_through(other, 1, b"after");
    sender.finish();
}

/// Closing ends all.
pub fn close_with_notices(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let (link, other) = (sender.pair.connect(), sender.pair.connect());
    sender.send_through(link, 1, b"before");
    for number in 2..20 {
        sender.offer(link, number, "row", b"under way");
        sender.offer(other, number, "row", b"under way");
    }
    sender.pair.initiator().close(Instant::now());
    sender.until("all end after closing", |sender| sender.bytes.is_empty());
    assert!(sender.pair.initiator().is_drained());
    // One that comes late is not accepted, or fails.
    if let Some(late) = sender.offer(link, 30, "row", b"late") {
        assert!(sender.end(late).is_err());
    }
    sender.finish();
}

/// A number that no link has.
pub fn notices_of_unknown_links(pair: &mut dyn Pair) {
    let mut sender = Sender::new(pair);
    let good = sender.pair.connect();
    sender.send_through(good, 1, b"before");
    let near = LinkId { slot: good.slot, generation: good.generation.wrapping_add(1) };
    let far = LinkId { slot: u32::MAX - 1, generation: 1 };
    for link in [near, far] {
        let token = sender.send(link, 1, b"lost");
        assert_eq!(sender.end(token), Err(OpErrorCode::NoLink));
    }
    sender.send_through(good, 2, b"after");
    assert_eq!(sender.taken(), [&b"before"[..], b"after"]);
    sender.finish();
}
