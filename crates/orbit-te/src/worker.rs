//! A worker: a core that one thread at a time drives, which is the worker's own thread or a caller who waits. Rule: somebody
//! always watches while anything is in flight, and the core is never held by a thread that sleeps.
//!
//! A caller who waits lends its thread: it takes the core, steps and spins, so that an answer needs no hop between threads. The
//! worker's own thread meanwhile keeps away ([`Worker::keep_away`]): it looks every 10 ms whether callers still drive, and
//! takes over when they do not. Who leaves work that nobody will drive (a future that was polled, a handle that was dropped) calls
//! [`Worker::attend`].

use crate::clock;
use crate::command::Command;
use crate::config::Config;
use crate::core::Core;
use crate::cpus::CpuList;
use crate::error::Error;
use crate::guard;
use crate::handover::{FOREVER, Handover};
use crate::place::{self, WorkerPlace};
use crate::retention::Retention;
use crate::route::RouteId;
use crate::router::Router;
use crate::sleeper::Sleeper;
use crate::sync::MutexGuard;
use crate::transfer::TransferState;
use orbit_te_memory::Lease;
use orbit_te_transport::{Arm, Capabilities, Op, TransportError, Undone};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::mpsc;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a displaced worker's thread sleeps before it looks whether it is needed.
const DISPLACED_TICK: Duration = Duration::from_millis(10);
/// Looks without a driving caller after which the worker's thread takes its place again.
const CALM_TICKS: u32 = 2;
/// How long after the last caller stopped driving a new transfer calls the worker's thread: longer than a caller takes from
/// one wait to the next.
const DESERTED_NS: u64 = 1_000_000;
/// The longest wait for a turn, and the longest sleep while a worker ends.
const TURN: Duration = Duration::from_millis(1);
const FINISH_TICK: Duration = TURN;
/// How long peers may take to answer writes that are under way when the engine shuts down.
const FENCE_LIMIT: Duration = Duration::from_millis(250);

/// The longest sleep of a caller who drives.
const DRIVER_NAP: Duration = Duration::from_millis(50);

pub(crate) struct Worker {
    capabilities: Capabilities,
    place: WorkerPlace,
    handover: Handover<Core, Command>,
    sleeper: Sleeper,
    spin: Duration,
    /// Callers who drive or wait for their turn.
    drivers: AtomicUsize,
    /// Counts how often callers took the core.
    drives: AtomicU64,
    /// The begin of the clock in nanoseconds.
    epoch: Instant,
    /// When a caller last stopped driving, in nanoseconds since `epoch`.
    driven_at: AtomicU64,
    /// Whether a caller naps in the sleeper: one at most, who is woken by its bell when another thread ends its transfer.
    napping: AtomicBool,
    /// Callers who wait while another thread drives; the one who leaves wakes the first.
    parked: Mutex<VecDeque<Thread>>,
    away: Mutex<bool>,
    /// A copy of `away` for a look without the lock.
    is_away: AtomicBool,
    called: Condvar,
    stop: AtomicBool,
    retention: Arc<Retention>,
    /// Requests whose bytes came damaged.
    damaged: Arc<AtomicU64>,
}

