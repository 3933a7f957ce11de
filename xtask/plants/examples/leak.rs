//! Never frees an allocation, and forgets where it is.

fn main() {
    for length in 1..10 {
        let bytes = vec![1u8; length * 1000];
        std::hint::black_box(&bytes);
        std::mem::forget(bytes);
    }
}
