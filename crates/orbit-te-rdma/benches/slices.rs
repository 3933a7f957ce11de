//! What a batch of 64 ops and a prepared list cost over verbs in memory, beside the same WRs posted raw.

#![allow(missing_docs)] // The macros of the harness make public items.

mod stage;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stage::{BATCH, Engine, PIECES, Raw};

fn slices(c: &mut Criterion) {
    let (mut engine, mut raw) = (Engine::new(), Raw::new());
    let mut group = c.benchmark_group("rdma, 64 writes in a batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("engine", |b| b.iter(|| engine.batch()));
    group.bench_function("raw", |b| b.iter(|| raw.batch()));
    group.finish();
    let mut group = c.benchmark_group("rdma, a list of 100,000 pieces");
    group.throughput(Throughput::Elements(PIECES as u64)).sample_size(20);
    group.bench_function("engine", |b| b.iter(|| engine.list()));
    group.bench_function("raw", |b| b.iter(|| raw.list()));
    group.finish();
}

criterion_group!(benches, slices);
criterion_main!(benches);
