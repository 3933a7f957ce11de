//! One side of a handshake: the whole table as text, each illegal input, and its clock.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_rdma::handshake::*;
use orbit_te_wire::Incarnation;
use orbit_te_wire::rdma::{CloseCode, Stamp};
use std::fmt::Write;
use std::time::{Duration, Instant};

fn table() -> String {
    let mut text = String::new();
    for state in State::ALL {
        writeln!(text, "{state:?}").unwrap();
        for event in Event::ALL {
            let cell = match row(state, event) {
                Row::Illegal(blame, why) => format!("illegal ({blame:?}): {why}"),
                Row::Do(Next::Stay, []) => continue,
                Row::Do(next, steps) => {
                    let next = match next {
                        Next::Stay => "stays".to_string(),
                        Next::To(state) => format!("-> {state:?}"),
                        Next::Rest => "-> Waiting or Idle".to_string(),
                    };
                    let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
                    format!("{next} {}", steps.join(", "))
                }
            };
            writeln!(text, "  {:<12} {}", format!("{event:?}"), cell.trim_end()).unwrap();
        }
    }
    text
}

/// A change of the table is a change of `tests/fixtures/handshake.txt`, which `ORBIT_TE_WRITE_TABLE=1` writes. Events that change nothing
/// are not in it.
#[test]
fn the_table_is_as_it_is_written_down() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/handshake.txt");
    if std::env::var_os("ORBIT_TE_WRITE_TABLE").is_some() {
        std::fs::write(path, table()).unwrap();
    }
    assert_eq!(table(), std::fs::read_to_string(path).unwrap(), "see this test's words");
}

#[test]
fn the_table_keeps_its_rules() {
    for (state, event) in State::ALL.into_iter().flat_map(|s| Event::ALL.into_iter().map(move |e| (s, e))) {
        let Row::Do(next, steps) = row(state, event) else {
            let Row::Illegal(blame, why) = row(state, event) else { unreachable!() };
            assert!(blame == Blame::Driver || state.has_attempt(), "{state:?} {event:?}: {why}");
            continue;
        };
        let count = |step: fn(&Step) -> bool| steps.iter().filter(|s| step(s)).count();
        let (begins, ends) = (
            count(|s| matches!(s, Step::Make | Step::Answer)),
            count(|s| matches!(s, Step::End | Step::EndFailed)),
        );
        let has_after = match next {
            Next::Stay => state.has_attempt(),
            Next::To(state) => state.has_attempt(),
            Next::Rest => false,
        };
        let balance = usize::from(state.has_attempt()) + begins;
        assert_eq!(balance, usize::from(has_after) + ends, "an attempt is ended once: {state:?} {event:?}");
        let tells = steps.contains(&Step::TellUp);
        let up_after = matches!(next, Next::To(after) if after.is_up());
        assert_eq!(tells, up_after, "who is up is told so: {state:?} {event:?}");
        let refuses = count(|s| matches!(s, Step::Refuse(_)));
        assert!(refuses == 0 || (next == Next::Stay && steps.len() == 1), "{state:?} {event:?}");
        if matches!(event, Event::CloseOld | Event::Foreign | Event::Late) {
            assert_eq!(row(state, event), Row::Do(Next::Stay, &[]), "a close is never answered");
        }
    }
}

const OURS: Incarnation = Incarnation(1);
const THEIRS: Incarnation = Incarnation(2);

fn us(attempt: u64) -> Stamp {
    Stamp { incarnation: OURS, attempt }
}

fn them(attempt: u64) -> Stamp {
    Stamp { incarnation: THEIRS, attempt }
}

fn heard(say: Say, from: Stamp, to: Stamp) -> Input {
    Input::Heard { say, from, to }
}

/// A machine with the lower peer id, after these inputs.
fn after(inputs: &[Input]) -> (Machine, Vec<Action>) {
    let (mut machine, mut actions) = (Machine::new(OURS, true, 3), Vec::new());
    for input in inputs {
        actions.clear();
        machine.take(*input, &mut actions).unwrap();
    }
    (machine, actions)
}

