//! An empty `libibverbs.a`, found before any other. Rule: no program is linked with libibverbs; `sys::shims` opens it at run time.
//!
//! In this workspace nothing asks for `-libverbs`, because `third_party/ibverbs-sys` has no build script. The published `ibverbs-sys`
//! does ask, and finds this one.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return Ok(()) };
    std::fs::write(out.join("libibverbs.a"), b"!<arch>\n")?;
    println!("cargo:rustc-link-search=native={}", out.display());
    Ok(())
}
