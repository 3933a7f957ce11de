//! Bytes over verbs in memory: whatever the sizes, SGEs, offsets and directions, both memories end as a model has it; and each WR that asks for
//! a CQE has exactly one.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::Done;
use orbit_te_rdma::fake::Mode;
use orbit_te_rdma::sys::ffi::ibv_wr_opcode::*;
use proptest::prelude::*;
use support::*;

/// A WR of the plan: by whom, what, and over which ranges.
#[derive(Debug, Clone)]
struct Step {
    from_one: bool,
    opcode: u32,
    ranges: Vec<(usize, u32)>,
    remote: usize,
    signaled: bool,
    inline: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let opcode = prop_oneof![
        Just(IBV_WR_RDMA_WRITE),
        Just(IBV_WR_RDMA_READ),
        Just(IBV_WR_RDMA_WRITE_WITH_IMM),
        Just(IBV_WR_SEND),
        Just(IBV_WR_SEND_WITH_IMM)
    ];
    let range = (0..1024usize, 0..=255u32);
    let ranges = proptest::collection::vec(range, 0..=4);
    (any::<bool>(), opcode, ranges, 0..MEMORY - 1024, any::<bool>(), any::<bool>()).prop_map(
        |(from_one, opcode, ranges, remote, signaled, inline)| {
            let length: u32 = ranges.iter().map(|range| range.1).sum();
            let inline = inline && opcode != IBV_WR_RDMA_READ && length <= CAPS.max_inline_data;
            Step { from_one, opcode, ranges, remote, signaled, inline }
        },
    )
}

/// Where receives go: apart from all that is sent.
const RECEIVES: usize = MEMORY - 1024;

fn check(steps: &[Step], seed: u64, mode: Mode) {
    let (fabric, one, two) = pair(seed);
    fabric.set_mode(mode);
    let mut models = [pattern(1, MEMORY), pattern(2, MEMORY)];
    one.memory.write(0, &models[0]);
    two.memory.write(0, &models[1]);
    for (number, step) in steps.iter().enumerate() {
        let (near, far) = if step.from_one { (&one, &two) } else { (&two, &one) };
        let (here, there) = if step.from_one { (0, 1) } else { (1, 0) };
        let token = number as u64;
        let receives = matches!(step.opcode, IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
        if receives {
            // Two SGEs, so that messages are cut in two.
            far.receive(token + 1000, &[(RECEIVES, 100), (RECEIVES + 100, 924)]).unwrap();
        }
        let mut wr = Send::new(step.opcode, token, &step.ranges).to(far, step.remote);
        (wr.signaled, wr.inline, wr.imm) = (step.signaled, step.inline, number as u32 | 0xab00_0000);
        near.post(std::slice::from_ref(&wr)).unwrap();
        // A WR that asks for no CQE has its place freed by one that does, so each chain ends with one.
        let empty = Send::new(IBV_WR_RDMA_WRITE, 99_999, &[]).to(far, 0);
        near.post(&[empty]).unwrap();
        fabric.settle();

        let mut at = if step.opcode == IBV_WR_SEND || step.opcode == IBV_WR_SEND_WITH_IMM {
            RECEIVES
        } else {
            step.remote
        };
        let length: usize = step.ranges.iter().map(|range| range.1 as usize).sum();
        let begin = at;
        for &(local, length) in &step.ranges {
            let length = length as usize;
            if step.opcode == IBV_WR_RDMA_READ {
                let bytes = models[there][at..at + length].to_vec();
                models[here][local..local + length].copy_from_slice(&bytes);
            } else {
                let bytes = models[here][local..local + length].to_vec();
                models[there][at..at + length].copy_from_slice(&bytes);
            }
            at += length;
        }
        assert_eq!(at - begin, length);

        let done = near.poll();
        let expected = if step.signaled { vec![token, 99_999] } else { vec![99_999] };
        assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), expected, "{step:?}");
        assert!(done.iter().all(|done| done.result.is_ok()), "{step:?}: {done:?}");
        if step.signaled && step.opcode == IBV_WR_RDMA_READ {
            assert_eq!(done[0].result, Ok(Done::Read { bytes: length as u32 }));
        }
        let received = far.poll();
        let (bytes, imm) = (length as u32, number as u32 | 0xab00_0000);
        let expected = match step.opcode {
            IBV_WR_RDMA_WRITE_WITH_IMM => Some(Done::ReceiveWrite { bytes, imm }),
            IBV_WR_SEND => Some(Done::Receive { bytes, imm: None }),
            IBV_WR_SEND_WITH_IMM => Some(Done::Receive { bytes, imm: Some(imm) }),
            _ => None,
        };
        assert_eq!(
            received.iter().map(|done| done.result.unwrap()).collect::<Vec<_>>(),
            Vec::from_iter(expected)
        );
        assert!(received.iter().all(|done| done.token == token + 1000 && done.qp_num == far.qp().number()));
    }
    assert!(one.memory.read(0, MEMORY) == models[0], "the memory of one differs after {steps:?}");
    assert!(two.memory.read(0, MEMORY) == models[1], "the memory of two differs after {steps:?}");
    drop((one, two));
    check_clean(&fabric, "after moving");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn both_memories_end_as_the_model_has_it(
        steps in proptest::collection::vec(step(), 1..20),
        seed in any::<u64>(),
        mode in prop_oneof![Just(Mode::AtPoll), Just(Mode::AtPost), Just(Mode::ByHand)],
    ) {
        check(&steps, seed, mode);
    }

    #[test]
    fn each_wr_that_asks_has_one_cqe_in_order(
        chains in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 1..9), 1..40),
        seed in any::<u64>(),
        steps in proptest::collection::vec(1..5u64, 1..40),
    ) {
        let (fabric, one, two) = pair(seed);
        fabric.set_mode(Mode::ByHand);
        let (mut expected, mut got, mut token) = (Vec::new(), Vec::new(), 0);
        for (chain, steps) in chains.iter().zip(steps.iter().cycle()) {
            let wrs: Vec<Send> = chain.iter().enumerate().map(|(at, signaled)| {
                let last = at + 1 == chain.len();
                Send { signaled: *signaled || last, ..Send::write(token + at as u64, (at, 8), &two, at) }
            }).collect();
            // A queue that is full refuses the rest, and only that.
            let taken = match one.post(&wrs) {
                Ok(()) => wrs.len(),
                Err((taken, errno)) => {
                    prop_assert_eq!(errno, orbit_te_rdma::Errno::ENOMEM);
                    taken
                }
            };
            expected.extend(wrs[..taken].iter().filter(|wr| wr.signaled).map(|wr| wr.token));
            token += wrs.len() as u64;
            fabric.step(*steps);
            got.extend(one.poll().iter().map(|done| done.token));
        }
        fabric.settle();
        got.extend(one.poll().iter().map(|done| done.token));
        prop_assert_eq!(got, expected);
        drop((one, two));
        check_clean(&fabric, "after the chains");
    }
}

#[test]
fn windows_of_bytes_work_by_their_edges() {
    for (at, length, fits) in
        [(0, MEMORY as u32, true), (1, MEMORY as u32, false), (MEMORY - 1, 1, true), (MEMORY, 1, false)]
    {
        let (_fabric, one, two) = pair(1);
        one.post(&[Send::write(1, (0, length.min(64)), &two, at)]).unwrap();
        let fits_here = at + length.min(64) as usize <= MEMORY;
        assert_eq!(one.statuses()[0].1.is_none(), fits_here, "at {at}");
        assert_eq!(at + length as usize <= MEMORY, fits);
    }
}
