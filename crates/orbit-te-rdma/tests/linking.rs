//! A program with this crate in it starts where libibverbs is missing: it does not ask the loader for it, and shows none of its symbols
//! to other libraries, which would take ours for the real ones.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, Object, ObjectSymbol};
use orbit_te_rdma::sys::{SystemVerbs, Verbs};

#[test]
fn a_program_neither_needs_nor_shows_libibverbs() {
    // Use of both crates, so that their calls are linked in.
    let listed = ibverbs::devices().map(|list| list.len()).map_err(|error| error.to_string());
    println!("devices by ibverbs: {listed:?}");
    let table = SystemVerbs::load().map(|verbs| Box::new(verbs) as Box<dyn Verbs>);
    match &table {
        Ok(table) => println!("devices by the table: {:?}", table.devices()),
        Err(why) => println!("rdma: unavailable, because {why}"),
    }

    let program = std::fs::read("/proc/self/exe").unwrap();
    let needed: Vec<String> = needed(&program);
    println!("needed: {needed:?}");
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "the list was not read: {needed:?}");
    assert!(!needed.iter().any(|name| name.contains("ibverbs")), "{needed:?}");

    let program = object::File::parse(&*program).unwrap();
    let defined = |symbol: &object::Symbol<'_, '_>| symbol.is_definition();
    let ours = |name: &&str| name.starts_with("ibv_") || name.starts_with("_ibv_");
    let exported: Vec<&str> =
        program.dynamic_symbols().filter(defined).filter_map(|s| s.name().ok()).collect();
    let exported: Vec<&&str> = exported.iter().filter(|name| ours(name)).collect();
    assert!(exported.is_empty(), "exported: {exported:?}");

    // The shims are there all the same; otherwise the test would prove nothing. A stripped program has no names to look for.
    let inside: Vec<&str> = program.symbols().filter(defined).filter_map(|s| s.name().ok()).collect();
    let shims = inside.iter().filter(|name| ours(name)).count();
    println!("shims inside: {shims}");
    assert!(inside.is_empty() || shims >= 30, "{shims} shims");
}

/// What the program asks the loader for.
fn needed(program: &[u8]) -> Vec<String> {
    let header = FileHeader64::<Endianness>::parse(program).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, program).unwrap();
    let (entries, strings) = sections.dynamic(endian, program).unwrap().unwrap();
    let strings = sections.strings(endian, program, strings).unwrap();
    let libraries = entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED));
    let names = libraries.map(|entry| entry.string(endian, strings).unwrap());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}