fn offered() -> Vec<Input> {
    vec![Input::Want, Input::LinkUp { peer: THEIRS }, Input::Time, Input::Made { attempt: 1 }]
}

fn up() -> Vec<Input> {
    let more =
        [heard(Say::Answer, them(5), us(1)), Input::Wired { attempt: 1 }, heard(Say::Ready, them(5), us(1))];
    [offered(), more.to_vec()].concat()
}

fn answered() -> Vec<Input> {
    let offer = heard(Say::Offer, them(5), Stamp::none(OURS));
    vec![Input::LinkUp { peer: THEIRS }, offer, Input::Made { attempt: 1 }]
}

fn destroy(code: CloseCode, by_peer: bool, was_up: bool) -> Action {
    Action::Destroy { attempt: 1, code, by_peer, was_up }
}

fn send(say: Say, from: Stamp, to: Stamp) -> Action {
    Action::Send { say, from, to }
}

#[test]
fn a_connection_by_our_offer_and_by_theirs() {
    let (machine, actions) = after(&offered());
    assert_eq!(actions, [send(Say::Offer, us(1), Stamp::none(THEIRS))]);
    assert_eq!(machine.state(), State::Offered);
    let (machine, actions) = after(&up());
    assert_eq!(actions, [Action::Up { ours: us(1), theirs: them(5) }]);
    assert_eq!(
        (machine.state(), machine.ours(), machine.theirs()),
        (State::UpOffered, Some(us(1)), Some(them(5)))
    );
    let (machine, actions) = after(&answered());
    assert_eq!((machine.state(), &*actions), (State::Answered, &[send(Say::Answer, us(1), them(5))][..]));
    let ready = heard(Say::Ready, them(5), us(1));
    let (_, actions) = after(&[answered(), vec![ready]].concat());
    let told = Action::Up { ours: us(1), theirs: them(5) };
    assert_eq!(actions, [send(Say::Ready, us(1), them(5)), told]);
    let (_, actions) = after(&[answered(), vec![ready, ready]].concat());
    assert_eq!(actions, [send(Say::Ready, us(1), them(5))], "the peer did not hear it");
}

#[test]
fn what_ends_a_connection() {
    let check = |inputs: Vec<Input>, last: Input, state: State, want: &[Action]| {
        let (machine, actions) = after(&[inputs, vec![last]].concat());
        assert_eq!((machine.state(), &*actions), (state, want), "{last:?}");
    };
    let close = |code, to| send(Say::Close(code), us(1), to);
    let failed = Input::Failed { attempt: 1, code: CloseCode::QueueFailed };
    check(
        up(),
        failed,
        State::Waiting,
        &[close(CloseCode::QueueFailed, them(5)), destroy(CloseCode::QueueFailed, false, true)],
    );
    check(up(), Input::LinkLost, State::Waiting, &[destroy(CloseCode::LinkLost, false, true)]);
    let other = Input::LinkUp { peer: Incarnation(3) };
    check(up(), other, State::Waiting, &[destroy(CloseCode::LinkLost, false, true)]);
    check(
        up(),
        Input::Disconnect,
        State::Closed,
        &[close(CloseCode::Unwanted, them(5)), destroy(CloseCode::Unwanted, false, true)],
    );
    let theirs = |from, to| heard(Say::Close(CloseCode::NoRoom), from, to);
    for (from, to) in [(them(5), us(1)), (them(5), Stamp::none(OURS)), (Stamp::none(THEIRS), us(1))] {
        check(up(), theirs(from, to), State::Waiting, &[destroy(CloseCode::NoRoom, true, true)]);
    }
    for (from, to) in [(them(4), Stamp::none(OURS)), (Stamp::none(THEIRS), us(9)), (them(4), us(0))] {
        check(up(), theirs(from, to), State::UpOffered, &[]);
    }
    let anew = heard(Say::Offer, them(6), Stamp::none(OURS));
    let answer = Action::Answer { attempt: 2, offer: them(6) };
    check(up(), anew, State::Answering, &[destroy(CloseCode::Superseded, true, true), answer]);
    let refused = Input::Failed { attempt: 1, code: CloseCode::NoCommonRail };
    check(
        answered(),
        refused,
        State::Idle,
        &[close(CloseCode::NoCommonRail, them(5)), destroy(CloseCode::NoCommonRail, false, false)],
    );
}

