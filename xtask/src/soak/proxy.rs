//! A middle-man: forwards connections to a target, and cuts them, delays them, leaves them half open or turns new ones
//! away. Rule: it looks at no byte, and what it does to a connection it does to both directions.

use anyhow::Context;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

const PIECE_BYTES: usize = 64 << 10;
/// How often a connection that has nothing to forward looks what it is to do.
const TICK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    pipes: Mutex<Vec<Weak<Pipe>>>,
    turns_away: AtomicBool,
    /// Nothing is read, forwarded or closed.
    is_still: AtomicBool,
    /// Before each piece that is forwarded.
    delay_us: AtomicU64,
}

struct Pipe {
    near: TcpStream,
    far: TcpStream,
}

/// A middle-man before one target.
pub(super) struct Proxy {
    pub(super) at: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub(super) fn start(target: SocketAddr) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a middle-man's port")?;
        let at = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = if shared.turns_away.load(Ordering::Acquire) { None } else { reach(target) };
                let Some(far) = far else { continue };
                let pipe = Arc::new(Pipe { near, far });
                let mut pipes = shared.pipes.lock();
                pipes.retain(|pipe| pipe.strong_count() > 0);
                pipes.push(Arc::downgrade(&pipe));
                for forward in [true, false] {
                    let (pipe, shared) = (pipe.clone(), shared.clone());
                    std::thread::spawn(move || carry(&pipe, forward, &shared));
                }
            }
        });
        Ok(Proxy { at, state })
    }

    /// Cuts every connection.
    pub(super) fn cut(&self) {
        self.state.pipes.lock().iter().filter_map(Weak::upgrade).for_each(|pipe| pipe.cut());
    }

    pub(super) fn turn_away(&self, yes: bool) {
        self.state.turns_away.store(yes, Ordering::Release);
    }

    /// Leaves all connections half open: they stand, and nothing comes through.
    pub(super) fn be_still(&self, yes: bool) {
        self.state.is_still.store(yes, Ordering::Release);
    }

    pub(super) fn delay(&self, by: Duration) {
        self.state.delay_us.store(by.as_micros() as u64, Ordering::Release);
    }
}

fn reach(target: SocketAddr) -> Option<TcpStream> {
    let far = TcpStream::connect_timeout(&target, Duration::from_secs(1)).ok()?;
    far.set_nodelay(true).ok()?;
    Some(far)
}

impl Pipe {
    fn cut(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

/// Forwards one direction until it ends, and ends the other one then.
fn carry(pipe: &Pipe, forward: bool, state: &State) {
    let (mut from, mut to) = if forward { (&pipe.near, &pipe.far) } else { (&pipe.far, &pipe.near) };
    let _ = pipe.near.set_nodelay(true);
    let _ = from.set_read_timeout(Some(TICK));
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if state.is_still.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            continue;
        }
        let count = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        let delay = state.delay_us.load(Ordering::Acquire);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    pipe.cut();
}
