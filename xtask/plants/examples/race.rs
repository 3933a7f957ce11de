//! Two threads write the same place, and nothing orders them.

use std::cell::UnsafeCell;

struct Shared(UnsafeCell<u64>);

// SAFETY: none; this is the fault.
unsafe impl Sync for Shared {}

impl Shared {
    fn write(&self, value: u64) {
        // SAFETY: none; the other thread writes too.
        unsafe { self.0.get().write_volatile(value) }
    }
}

fn main() {
    let shared = Shared(UnsafeCell::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let shared = &shared;
            scope.spawn(move || (0..1000).for_each(|n| shared.write(n + thread)));
        }
    });
}
