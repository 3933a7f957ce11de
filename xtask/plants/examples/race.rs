//! Two threads write the same place, and nothing orders them.

use std::cell::UnsafeCell;
use std::sync::Barrier;

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
    let (shared, begin) = (Shared(UnsafeCell::new(0)), Barrier::new(2));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (shared, begin) = (&shared, &begin);
            scope.spawn(move || {
                begin.wait();
                shared.write(thread);
            });
        }
    });
}
