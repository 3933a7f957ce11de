//! A middle-man between an engine and a target: counts connections, lets only so many through, can be slow, cut lanes, and hold back what is
//! sent on them.

use nix::sys::socket::{setsockopt, sockopt};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to connections over the number that is let through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// They are closed at once.
    TurnedAway,
    /// They stand, and nobody reads from them.
    Held,
}

struct State {
    accepted: AtomicUsize,
    let_through: AtomicUsize,
    through: AtomicUsize,
    others: Others,
    slow: AtomicBool,
    stop: AtomicBool,
    /// What is sent to the target on connections with a number from 1 to below this one is held back.
    held_below: AtomicUsize,
    all: Mutex<Vec<TcpStream>>,
}

pub struct Proxy {
    pub at: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub fn start(target: SocketAddr, let_through: usize, others: Others) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Little is hidden from the sender in buffers of the middle-man.
        setsockopt(&listener, sockopt::RcvBuf, &(64 << 10)).unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State {
            accepted: AtomicUsize::new(0),
            let_through: AtomicUsize::new(let_through),
            through: AtomicUsize::new(0),
            others,
            slow: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            held_below: AtomicUsize::new(0),
            all: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.stop.load(Ordering::Acquire) {
                    return;
                }
                shared.accepted.fetch_add(1, Ordering::AcqRel);
                let full =
                    shared.through.load(Ordering::Acquire) >= shared.let_through.load(Ordering::Acquire);
                if full {
                    if shared.others == Others::Held {
                        shared.all.lock().unwrap().push(near);
                    }
                    continue;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                let number = shared.through.fetch_add(1, Ordering::AcqRel);
                for (from, to, towards) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = shared.clone();
                    // The first connection is the control link.
                    let lane = Some(number).filter(|number| towards && *number > 0);
                    std::thread::spawn(move || copy(&from, &to, lane, &state));
                }
                shared.all.lock().unwrap().extend([near, far]);
            }
        });
        Proxy { at, state }
    }

    /// How many connections came.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Acquire)
    }

    pub fn let_through(&self, connections: usize) {
        self.state.let_through.store(connections, Ordering::Release);
    }

    /// Holds back what is sent to the target on the lanes that stand now, or lets it go; later lanes are not concerned.
    pub fn hold(&self, yes: bool) {
        let below = if yes { self.state.through.load(Ordering::Acquire) } else { 0 };
        self.state.held_below.store(below, Ordering::Release);
    }

    /// Cuts all lanes at the initiator's side, or at both; the control link stands. The others must all be let through.
    pub fn cut_lanes(&self, target_too: bool) {
        let all = self.state.all.lock().unwrap();
        for (number, stream) in all.iter().enumerate().skip(2) {
            // They stand in pairs, the near one first.
            if number % 2 == 0 || target_too {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Whether bytes trickle from now on: each way of each connection, some hundred kilobytes a second.
    pub fn slow(&self, yes: bool) {
        self.state.slow.store(yes, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.at);
        for stream in self.state.all.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, lane: Option<usize>, state: &State) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let slow = state.slow.load(Ordering::Acquire);
        let most = if slow { 1 << 10 } else { buffer.len() };
        let Ok(n @ 1..) = from.read(&mut buffer[..most]) else { break };
        while lane.is_some_and(|number| number < state.held_below.load(Ordering::Acquire)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
        if slow {
            std::thread::sleep(Duration::from_millis(4));
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
