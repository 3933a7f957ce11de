//! What the target's check costs per request, with few regions and with many, and what a slice costs its maker.

#![allow(missing_docs)] // The macros of the harness make public items.

use criterion::{Criterion, criterion_group, criterion_main};
use orbit_te_memory::registry::admit;
use orbit_te_memory::{Access, GrantTerms, HostBuffer, LocalKey, Registry, Request};
use orbit_te_wire::{PeerId, SessionId};
use std::hint::black_box;
use std::time::Instant;

fn admission(c: &mut Criterion) {
    for regions in [1, 10_000] {
        let registry = Registry::new();
        let mut last = None;
        for _ in 0..regions {
            let buffer = HostBuffer::new(4096).expect("a page can be had");
            last = Some(registry.register(buffer.into_backing(), Access::SHARED).expect("registering works"));
        }
        let Some(region) = last else { continue };
        let request = Request {
            region: region.id(),
            generation: region.generation(),
            key: region.key(),
            offset: 64,
            length: 1024,
            access: Access::REMOTE_WRITE,
        };
        let table = registry.table();
        c.bench_function(&format!("admit and release, {regions} regions"), |b| {
            b.iter(|| admit(&table.load(), registry.grants().anybody(), black_box(&request), Instant::now()));
        });
        let (session, now) = (SessionId(1), Instant::now());
        registry.grants().begin(session, PeerId(1));
        let terms = GrantTerms { name: "bench".into(), access: Access::SHARED, time_to_live: None };
        let granted = registry.grants().give(Some(session), &region, &terms, 1, now).expect("one may be had");
        let (holder, request) = (registry.grants().of(session), Request { key: granted.key(), ..request });
        c.bench_function(&format!("admit under a grant and release, {regions} regions"), |b| {
            b.iter(|| admit(&table.load(), &holder, black_box(&request), now));
        });
        c.bench_function(&format!("slice and span, {regions} regions"), |b| {
            b.iter(|| region.slice(black_box(64), 1024).map(|s| s.span(LocalKey(0))));
        });
    }
}

criterion_group!(benches, admission);
criterion_main!(benches);
