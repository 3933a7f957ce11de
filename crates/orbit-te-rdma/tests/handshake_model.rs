//! Two handshakes, joined by a control link that breaks, in every order of a small number of faults, and in random orders of many. What
//! is checked after each step: a side that says it is up has QPs of its own that are wired to the peer's, which are wired to them, of
//! the life of the peer that it was told of; QPs are destroyed exactly once, and there is never more than the one array. What is checked
//! from each state that is reached: when nothing more breaks, both come to one connection, or to none where a side has given it up.
//!
//! Not checked here: what offers and answers hold, and the times of [`orbit_te_rdma::handshake::Pace`].

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_rdma::handshake::*;
use orbit_te_wire::Incarnation;
use orbit_te_wire::rdma::{CloseCode, Stamp};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Mail {
    Up(Incarnation),
    Lost,
    Say(Say, Stamp, Stamp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Job {
    Make(u64),
    Wire(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Array {
    wired: Option<Stamp>,
    destroyed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    machine: Machine,
    life: u64,
    alive: bool,
    wants: bool,
    inbox: VecDeque<Mail>,
    jobs: Vec<Job>,
    /// All arrays of all lives.
    arrays: BTreeMap<Stamp, Array>,
    told: Option<Incarnation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    losses: u8,
    kills: u8,
    timeouts: u8,
    failures: u8,
    disconnects: u8,
    /// Messages that come twice.
    doubles: u8,
    /// Messages that overtake others.
    swaps: u8,
    /// Messages that are lost one by one. A control link does not do this; where both sides want the connection they get over it.
    drops: u8,
    /// Messages that were lost with a former link, and come all the same.
    ghosts: u8,
}

const NONE: Budget = Budget {
    losses: 0,
    kills: 0,
    timeouts: 0,
    failures: 0,
    disconnects: 0,
    doubles: 0,
    swaps: 0,
    drops: 0,
    ghosts: 0,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    sides: [Side; 2],
    linked: bool,
    budget: Budget,
    /// What was lost with former links, and for whom it was.
    graveyard: Vec<(usize, Mail)>,
}

#[derive(Debug, Clone, Copy)]
enum Move {
    Deliver(usize),
    Work(usize, usize),
    Fail(usize, usize),
    Break(usize),
    Time(usize),
    Link,
    Lose { silently: bool },
    Kill(usize),
    Restart(usize),
    Disconnect(usize),
    Double(usize),
    Swap(usize),
    Drop(usize),
    Ghost(usize),
}

fn side(at: usize, wants: bool) -> Side {
    let life = 100 * (at as u64 + 1);
    Side {
        machine: Machine::new(Incarnation(life), at == 0, 2),
        life,
        alive: true,
        wants,
        inbox: VecDeque::new(),
        jobs: Vec::new(),
        arrays: BTreeMap::new(),
        told: None,
    }
}

impl World {
    fn new(wants: [bool; 2], budget: Budget) -> World {
        let mut world = World {
            sides: [side(0, wants[0]), side(1, wants[1])],
            linked: false,
            budget,
            graveyard: Vec::new(),
        };
        (0..2).filter(|at| wants[*at]).for_each(|at| world.take(at, Input::Want));
        world
    }

    fn take(&mut self, at: usize, input: Input) {
        let mut actions = Vec::new();
        let taken = self.sides[at].machine.take(input, &mut actions);
        // Two sides that keep to the protocol never see a fault.
        taken.unwrap_or_else(|fault| panic!("{fault} by {input:?}: {self:#?}"));
        actions.into_iter().for_each(|action| self.act(at, action));
        let side = &self.sides[at];
        let live: Vec<_> = side
            .arrays
            .iter()
            .filter(|(stamp, array)| stamp.incarnation.0 == side.life && !array.destroyed)
            .map(|(stamp, _)| *stamp)
            .collect();
        assert_eq!(live, side.machine.ours().into_iter().collect::<Vec<_>>(), "QPs and attempts agree");
    }

    fn act(&mut self, at: usize, action: Action) {
        let life = Incarnation(self.sides[at].life);
        let stamp = |attempt| Stamp { incarnation: life, attempt };
        let array = |wired| Array { wired, destroyed: false };
        let side = &mut self.sides[at];
        match action {
            Action::Make { attempt } => {
                assert!(side.arrays.insert(stamp(attempt), array(None)).is_none(), "a new attempt");
                side.jobs.push(Job::Make(attempt));
            }
            Action::Answer { attempt, offer } => {
                assert!(side.arrays.insert(stamp(attempt), array(Some(offer))).is_none());
                side.jobs.push(Job::Make(attempt));
            }
            Action::Wire { attempt, answer } => {
                let array = side.arrays.get_mut(&stamp(attempt)).unwrap();
                assert_eq!(array.wired.replace(answer), None, "wired once");
                side.jobs.push(Job::Wire(attempt));
            }
            Action::Destroy { attempt, .. } => {
                let array = side.arrays.get_mut(&stamp(attempt)).unwrap();
                assert!(!array.destroyed, "destroyed once");
                array.destroyed = true;
            }
            Action::Send { say, from, to } => {
                // What is said on a link that is gone already is lost.
                let of_now = !side.inbox.iter().any(|mail| matches!(mail, Mail::Lost | Mail::Up(_)));
                let told = side.told;
                if self.linked && of_now && told == Some(Incarnation(self.sides[1 - at].life)) {
                    self.sides[1 - at].inbox.push_back(Mail::Say(say, from, to));
                }
            }
            Action::Up { ours, theirs } => {
                assert_eq!(side.told, Some(theirs.incarnation), "of the life that we were told of");
                assert_eq!(side.arrays[&ours].wired, Some(theirs));
                assert!(!side.arrays[&ours].destroyed);
                let counterpart = &self.sides[1 - at].arrays[&theirs];
                assert_eq!(counterpart.wired, Some(ours), "the peer's QPs are wired to ours");
            }
        }
    }

    fn lose(&mut self, silently: bool) {
        self.linked = false;
        let keeps = usize::from(self.budget.ghosts) * 4;
        for (at, side) in self.sides.iter_mut().enumerate() {
            let lost = side.inbox.drain(..).filter(|mail| matches!(mail, Mail::Say(..)));
            self.graveyard.extend(lost.map(|mail| (at, mail)));
            if !silently && side.told.is_some() {
                side.inbox.push_back(Mail::Lost);
            }
        }
        let over = self.graveyard.len().saturating_sub(keeps);
        self.graveyard.drain(..over);
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        let budget = &self.budget;
        let given_up = self.sides.iter().any(|side| side.machine.state() == State::Closed);
        for at in 0..2 {
            let side = &self.sides[at];
            if !side.alive {
                moves.push(Move::Restart(at));
                continue;
            }
            if !side.inbox.is_empty() {
                moves.push(Move::Deliver(at));
                let message = |mail: &Mail| matches!(mail, Mail::Say(..));
                if budget.doubles > 0 && message(&side.inbox[0]) {
                    moves.push(Move::Double(at));
                }
                if budget.drops > 0 && message(&side.inbox[0]) {
                    moves.push(Move::Drop(at));
                }
                if budget.swaps > 0 && side.inbox.len() > 1 && side.inbox.iter().take(2).all(message) {
                    moves.push(Move::Swap(at));
                }
            }
            for job in 0..side.jobs.len() {
                moves.push(Move::Work(at, job));
                if budget.failures > 0 {
                    moves.push(Move::Fail(at, job));
                }
            }
            if budget.failures > 0 && side.machine.state().is_up() {
                moves.push(Move::Break(at));
            }
            let waits = side.machine.patience(&Pace::default()).is_some();
            // Whoever is refused asks again for ever: after some attempts it has shown all that it can do.
            let may_pass = match side.machine.state() {
                State::Waiting => !given_up || side.arrays.len() < 4,
                _ => budget.timeouts > 0,
            };
            if waits && may_pass {
                moves.push(Move::Time(at));
            }
            if budget.kills > 0 {
                moves.push(Move::Kill(at));
            }
            if budget.disconnects > 0 && side.machine.state() != State::Closed {
                moves.push(Move::Disconnect(at));
            }
        }
        if budget.ghosts > 0 {
            let heard = |(_, (at, _)): &(usize, &(usize, Mail))| self.sides[*at].alive;
            moves
                .extend(self.graveyard.iter().enumerate().filter(heard).map(|(grave, _)| Move::Ghost(grave)));
        }
        if !self.linked && self.sides.iter().all(|side| side.alive) {
            moves.push(Move::Link);
        }
        if self.linked && budget.losses > 0 {
            moves.extend([Move::Lose { silently: false }, Move::Lose { silently: true }]);
        }
        moves
    }

    fn go(&mut self, step: Move) {
        match step {
            Move::Deliver(at) => {
                let mail = self.sides[at].inbox.pop_front().unwrap();
                self.deliver(at, mail);
            }
            Move::Double(at) => {
                self.budget.doubles -= 1;
                let mail = self.sides[at].inbox[0].clone();
                self.deliver(at, mail);
            }
            Move::Swap(at) => {
                self.budget.swaps -= 1;
                self.sides[at].inbox.swap(0, 1);
            }
            Move::Drop(at) => {
                self.budget.drops -= 1;
                self.sides[at].inbox.pop_front();
            }
            Move::Ghost(grave) => {
                self.budget.ghosts -= 1;
                let (at, mail) = self.graveyard.remove(grave);
                self.deliver(at, mail);
            }
            Move::Work(at, job) => {
                let input = match self.sides[at].jobs.remove(job) {
                    Job::Make(attempt) => Input::Made { attempt },
                    Job::Wire(attempt) => Input::Wired { attempt },
                };
                self.take(at, input);
            }
            Move::Fail(at, job) => {
                self.budget.failures -= 1;
                let (Job::Make(attempt) | Job::Wire(attempt)) = self.sides[at].jobs.remove(job);
                self.take(at, Input::Failed { attempt, code: CloseCode::DeviceRefused });
            }
            Move::Break(at) => {
                self.budget.failures -= 1;
                let attempt = self.sides[at].machine.ours().unwrap().attempt;
                self.take(at, Input::Failed { attempt, code: CloseCode::QueueFailed });
            }
            Move::Time(at) => {
                if self.sides[at].machine.state() != State::Waiting {
                    self.budget.timeouts = self.budget.timeouts.saturating_sub(1);
                }
                self.take(at, Input::Time);
            }
            Move::Link => {
                self.linked = true;
                for at in 0..2 {
                    let peer = Incarnation(self.sides[1 - at].life);
                    self.sides[at].inbox.push_back(Mail::Up(peer));
                }
            }
            Move::Lose { silently } => {
                self.budget.losses -= 1;
                self.lose(silently);
            }
            Move::Kill(at) => {
                self.budget.kills -= 1;
                self.lose(false);
                let side = &mut self.sides[at];
                side.alive = false;
                side.inbox.clear();
                side.jobs.clear();
            }
            Move::Restart(at) => {
                let side = &mut self.sides[at];
                side.life += 1;
                side.machine = Machine::new(Incarnation(side.life), at == 0, 2);
                side.alive = true;
                side.told = None;
                if side.wants {
                    self.take(at, Input::Want);
                }
            }
            Move::Disconnect(at) => {
                self.budget.disconnects -= 1;
                self.sides[at].wants = false;
                self.take(at, Input::Disconnect);
            }
        }
    }

    fn deliver(&mut self, at: usize, mail: Mail) {
        match mail {
            Mail::Up(peer) => {
                self.sides[at].told = Some(peer);
                self.take(at, Input::LinkUp { peer });
            }
            Mail::Lost => {
                self.sides[at].told = None;
                self.take(at, Input::LinkLost);
            }
            Mail::Say(say, from, to) => self.take(at, Input::Heard { say, from, to }),
        }
    }

    /// Goes on until nothing is left to do, with no more faults, and time passing only when nothing else happens.
    fn finish(mut self) {
        self.budget = Budget { timeouts: u8::MAX, ..NONE };
        let given_up = |world: &World| world.sides.iter().any(|s| s.machine.state() == State::Closed);
        for _ in 0..400 {
            let is_time = |step: &Move| matches!(step, Move::Time(_));
            let moves = self.moves();
            let next = moves.iter().find(|step| !is_time(step)).or_else(|| {
                let waits = |step: &&Move| match step {
                    Move::Time(at) => self.sides[*at].machine.state() == State::Waiting,
                    _ => false,
                };
                moves.iter().find(waits).or(moves.first())
            });
            match next.copied() {
                None => break,
                // Whoever still wants it asks for ever, now and then; that is all that goes on.
                Some(Move::Time(at))
                    if given_up(&self) && self.sides[at].machine.state() == State::Waiting =>
                {
                    self.assert_none();
                    return;
                }
                Some(step) => self.go(step),
            }
        }
        let ends: Vec<_> = self.sides.iter().map(|s| (s.machine.ours(), s.machine.theirs())).collect();
        if given_up(&self) || !(self.sides.iter().any(|side| side.wants)) && ends[0].0.is_none() {
            self.assert_none();
            return;
        }
        assert!(self.sides.iter().all(|s| s.machine.state().is_up()), "half open: {self:#?}");
        assert_eq!((ends[0].0, ends[0].1), (ends[1].1, ends[1].0), "{self:#?}");
        assert_eq!(ends[0].0.unwrap().incarnation.0, self.sides[0].life);
        assert_eq!(ends[1].0.unwrap().incarnation.0, self.sides[1].life);
    }

    fn assert_none(&self) {
        assert!(self.sides.iter().all(|s| s.machine.ours().is_none()), "half open: {self:#?}");
    }
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Every order of what can happen within the budget. Returns how many states there are.
fn explore(wants: [bool; 2], budget: Budget) -> usize {
    let start = World::new(wants, budget);
    let mut seen = HashSet::from([hash(&start)]);
    let mut edge = vec![start];
    let mut reached: HashMap<State, usize> = HashMap::new();
    while let Some(world) = edge.pop() {
        assert!(seen.len() < 3_000_000, "the states do not end");
        world.clone().finish();
        world.sides.iter().for_each(|side| *reached.entry(side.machine.state()).or_default() += 1);
        for step in world.moves() {
            let mut next = world.clone();
            next.go(step);
            if seen.insert(hash(&next)) {
                edge.push(next);
            }
        }
    }
    for state in [State::Waiting, State::Offered, State::Answered, State::UpOffered, State::UpAnswered] {
        assert!(reached.contains_key(&state), "{state:?} was never reached");
    }
    seen.len()
}

fn check(budget: Budget) {
    for wants in [[true, false], [false, true], [true, true]] {
        let states = explore(wants, budget);
        println!("{wants:?} {budget:?}: {states} states");
    }
}

#[test]
fn nothing_breaks() {
    check(NONE);
}

#[test]
fn the_link_is_lost_once_and_something_times_out() {
    check(Budget { losses: 1, timeouts: 1, ..NONE });
}

#[test]
fn a_side_is_killed_between_any_two_messages() {
    check(Budget { kills: 1, timeouts: 1, ..NONE });
}

#[test]
fn a_side_is_killed_and_the_link_is_lost() {
    check(Budget { kills: 1, losses: 1, ..NONE });
}

#[test]
fn a_step_fails_and_something_times_out() {
    check(Budget { failures: 1, timeouts: 1, ..NONE });
}

#[test]
fn a_side_gives_up() {
    check(Budget { disconnects: 1, failures: 1, ..NONE });
    check(Budget { disconnects: 1, timeouts: 1, ..NONE });
    check(Budget { disconnects: 1, losses: 1, ..NONE });
}

#[test]
fn messages_come_twice_and_in_another_order() {
    check(Budget { doubles: 1, swaps: 1, timeouts: 1, ..NONE });
    check(Budget { doubles: 1, failures: 1, ..NONE });
}

#[test]
fn messages_of_former_links_and_lives_come_late() {
    check(Budget { losses: 1, ghosts: 1, ..NONE });
    check(Budget { kills: 1, ghosts: 1, ..NONE });
}

#[test]
fn single_messages_are_lost() {
    for budget in [Budget { drops: 2, timeouts: 1, ..NONE }, Budget { drops: 1, failures: 1, ..NONE }] {
        println!("{budget:?}: {} states", explore([true, true], budget));
    }
}

/// A small generator whose seed repeats a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

#[test]
fn many_faults_in_random_orders() {
    for seed in 0..3000u64 {
        let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
        let wants = [[true, false], [false, true], [true, true]][random.below(3)];
        let mut some = |bound| random.below(bound) as u8;
        let budget = Budget {
            losses: some(6),
            kills: some(5),
            timeouts: some(8),
            failures: some(6),
            disconnects: 0,
            doubles: some(5),
            swaps: some(5),
            drops: if wants == [true, true] { some(4) } else { 0 },
            ghosts: some(4),
        };
        let gives_up = budget.drops == 0 && random.below(4) == 0;
        let budget = Budget { disconnects: u8::from(gives_up), ..budget };
        let mut world = World::new(wants, budget);
        for _ in 0..200 {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            // Faults are rarer than what goes well.
            let step = moves[random.below(moves.len())];
            let good = matches!(
                step,
                Move::Deliver(_) | Move::Work(..) | Move::Link | Move::Restart(_) | Move::Time(_)
            );
            if good || random.below(6) == 0 {
                world.go(step);
            }
        }
        world.finish();
    }
}