impl Worker {
    /// A worker and its thread, which goes to its CPUs and has its transports made there.
    pub(crate) fn start(
        name: String,
        cpus: Option<CpuList>,
        config: &Config,
        retention: Arc<Retention>,
        make: impl FnOnce(&mut WorkerPlace) -> Result<Router, Error> + Send + 'static,
    ) -> Result<(Arc<Worker>, JoinHandle<()>), Error> {
        let (tell, told) = mpsc::sync_channel(1);
        let config = config.clone();
        let run = move || {
            let made = place::settle(cpus).and_then(|mut place| {
                let router = make(&mut place)?;
                Worker::new(router, place, &config, retention)
            });
            let own = made.as_ref().ok().cloned();
            // Whoever starts it waits for this.
            if tell.send(made).is_ok() {
                if let Some(worker) = own {
                    worker.run();
                }
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run).map_err(io("a worker's thread"))?;
        match told.recv() {
            Ok(made) => Ok((made?, thread)),
            Err(_) => Err(io("a worker's thread")(std::io::Error::other("it has panicked at its start"))),
        }
    }

    /// Where it runs.
    pub(crate) fn place(&self) -> &WorkerPlace {
        &self.place
    }

    /// How many requests came damaged.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// What its transport can do.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// A worker that somebody else steps.
    pub(crate) fn new(
        mut router: Router,
        place: WorkerPlace,
        config: &Config,
        retention: Arc<Retention>,
    ) -> Result<Arc<Worker>, Error> {
        let sleeper = Sleeper::new().map_err(io("a worker's event queue"))?;
        if let Arm::Sleep { fd: Some(fd), .. } = router.arm(clock::now()) {
            sleeper.watch(fd).map_err(io("watching a transport"))?;
        }
        let damaged = Arc::new(AtomicU64::new(0));
        Ok(Arc::new(Worker {
            capabilities: router.capabilities(),
            place,
            // Room for every transfer that the engine admits, its notification, a cancel of each, and for links.
            handover: Handover::new(Core::new(router, damaged.clone()), 3 * config.queued_transfers.max(8)),
            sleeper,
            spin: Duration::from_micros(config.spin_us),
            drivers: AtomicUsize::new(0),
            drives: AtomicU64::new(0),
            epoch: clock::now(),
            driven_at: AtomicU64::new(0),
            napping: AtomicBool::new(false),
            parked: Mutex::new(VecDeque::new()),
            away: Mutex::new(false),
            is_away: AtomicBool::new(false),
            called: Condvar::new(),
            stop: AtomicBool::new(false),
            retention,
            damaged,
        }))
    }

    /// Takes a command, begins with it on the calling thread if the core is free, and gives it back when the ring is full.
    pub(crate) fn submit(&self, command: Command) -> Result<(), Command> {
        let core = self.handover.push(command)?;
        let now = clock::now();
        if let Some(mut core) = core {
            self.guarded(&mut core, true, |core| core.feed_and_settle(self.handover.ring(), now));
            self.let_go(core, now);
        }
        // A caller in the middle of many waits will be back at once; otherwise the worker's thread is called for this.
        let deserted = self.is_away.load(Ordering::Acquire) && self.drivers.load(Ordering::Acquire) == 0;
        if deserted
            && self.since_epoch(now).saturating_sub(self.driven_at.load(Ordering::Acquire)) > DESERTED_NS
        {
            self.attend();
        }
        Ok(())
    }

    /// Has the core carry out one op on the calling thread, as [`Core::at_once`]; not where another thread has the core, or something is
    /// under way there, which the caller is to drive like others. Lets the lease go.
    pub(crate) fn at_once(&self, op: &Op, lease: Lease, now: Instant) -> Result<(RouteId, Instant), Undone> {
        let nothing = Undone { touched: false };
        let mut core = self.handover.core().try_lock().ok_or(nothing)?;
        let Some(wake_ns) = core.rests_until() else {
            self.let_go(core, now);
            return Err(nothing);
        };
        // None: it has panicked.
        let done = self.guarded(&mut core, None, |core| Some(core.at_once((op, &lease), now)));
        let again = match done {
            // It wants what it wanted before, and whoever sleeps since is told.
            Some(_) => self.handover.part(core, wake_ns, || self.sleeper.kick(), || self.ring_napper()),
            None => Some(core),
        };
        if let Some(mut core) = again {
            let now = clock::now();
            self.guarded(&mut core, true, |core| core.feed_and_settle(self.handover.ring(), now));
            self.let_go(core, now);
        }
        match done {
            // Perhaps the memory goes with it, and its owner.
            Some(_) => guard::contain("letting memory go", || drop(lease)),
            None => self.retention.for_ever(vec![lease], "a worker has failed in the middle of a request"),
        }
        done.unwrap_or(Err(Undone { touched: true }))
    }

    /// As [`Worker::submit`], for commands that must not be lost: waits for room.
    pub(crate) fn submit_always(&self, mut command: Command) {
        while let Err(back) = self.submit(command) {
            command = back;
            // The worker's own thread may be the one that is here.
            if let Some(mut core) = self.handover.core().try_lock() {
                let now = clock::now();
                self.guarded(&mut core, true, |core| core.feed(self.handover.ring(), now));
                self.let_go(core, now);
            }
            self.attend();
            thread::sleep(Duration::from_micros(50));
        }
    }

    pub(crate) fn cancel(&self, transfer: &Arc<TransferState>) {
        if !transfer.is_done() {
            self.submit_always(Command::Cancel(transfer.clone()));
            self.attend();
        }
    }

    /// Makes the worker's own thread watch, since no caller will.
    pub(crate) fn attend(&self) {
        let mut away = self.away.lock();
        if std::mem::take(&mut *away) {
            self.called.notify_one();
        }
    }

    /// Ends the thread once every transfer is over.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.attend();
        self.sleeper.kick();
    }

