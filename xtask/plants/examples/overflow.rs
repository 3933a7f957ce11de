//! Reads one byte behind an allocation.

fn main() {
    let bytes = vec![1u8; std::env::args().count() * 64];
    let behind = std::hint::black_box(bytes.as_ptr()).wrapping_add(bytes.len());
    // SAFETY: none; this is the fault.
    let byte = unsafe { behind.read_volatile() };
    println!("{byte}");
}
