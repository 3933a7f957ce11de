//! An intermediary: forwards connections to a target, and can cut them or turn them away.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One connection through the proxy.
pub struct Pipe {
    near: TcpStream,
    far: TcpStream,
    /// Bytes that went towards the target.
    pub forward: AtomicU64,
}

#[derive(Default)]
struct State {
    pipes: Mutex<Vec<Arc<Pipe>>>,
    accepted: AtomicUsize,
    turned_away: AtomicBool,
    stop: AtomicBool,
    /// Whether a bit of the next large packet is changed, towards the target and back.
    flips: [AtomicBool; 2],
}

pub struct Proxy {
    pub at: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                if shared.stop.load(Ordering::Acquire) {
                    return;
                }
                let near = near.unwrap();
                shared.accepted.fetch_add(1, Ordering::AcqRel);
                if shared.turned_away.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                let pipe = Arc::new(Pipe { near, far, forward: AtomicU64::new(0) });
                shared.pipes.lock().unwrap().push(pipe.clone());
                let back = pipe.clone();
                let (there, here) = (shared.clone(), shared.clone());
                std::thread::spawn(move || {
                    copy(&pipe.near, &pipe.far, Some(&pipe.forward), &there.flips[0]);
                });
                std::thread::spawn(move || copy(&back.far, &back.near, None, &here.flips[1]));
            }
        });
        Proxy { at, state }
    }

    /// How many connections came, those turned away included.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Acquire)
    }

    /// Whether new connections are closed at once.
    pub fn turn_away(&self, yes: bool) {
        self.state.turned_away.store(yes, Ordering::Release);
    }

    /// Changes one bit in the middle of the next packet of more than 1,000 bytes that goes to the target, or comes from it.
    pub fn flip(&self, to_target: bool) {
        self.state.flips[usize::from(!to_target)].store(true, Ordering::Release);
    }

    pub fn pipes(&self) -> Vec<Arc<Pipe>> {
        self.state.pipes.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.at);
        self.pipes().iter().for_each(|p| p.cut());
    }
}

impl Pipe {
    pub fn cut(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, count: Option<&AtomicU64>, flip: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if n > 1000 && flip.swap(false, Ordering::AcqRel) {
            buffer[n / 2] ^= 0x10;
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
        if let Some(count) = count {
            count.fetch_add(n as u64, Ordering::AcqRel);
            // Slow enough that a large write can be caught in the middle.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
