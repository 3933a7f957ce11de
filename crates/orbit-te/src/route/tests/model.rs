//! Routes whose speeds change, driven in virtual time as the router drives them: the planner finds the fast one soon, comes back to one
//! that has recovered, and does not flap.

use super::*;
use proptest::prelude::*;

/// How slow each route is in a phase: a factor on what its prior says.
type Phase = [f64; 2];

const ROUTES: [RouteId; 2] = [RouteId::SHM, RouteId::TCP];

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// Seconds that the ops took, and that they would have taken on the faster route each time.
    spent: f64,
    best: f64,
    /// Changes that would have been logged.
    changes: usize,
    probes: usize,
    /// By phase: how often each route was taken in its second half.
    late: Vec<[usize; 2]>,
}

struct Model {
    rates: [Rates; 2],
    choices: Choices,
    rules: Ruleset,
    now: Instant,
    noise: u64,
    /// One op of so many takes thirty times as long, for reasons of its own; zero for none.
    odd: u64,
}

impl Model {
    fn new(priors: [Prior; 2]) -> Model {
        Model {
            rates: priors.map(Rates::new),
            choices: Choices::default(),
            rules: Ruleset::default(),
            now: Instant::now(),
            noise: 88172645463325252,
            odd: 200,
        }
    }

    /// A tenth up or down, and now and then thirty times.
    fn noise(&mut self) -> f64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        let odd = if self.odd > 0 && self.noise % self.odd == 7 { 30.0 } else { 1.0 };
        odd * (0.9 + 0.2 * ((self.noise >> 20) % 1000) as f64 / 1000.0)
    }

    /// Ops of a mebibyte, one after the other, each a millisecond after the last one ended.
    fn run(&mut self, phases: &[Phase], seconds: f64) -> Outcome {
        let mut out = Outcome::default();
        for phase in phases {
            let begin = self.now;
            let mut late = [0; 2];
            while (self.now - begin).as_secs_f64() < seconds {
                let incumbent = self.choices.last(OpKind::Read, MIB);
                let asked = Question { incumbent, ..question(self.now) };
                let states = [0, 1].map(|at| state(ROUTES[at], &self.rates[at]));
                let made = plan(&asked, &states, &self.rules);
                out.changes += usize::from(self.choices.note(OpKind::Read, MIB, &made).is_some());
                let taken = ROUTES.iter().position(|route| made.route == Ok(*route)).unwrap();
                if made.why == Why::Probe {
                    out.probes += 1;
                    self.rates[taken].note_probe(OpKind::Read, MIB, self.now);
                }
                let noise = self.noise();
                let time = |at: usize| self.rates[at].prior(MIB, 1).as_secs_f64() * phase[at];
                out.spent += time(taken);
                out.best += time(0).min(time(1));
                let service = Duration::from_secs_f64(time(taken) * noise);
                self.now += service;
                self.rates[taken].observe(OpKind::Read, MIB, 1, service, self.now);
                self.now += Duration::from_millis(1);
                if (self.now - begin).as_secs_f64() > seconds / 2.0 {
                    late[taken] += 1;
                }
            }
            out.late.push(late);
        }
        out
    }
}

fn priors() -> [Prior; 2] {
    [Prior::of(RouteId::SHM, true), Prior::of(RouteId::TCP, true)]
}

/// Two routes of one speed.
fn equals() -> [Prior; 2] {
    [Prior::of(RouteId::SHM, true); 2]
}

#[test]
fn a_route_in_order_is_never_left() {
    let out = Model::new(priors()).run(&[[1.0, 1.0]], 60.0);
    assert_eq!((out.changes, out.probes, out.late[0][1]), (1, 0, 0), "{out:?}");
}

#[test]
fn a_slow_first_op_does_not_turn_the_route() {
    let mut model = Model::new(priors());
    let slow = model.rates[0].prior(MIB, 1) * 50;
    model.rates[0].observe(OpKind::Read, MIB, 1, slow, model.now);
    let out = model.run(&[[1.0, 1.0]], 5.0);
    assert_eq!((out.changes, out.late[0][1]), (1, 0), "{out:?}");
}

#[test]
fn a_slow_route_is_left_and_taken_again_when_it_is_fast() {
    let out = Model::new(priors()).run(&[[1.0, 1.0], [15.0, 1.0], [1.0, 1.0]], 20.0);
    let [_, slow, back] = out.late[..] else { panic!() };
    assert!(slow[0] < slow[1] / 50, "left but for probes: {out:?}");
    assert!(back[1] < back[0] / 50, "taken again: {out:?}");
    assert_eq!(out.changes, 3, "{out:?}");
    assert!((10..40).contains(&out.probes), "about one a second while it is slow: {out:?}");
    assert!(out.spent < out.best * 1.25, "{out:?}");
}

#[test]
fn a_second_choice_that_was_slow_is_tried_again() {
    // Both are slow, then the second one recovers alone: it is found.
    let out = Model::new(priors()).run(&[[20.0, 20.0], [20.0, 1.0]], 20.0);
    assert!(out.late[1][0] < out.late[1][1] / 50, "{out:?}");
}

#[test]
fn nothing_is_left_for_ever() {
    // Two hundred times as slow, which no probe may cost at first.
    let mut model = Model::new(equals());
    model.run(&[[1.0, 1.0]], 5.0);
    for _ in 0..100 {
        model.rates[0].observe(OpKind::Read, MIB, 1, model.rates[0].prior(MIB, 1) * 200, model.now);
    }
    let out = model.run(&[[1.0, 1.0]], 300.0);
    assert!(out.late[0][0] > out.late[0][1] * 50, "{out:?}");
}

#[test]
fn routes_within_a_fifth_do_not_flap() {
    for ratio in [0.85, 0.9, 1.0, 1.1, 1.2] {
        let mut model = Model { odd: 0, ..Model::new(equals()) };
        let out = model.run(&[[1.0, ratio]], 60.0);
        assert_eq!(out.changes, 1, "{ratio}: {out:?}");
        let out = Model::new(equals()).run(&[[10.0, 1.0], [1.0, ratio], [1.0, ratio]], 20.0);
        assert!(out.changes <= 4, "{ratio}: {out:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the speeds and whenever they change, the ops take at most half again as long as if the faster route had been known, plus
    /// what finding out costs: the factor within which a route is not left, the ops until a change is believed, and the probes.
    #[test]
    fn regret_is_bounded(phases in prop::collection::vec(prop::array::uniform2(0.5f64..20.0), 1..5)) {
        let out = Model::new(priors()).run(&phases, 10.0);
        prop_assert!(out.spent <= out.best * 1.5, "{:.2} times the best: {phases:?} {out:?}", out.spent / out.best);
        prop_assert!(out.changes <= 8 * phases.len(), "{phases:?} {out:?}");
    }
}