#[test]
fn what_belongs_to_nothing_is_answered_by_a_close_to_its_sender() {
    let check = |say, from: Stamp, to: Stamp, want: &[Action]| {
        let (machine, actions) = after(&[up(), vec![heard(say, from, to)]].concat());
        assert_eq!((machine.state(), &*actions), (State::UpOffered, want), "{say:?}");
    };
    let gone = |to| [send(Say::Close(CloseCode::Gone), Stamp::none(OURS), to)];
    check(Say::Offer, them(4), Stamp::none(OURS), &gone(them(4)));
    check(Say::Offer, them(9), Stamp::none(Incarnation(77)), &gone(them(9)));
    check(Say::Answer, them(6), us(1), &gone(them(6)));
    check(Say::Answer, them(5), us(2), &gone(them(5)));
    check(Say::Ready, them(5), us(2), &gone(them(5)));
    check(Say::Ready, them(4), us(1), &gone(them(4)));
    // Of a life that the control link is not made with: nothing.
    let other = Stamp { incarnation: Incarnation(3), attempt: 9 };
    check(Say::Offer, other, Stamp::none(OURS), &[]);
    check(Say::Close(CloseCode::Gone), other, us(1), &[]);
}

#[test]
fn precedence() {
    let theirs = heard(Say::Offer, them(5), Stamp::none(OURS));
    let (lower, actions) = after(&[offered(), vec![theirs]].concat());
    assert_eq!((lower.state(), actions.len()), (State::Offered, 0), "ours has precedence");
    let (mut higher, mut actions) = (Machine::new(OURS, false, 3), Vec::new());
    for input in offered() {
        higher.take(input, &mut actions).unwrap();
    }
    actions.clear();
    higher.take(theirs, &mut actions).unwrap();
    let answer = Action::Answer { attempt: 2, offer: them(5) };
    assert_eq!(actions, [destroy(CloseCode::Superseded, true, false), answer]);
    let pace = Pace::default();
    let first = |lower| {
        let mut machine = Machine::new(OURS, lower, 3);
        let inputs = [Input::Want, Input::LinkUp { peer: THEIRS }];
        inputs.into_iter().for_each(|input| machine.take(input, &mut Vec::new()).unwrap());
        machine.patience(&pace)
    };
    assert_eq!((first(true), first(false)), (Some(Duration::ZERO), Some(pace.yielding)));
}

#[test]
fn illegal_inputs_are_faults() {
    let check = |inputs: Vec<Input>, last: Input, peer: bool| {
        let (mut machine, _) = after(&inputs);
        let before = machine.clone();
        let mut actions = Vec::new();
        match machine.take(last, &mut actions).unwrap_err() {
            Fault::Peer { .. } => {
                assert!(peer && machine.ours().is_none(), "{last:?}");
                assert!(matches!(actions[0], Action::Send { say: Say::Close(CloseCode::Protocol), .. }));
                assert!(matches!(actions[1], Action::Destroy { code: CloseCode::Protocol, .. }));
            }
            Fault::Driver { .. } => {
                assert!(!peer && actions.is_empty(), "{last:?}");
                assert_eq!(machine, before, "nothing changes");
            }
        }
    };
    let joining = [offered(), vec![heard(Say::Answer, them(5), us(1))]].concat();
    check(joining.clone(), heard(Say::Ready, them(5), us(1)), true);
    check(joining.clone(), heard(Say::Offer, them(5), Stamp::none(OURS)), true);
    check(answered(), heard(Say::Answer, them(5), us(1)), true);
    check(offered()[..3].to_vec(), heard(Say::Answer, them(5), us(1)), true);
    check(offered()[..3].to_vec(), heard(Say::Close(CloseCode::Gone), them(5), us(1)), true);
    check(up(), heard(Say::Offer, them(5), Stamp::none(OURS)), true);
    check(offered(), Input::Made { attempt: 1 }, false);
    check(joining, Input::Made { attempt: 1 }, false);
    check(answered(), Input::Wired { attempt: 1 }, false);
    check(vec![Input::Disconnect], Input::Want, false);
}