    /// Drives until enough has happened or the time has come. `tell_me` has this thread unparked when it has, and says whether it has
    /// not yet; it is asked before the thread sleeps without driving. `now` is the time, and so is what it gives back.
    pub(crate) fn drive(
        &self,
        enough: &dyn Fn() -> bool,
        tell_me: &dyn Fn() -> bool,
        mut now: Instant,
        until: Instant,
    ) -> Instant {
        if enough() {
            return now;
        }
        self.drivers.fetch_add(1, Ordering::AcqRel);
        let mut napped = false;
        while !enough() && now < until {
            match self.handover.core().try_lock() {
                Some(core) => {
                    let wake = self.spin(core, now, until, enough);
                    napped = false;
                    // A stopped worker's thread closes the core; nothing else is to be done here.
                    if enough() || self.stop.load(Ordering::Acquire) {
                    } else if self.napping.swap(true, Ordering::SeqCst) {
                        self.wait_for_turn(tell_me, until);
                    } else {
                        let nap = now + DRIVER_NAP;
                        self.nap(wake.map_or(until, |w| w.min(until)).min(nap), enough);
                        napped = true;
                        self.end_nap();
                    }
                }
                None => self.wait_for_turn(tell_me, until),
            }
            now = clock::now();
        }
        if napped {
            // The kick that ended the nap may have been meant for the worker's own thread: it is given on. And who pushed while
            // this thread looked at the core before its nap relies on a look at the ring that somebody acts on.
            if let Some(core) = self.handover.core().try_lock() {
                self.let_go(core, now);
            }
        }
        self.driven_at.store(self.since_epoch(now), Ordering::Release);
        self.drivers.fetch_sub(1, Ordering::AcqRel);
        if let Some(next) = self.parked.lock().pop_front() {
            next.unpark();
        }
        now
    }

