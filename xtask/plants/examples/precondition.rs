//! Makes a slice of a null pointer, against what the function demands.

fn main() {
    let none: *const u64 = std::hint::black_box(std::ptr::null());
    // SAFETY: none; this is the fault.
    let slice = unsafe { std::slice::from_raw_parts(none, 1) };
    println!("{}", slice.len());
}
