//! The counterparts of peers' transports, and the threads of those that want to be looked after. Rule: such a thread sleeps but for the few
//! messages with which peers begin to use memory and leave it; bytes pass by it.

use crate::clock;
use crate::error::Error;
use crate::guard;
use crate::sleeper::Sleeper;
use orbit_te_transport::{Arm, Counterpart, TransportError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long peers that touch memory by themselves when the engine ends may take to leave.
const LEAVING: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(1);

/// Looks after one counterpart.
struct Porter {
    counterpart: Arc<dyn Counterpart>,
    sleeper: Sleeper,
    stop: AtomicBool,
}

/// All of an engine, with their threads.
#[derive(Default)]
pub(crate) struct Counterparts {
    /// Those that want no thread.
    alone: Vec<Arc<dyn Counterpart>>,
    porters: Vec<(Arc<Porter>, JoinHandle<()>)>,
}

impl Counterparts {
    /// Looks after them from now on.
    pub(crate) fn start(all: &[Arc<dyn Counterpart>]) -> Result<Counterparts, Error> {
        let mut started = Counterparts::default();
        for counterpart in all.iter().cloned() {
            let Some(arm) = counterpart.arm(clock::now()) else {
                started.alone.push(counterpart);
                continue;
            };
            let name = counterpart.names().first().copied().unwrap_or("peers");
            let failed = |what: &str| {
                let what = format!("{what} of `{name}`");
                move |source: io::Error| TransportError::Io { what, source }
            };
            let sleeper = Sleeper::new().map_err(failed("the event queue"))?;
            if let Arm::Sleep { fd: Some(fd), .. } = arm {
                sleeper.watch(fd).map_err(failed("watching the peers"))?;
            }
            let porter = Arc::new(Porter { counterpart, sleeper, stop: AtomicBool::new(false) });
            let own = porter.clone();
            let thread = thread::Builder::new()
                .name(format!("orbit-te-{name}"))
                .spawn(move || own.run())
                .map_err(failed("the thread for the peers"))?;
            started.porters.push((porter, thread));
        }
        Ok(started)
    }

    /// Makes everybody leave, and ends the threads.
    pub(crate) fn stop(&mut self) {
        for (porter, _) in &self.porters {
            porter.stop.store(true, Ordering::Release);
            porter.sleeper.kick();
        }
        for (porter, thread) in self.porters.drain(..) {
            // The last handle of an engine may be dropped by what this very thread drops; it ends by itself then.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!(transport = ?porter.counterpart.names(), "a counterpart's thread panicked");
            }
        }
        self.alone.drain(..).for_each(|counterpart| counterpart.close());
    }
}

impl Drop for Counterparts {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Porter {
    fn run(&self) {
        let counterpart = &*self.counterpart;
        while !self.stop.load(Ordering::Acquire) {
            // What a peer's last message lets go may be somebody's memory, whose owner has code of his own.
            guard::contain("looking after the peers of a transport", || {
                counterpart.poll(clock::now());
            });
            match counterpart.arm(clock::now()) {
                Some(Arm::Ready) => {}
                Some(Arm::Sleep { until, .. }) => self.sleeper.sleep(until),
                None => self.sleeper.sleep(None),
            }
        }
        counterpart.close();
        let late = clock::now() + LEAVING;
        while counterpart.held() > 0 && clock::now() < late {
            counterpart.poll(clock::now());
            thread::sleep(TICK);
        }
    }
}
