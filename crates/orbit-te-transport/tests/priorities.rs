//! The queue of priorities against a model: order, ageing, and that nothing is lost or doubled.

use orbit_te_transport::{Priority, PriorityQueue};
use proptest::prelude::*;

fn any_priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::High), Just(Priority::Normal), Just(Priority::Low)]
}

#[derive(Debug, Clone)]
enum Step {
    /// An entry that needs so many turns.
    Push(Priority, u32),
    Turn,
    Pop,
    Retain(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any_priority(), 1..4u32).prop_map(|(priority, turns)| Step::Push(priority, turns)),
        8 => Just(Step::Turn),
        1 => Just(Step::Pop),
        1 => (0..7u32).prop_map(Step::Retain),
    ]
}

/// Turns after which the front entry of a priority must have had one.
const BOUND: u32 = 34;

proptest! {
    #[test]
    fn order_and_ageing(steps in proptest::collection::vec(any_step(), 1..400)) {
        let mut queue = PriorityQueue::default();
        // What waits: number, priority, turns left; in the order of pushing.
        let mut model: Vec<(u32, Priority, u32)> = Vec::new();
        // By priority: turns that others took since the front entry last had one or came to the front.
        let mut waited = [0u32; 3];
        let mut pushed = 0;
        for step in steps {
            match step {
                Step::Push(priority, turns) => {
                    if !model.iter().any(|entry| entry.1 == priority) {
                        waited[priority as usize] = 0;
                    }
                    queue.push(priority, pushed);
                    model.push((pushed, priority, turns));
                    pushed += 1;
                }
                Step::Turn | Step::Pop => {
                    let Some(number) = queue.peek().copied() else {
                        prop_assert!(model.is_empty());
                        continue;
                    };
                    let at = model.iter().position(|entry| entry.0 == number).expect("it waits");
                    let (_, priority, _) = model[at];
                    let first = model.iter().find(|entry| entry.1 == priority).expect("it waits");
                    prop_assert_eq!(first.0, number, "the order inside one priority");
                    if matches!(step, Step::Pop) {
                        prop_assert_eq!(queue.pop(), Some(number));
                        model.remove(at);
                        continue;
                    }
                    for other in Priority::ALL {
                        if other == priority {
                            waited[other as usize] = 0;
                        } else if model.iter().any(|entry| entry.1 == other) {
                            waited[other as usize] += 1;
                            prop_assert!(waited[other as usize] < BOUND, "{:?} starves", other);
                        }
                    }
                    // Nobody goes first who is less urgent and has not waited for it.
                    if let Some(urgent) = model.iter().map(|entry| entry.1).min() {
                        prop_assert!(priority == urgent || priority > Priority::High);
                    }
                    model[at].2 -= 1;
                    let last = model[at].2 == 0;
                    prop_assert_eq!(queue.take_turn(last), last.then_some(number));
                    if last {
                        model.remove(at);
                    }
                }
                Step::Retain(by) => {
                    queue.retain(|number| number % 7 != by);
                    model.retain(|entry| entry.0 % 7 != by);
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
        }
        let mut left: Vec<u32> = queue.iter().copied().collect();
        left.sort_unstable();
        prop_assert_eq!(left, model.iter().map(|entry| entry.0).collect::<Vec<_>>());
    }
}

/// Who goes first, turn by turn, when entries of two priorities never run out.
fn check_share(urgent: Priority, patient: Priority) {
    let mut queue = PriorityQueue::with_capacity(4);
    queue.push(patient, patient);
    queue.push(urgent, urgent);
    let mut row = 0;
    for _ in 0..1000 {
        let turn = *queue.peek().expect("both wait");
        row = if turn == urgent { row + 1 } else { 0 };
        assert!(row <= patient.patience(), "{row} turns of {urgent:?} in a row before {patient:?}");
        if turn == patient {
            queue.take_turn(false);
            assert_eq!(queue.peek(), Some(&urgent), "one turn, and not two");
        } else {
            queue.take_turn(false);
        }
    }
}

#[test]
fn a_patient_one_gets_its_turn_and_no_more() {
    check_share(Priority::High, Priority::Normal);
    check_share(Priority::High, Priority::Low);
    check_share(Priority::Normal, Priority::Low);
}

#[test]
fn the_urgent_one_overtakes_in_the_middle() {
    let mut queue = PriorityQueue::default();
    queue.push(Priority::Low, "large");
    assert_eq!(queue.take_turn(false), None);
    queue.push(Priority::High, "small");
    assert_eq!(queue.peek(), Some(&"small"));
    assert_eq!(queue.take_turn(true), Some("small"));
    queue.push(Priority::Low, "other");
    queue.push_first(Priority::Low, "goes on");
    assert_eq!(queue.pop(), Some("goes on"));
    assert_eq!(queue.take_turn(true), Some("large"));
    assert_eq!(queue.pop(), Some("other"));
    assert_eq!(queue.pop(), None);
    assert_eq!(queue.take_turn(true), None);
}
