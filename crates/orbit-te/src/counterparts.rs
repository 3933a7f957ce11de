//! The thread that lets processes of this host in to exposed memory. Rule: it sleeps but for the few messages with which a peer begins to
//! use a region; copies pass by it.

use crate::clock;
use crate::error::Error;
use crate::guard;
use crate::sleeper::Sleeper;
use orbit_te_memory::Registry;
use orbit_te_shm::{Door, ShmConfig};
use orbit_te_transport::{Arm, TransportError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long processes that are copying when the engine ends may take to leave.
const LEAVING: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(1);

struct Porter {
    door: Arc<Door>,
    sleeper: Sleeper,
    stop: AtomicBool,
}

/// A door and its thread.
pub(crate) struct Neighbours {
    porter: Arc<Porter>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbours {
    /// Lets processes of this host in from now on.
    pub(crate) fn start(config: &ShmConfig, registry: &Registry) -> Result<Neighbours, Error> {
        let failed = |what: &'static str| {
            move |source: io::Error| TransportError::Io { what: what.to_string(), source }
        };
        let door = Door::open(config.clone(), registry)?;
        let sleeper = Sleeper::new().map_err(failed("an event queue"))?;
        if let Arm::Sleep { fd: Some(fd), .. } = door.arm(clock::now()) {
            sleeper.watch(fd).map_err(failed("watching the door for this host"))?;
        }
        let porter = Arc::new(Porter { door, sleeper, stop: AtomicBool::new(false) });
        let own = porter.clone();
        let thread = thread::Builder::new()
            .name("orbit-te-door".to_string())
            .spawn(move || own.run())
            .map_err(failed("the thread for this host's processes"))?;
        Ok(Neighbours { porter, thread: Some(thread) })
    }

    pub(crate) fn door(&self) -> &Arc<Door> {
        &self.porter.door
    }

    /// Makes everybody leave, and ends the thread.
    pub(crate) fn stop(&mut self) {
        self.porter.stop.store(true, Ordering::Release);
        self.porter.sleeper.kick();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                tracing::error!("the thread for this host's processes panicked");
            }
        }
    }
}

impl Porter {
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            // What a peer's last message lets go may be somebody's memory, whose owner has code of his own.
            guard::contain("letting processes of this host in", || {
                self.door.poll(clock::now());
            });
            if let Arm::Sleep { until, .. } = self.door.arm(clock::now()) {
                self.sleeper.sleep(until);
            }
        }
        self.door.close();
        let late = clock::now() + LEAVING;
        while self.door.held() > 0 && clock::now() < late {
            self.door.poll(clock::now());
            thread::sleep(TICK);
        }
    }
}