    /// Steps until `enough`, or nothing has happened for the time of a spin; when to step again at the latest.
    fn spin<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        mut now: Instant,
        until: Instant,
        enough: impl Fn() -> bool,
    ) -> Option<Instant> {
        self.drives.fetch_add(1, Ordering::AcqRel);
        let mut quiet_since = now;
        while !enough() && now < until {
            if self.guarded(&mut core, true, |core| core.step(self.handover.ring(), now)) {
                quiet_since = now;
                // Without the core, whoever took it meanwhile has also taken over what there is to do.
                core = self.tell_ended(core)?;
            } else if now - quiet_since >= self.spin {
                break;
            } else {
                // The thread that would bring what is waited for may want this very CPU.
                thread::yield_now();
            }
            now = clock::now();
        }
        self.let_go(core, now)
    }

    /// Tells the transfers that are over, with the core free for others meanwhile; none when another thread has taken it.
    fn tell_ended<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> Option<MutexGuard<'a, Core>> {
        if !core.has_ended() {
            return Some(core);
        }
        let mut told = Vec::new();
        core.swap_ended(&mut told);
        drop(core);
        told.drain(..).for_each(|ended| guard::contain("being told of a transfer's end", || ended.tell()));
        // Pairs with the fence of a caller who is about to nap.
        fence(Ordering::SeqCst);
        self.ring_napper();
        let mut core = self.handover.core().try_lock()?;
        if !core.has_ended() {
            // Gives the list its memory back, so that the next ones allocate nothing.
            core.swap_ended(&mut told);
        }
        Some(core)
    }

    /// Wakes the caller who naps, and leaves no bell ringing for one who has just got up: it would keep every sleeper awake.
    fn ring_napper(&self) {
        while self.napping.load(Ordering::SeqCst) {
            self.sleeper.ring();
            if self.napping.load(Ordering::SeqCst) {
                return;
            }
            self.sleeper.hush();
        }
    }

    /// Gets up. A bell that was rung meanwhile is silenced, and rung again if somebody else naps by now.
    fn end_nap(&self) {
        self.handover.end_nap();
        self.napping.store(false, Ordering::SeqCst);
        self.sleeper.hush();
        self.ring_napper();
    }

    /// Lets go of the core, and makes sure that somebody comes back to it in time; when that is. `now` is the time of the last step: what
    /// has come due since is found to be so.
    fn let_go<'a>(&'a self, mut core: MutexGuard<'a, Core>, mut now: Instant) -> Option<Instant> {
        loop {
            if core.has_ended() {
                core = self.tell_ended(core)?;
                now = clock::now();
            }
            let wake = self.guarded(&mut core, Some(now), |core| core.next_step(now));
            if core.has_ended() {
                continue;
            }
            let wake_ns = wake.map_or(FOREVER, |at| self.since_epoch(at));
            core.announce(wake_ns);
            match self.handover.part(core, wake_ns, || self.sleeper.kick(), || self.ring_napper()) {
                Some(again) => core = again,
                None => return wake,
            }
            now = clock::now();
            self.guarded(&mut core, true, |core| core.feed(self.handover.ring(), now));
        }
    }

    /// Sleeps in the event queue as the one who naps, unless there is something to do.
    fn nap(&self, mut until: Instant, enough: &dyn Fn() -> bool) {
        let mut core = self.handover.begin_nap(self.since_epoch(until));
        if let Some(core) = &mut core {
            let now = clock::now();
            let wake = self.guarded(core, Some(now), |core| core.next_look(now));
            until = wake.map_or(until, |wake| wake.min(until));
            if core.has_ended() {
                // It has failed just now; this thread tells, when it lets go.
                return;
            }
        }
        // Who ends what is waited for after this look sees that somebody naps, and rings.
        if self.handover.may_nap(core) && !enough() {
            self.sleeper.sleep(Some(until));
        }
    }

    /// Calls the core. A panic in it is the transport's: what its transfers hold is kept, they end, and whoever called goes on with
    /// `otherwise`.
    fn guarded<R>(&self, core: &mut Core, otherwise: R, call: impl FnOnce(&mut Core) -> R) -> R {
        guard::caught(|| call(core)).unwrap_or_else(|why| {
            core.fail(&why, &self.retention);
            otherwise
        })
    }

    /// Waits while another thread drives.
    fn wait_for_turn(&self, tell_me: &dyn Fn() -> bool, until: Instant) {
        if !tell_me() {
            return;
        }
        let me = thread::current();
        self.parked.lock().push_back(me.clone());
        // Short, since whoever drove may have left before this thread stood in the queue.
        let limit = until.saturating_duration_since(clock::now()).min(TURN);
        thread::park_timeout(limit);
        let mut parked = self.parked.lock();
        if let Some(at) = parked.iter().position(|t| t.id() == me.id()) {
            parked.remove(at);
        }
    }

    fn run(&self) {
        'awake: while !self.stop.load(Ordering::Acquire) {
            if self.drivers.load(Ordering::Acquire) > 0 {
                self.keep_away();
                continue;
            }
            let Some(mut core) = self.handover.core().try_lock_for(Duration::from_micros(50)) else {
                self.keep_away();
                continue;
            };
            let mut now = clock::now();
            let mut quiet_since = now;
            loop {
                if self.guarded(&mut core, true, |core| core.step(self.handover.ring(), now))
                    || core.has_ended()
                {
                    quiet_since = now;
                    match self.tell_ended(core) {
                        Some(again) => core = again,
                        None => continue 'awake,
                    }
                } else if core.is_idle() || now - quiet_since >= self.spin {
                    break;
                } else {
                    thread::yield_now();
                }
                if self.drivers.load(Ordering::Acquire) > 0 || self.stop.load(Ordering::Acquire) {
                    break;
                }
                now = clock::now();
            }
            let Arm::Sleep { until, .. } = self.guarded(&mut core, Arm::Ready, |core| core.arm(now)) else {
                continue;
            };
            let wake_ns = until.map_or(FOREVER, |at| self.since_epoch(at));
            core.announce(wake_ns);
            if self.handover.may_sleep(core, wake_ns) && !self.stop.load(Ordering::Acquire) {
                self.sleeper.sleep(until);
            }
            self.handover.awake();
        }
        self.finish();
    }

    /// Leaves the core to callers until they have stopped driving or somebody calls.
    fn keep_away(&self) {
        let mut calm = 0;
        let mut away = self.away.lock();
        *away = true;
        self.is_away.store(true, Ordering::Release);
        while *away && calm < CALM_TICKS && !self.stop.load(Ordering::Acquire) {
            let before = self.drives.load(Ordering::Acquire);
            self.called.wait_for(&mut away, DISPLACED_TICK);
            let calm_now =
                self.drives.load(Ordering::Acquire) == before && self.drivers.load(Ordering::Acquire) == 0;
            calm = if calm_now { calm + 1 } else { 0 };
        }
        *away = false;
        self.is_away.store(false, Ordering::Release);
    }

    /// Gives all transfers up, closes the core and drives it until nothing is left. Peers have a moment to answer writes that are
    /// under way, so that these end as fenced.
    fn finish(&self) {
        let close_at = clock::now() + FENCE_LIMIT;
        self.guarded(&mut self.handover.core().lock(), (), |core| {
            core.give_all_up(self.handover.ring(), clock::now())
        });
        let mut closed = false;
        loop {
            let mut core = self.handover.core().lock();
            let now = clock::now();
            let any = self.guarded(&mut core, true, |core| {
                core.feed(self.handover.ring(), now) | core.step(self.handover.ring(), now)
            });
            let Some(mut core) = self.tell_ended(core) else { continue };
            if !closed && (core.is_idle() || now >= close_at) {
                closed = true;
                self.guarded(&mut core, (), |core| core.close(self.handover.ring(), now));
            } else if core.is_idle() && self.handover.ring().is_empty() {
                drop(core);
                fence(Ordering::SeqCst);
                // Who pushed while the core was held relies on this look.
                if self.handover.ring().is_empty() {
                    return;
                }
                continue;
            }
            let wake = self.guarded(&mut core, Some(now), |core| core.next_look(now));
            drop(core);
            if !any {
                let soon = now + FINISH_TICK;
                self.sleeper.sleep(Some(wake.map_or(soon, |w| w.min(soon))));
            }
        }
    }

    /// One step on the calling thread, as the worker's own takes them; whether anything happened, and when to step again.
    #[cfg(feature = "simulation")]
    pub(crate) fn step(&self) -> (bool, Option<Instant>) {
        let mut core = self.handover.core().lock();
        let any = core.step(self.handover.ring(), clock::now());
        let wake = match self.tell_ended(core) {
            Some(core) => self.let_go(core, clock::now()),
            None => Some(clock::now()),
        };
        (any, wake)
    }

    /// What the worker's thread does first when it is stopped; for how long peers may answer then.
    #[cfg(feature = "simulation")]
    pub(crate) fn give_all_up(&self) -> Duration {
        self.handover.core().lock().give_all_up(self.handover.ring(), clock::now());
        FENCE_LIMIT
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn close(&self) {
        self.handover.core().lock().close(self.handover.ring(), clock::now());
    }

    /// The process is gone in the middle of everything. The transfers in the core hold this worker, and only here can they be taken out
    /// of it; the transport is dropped before them, since it points into them.
    #[cfg(feature = "simulation")]
    pub(crate) fn vanish(&self) {
        let empty = Core::new(Router::dead(), self.damaged.clone());
        let core = std::mem::replace(&mut *self.handover.core().lock(), empty);
        drop(core);
        while self.handover.ring().pop().is_some() {}
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn is_idle(&self) -> bool {
        self.handover.core().lock().is_idle() && self.handover.ring().is_empty()
    }

    fn since_epoch(&self, at: Instant) -> u64 {
        // Never zero, which stands for a thread that is awake: a time in the past is as good as the first nanosecond.
        (at.saturating_duration_since(self.epoch).as_nanos() as u64).clamp(1, FOREVER - 1)
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Transport(TransportError::Io { what: what.to_string(), source })
}