#[test]
fn its_clock() {
    let pace = Pace::default();
    let start = Instant::now();
    let mut timed = Timed::new(Machine::new(OURS, true, 3), pace);
    let mut actions = Vec::new();
    let (mut now, mut sent) = (start, Vec::new());
    timed.take(Input::Want, now, &mut actions).unwrap();
    assert_eq!(timed.due(), None, "no link yet");
    timed.take(Input::LinkUp { peer: THEIRS }, now, &mut actions).unwrap();
    assert_eq!(timed.due(), Some(now), "at once");
    // Nobody ever answers: the attempts follow each other with growing pauses, and each asks three times.
    for _ in 0..60 {
        actions.clear();
        now = timed.due().unwrap();
        timed.tick(now, &mut actions);
        let made = actions.iter().find_map(|action| match action {
            Action::Make { attempt } => Some(*attempt),
            _ => None,
        });
        if let Some(attempt) = made {
            timed.take(Input::Made { attempt }, now, &mut actions).unwrap();
        }
        let offers = actions.iter().filter(|a| matches!(a, Action::Send { say: Say::Offer, .. }));
        offers.for_each(|_| sent.push(now.duration_since(start).as_millis()));
    }
    // 200, 400 and 800 ms for three offers, then pauses of 20, 40, 80 ms.
    assert_eq!(sent[..9], [0, 200, 600, 1420, 1620, 2020, 2860, 3060, 3460]);
    let last: Vec<u128> = sent.rchunks_exact(3).take(2).map(|chunk| chunk[0]).collect();
    assert_eq!(last[0] - last[1], 1400 + pace.longest_pause.as_millis(), "the longest pause");

    // Who is early is told nothing, and an input that changes nothing moves no deadline.
    let due = timed.due();
    actions.clear();
    timed.tick(due.unwrap() - Duration::from_millis(1), &mut actions);
    timed.take(Input::Want, now, &mut actions).unwrap();
    assert_eq!((timed.due(), actions.len()), (due, 0));
}

#[test]
fn only_a_connection_that_stood_makes_up_for_failures() {
    let check = |stood: Duration, want: Duration| {
        let mut timed = Timed::new(Machine::new(OURS, true, 3), Pace::default());
        let mut now = Instant::now();
        let mut take = |input, now| {
            let mut actions = Vec::new();
            timed.take(input, now, &mut actions).unwrap();
            timed.due().map(|due| due - now)
        };
        let fail = |attempt| Input::Failed { attempt, code: CloseCode::QueueFailed };
        for input in up() {
            take(input, now);
        }
        assert_eq!(take(fail(1), now), Some(Duration::from_millis(20)));
        let more = [Input::Time, Input::Made { attempt: 2 }, heard(Say::Answer, them(6), us(2))];
        for input in more.into_iter().chain([Input::Wired { attempt: 2 }, heard(Say::Ready, them(6), us(2))])
        {
            take(input, now);
        }
        now += stood;
        assert_eq!(take(fail(2), now), Some(want), "{stood:?}");
    };
    check(Duration::from_secs(1), Duration::from_millis(40));
    check(Duration::from_secs(10), Duration::from_millis(20));
}
