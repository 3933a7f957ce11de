//! `cargo xtask bindings`: the checked-in bindings of libibverbs, made again from the published crate. Rule: the real crate's own
//! build script makes them, in a folder that is thrown away; here they are only carried over and compared.

use crate::process::{cargo, root, succeed};
use anyhow::{Context, bail, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The crates whose build writes the bindings, in the versions that the workspace names.
const MANIFEST: &str = "[package]\nname = \"bindings\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n\
     [dependencies]\nibverbs-sys = \"=0.3.2\"\n\n[workspace]\n";
const REAL: &str = "ibverbs-sys-0.3.2+55.0";
const REAL_INCLUDE: &str = "include!(concat!(env!(\"OUT_DIR\"), \"/bindings.rs\"));\n";

/// A processor, and how libclang is told of it on an x86-64 machine.
struct Processor {
    name: &'static str,
    clang: &'static str,
}

const PROCESSORS: &[Processor] = &[
    Processor { name: "x86_64", clang: "" },
    Processor {
        name: "aarch64",
        clang: "--target=aarch64-linux-gnu -isystem /usr/aarch64-linux-gnu/include",
    },
];

/// What a build of the real crate needs from Debian.
const PACKAGES: &str = "gcc libc6-dev make cmake pkg-config python3 libclang1-14 libclang-common-14-dev libibverbs-dev \
                        libc6-dev-arm64-cross linux-libc-dev-arm64-cross";

#[derive(Args)]
pub(crate) struct BindingsArgs {
    /// Change nothing; exit with 1 when what is checked in differs.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &BindingsArgs) -> anyhow::Result<ExitCode> {
    ensure!(cfg!(target_arch = "x86_64"), "the bindings of both processors are made on x86-64");
    let scratch = std::env::temp_dir().join(format!("orbit-te-bindings-{}", std::process::id()));
    let made = make(&scratch);
    // What is left over in the temporary folder harms nobody.
    std::fs::remove_dir_all(&scratch).ok();
    let mut differs = false;
    for (path, text) in made? {
        let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        if std::fs::read_to_string(&path).is_ok_and(|here| here == text) {
            println!("{shown}: the same");
        } else if args.check {
            println!("{shown}: DIFFERS; `cargo xtask bindings` makes it again");
            differs = true;
        } else {
            std::fs::write(&path, text)?;
            println!("{shown}: written");
        }
    }
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds the real crate once for each processor; gives each file of ours with what it ought to contain.
fn make(scratch: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let ours = root().join("third_party").join("ibverbs-sys").join("src");
    std::fs::create_dir_all(scratch.join("src"))?;
    std::fs::write(scratch.join("Cargo.toml"), MANIFEST)?;
    std::fs::write(scratch.join("src").join("lib.rs"), "")?;
    let mut files = Vec::new();
    for Processor { name, clang } in PROCESSORS {
        println!("compiling rdma-core's headers for {name} (about a minute)");
        let target = scratch.join(name);
        let mut build = cargo();
        build.args(["build", "--quiet", "--target-dir"]).arg(&target).current_dir(scratch);
        // A toolchain file or a patch of the workspace has no say outside of it.
        build.env("BINDGEN_EXTRA_CLANG_ARGS", clang).env_remove("CARGO_MANIFEST_DIR");
        succeed(&mut build).with_context(|| {
            format!("the real crate does not build here; it needs `apt-get install {PACKAGES}`")
        })?;
        let bindings = std::fs::read_to_string(written_by_build(&target)?)?;
        files.push((ours.join(format!("bindings_{name}.rs")), bindings));
    }
    files.push((ours.join("lib.rs"), with_our_includes(&std::fs::read_to_string(real_source(scratch)?)?)?));
    Ok(files)
}

/// The one `bindings.rs` among what build scripts have written.
fn written_by_build(target: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(target.join("debug").join("build"))? {
        let path = entry?.path().join("out").join("bindings.rs");
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!("the real crate's build wrote no bindings.rs under {}", target.display())
}

/// The real crate's `lib.rs`, which cargo unpacked.
fn real_source(scratch: &Path) -> anyhow::Result<PathBuf> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1", "--offline"]).current_dir(scratch);
    let metadata: serde_json::Value = serde_json::from_str(&crate::process::capture(&mut metadata)?)?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    let manifests = packages.iter().filter_map(|package| package["manifest_path"].as_str().map(Path::new));
    let mut folders = manifests.filter_map(Path::parent);
    let folder = folders.find(|folder| folder.ends_with(REAL)).with_context(|| format!("no {REAL}"))?;
    Ok(folder.join("src").join("lib.rs"))
}

/// The real crate's code, which includes the file of the processor instead of what a build script writes.
fn with_our_includes(real: &str) -> anyhow::Result<String> {
    ensure!(
        real.matches(REAL_INCLUDE).count() == 1,
        "the real crate does not include its bindings as it did"
    );
    let mut includes = String::new();
    let mut others = Vec::new();
    for Processor { name, .. } in PROCESSORS {
        includes += &format!("#[cfg(target_arch = \"{name}\")]\ninclude!(\"bindings_{name}.rs\");\n");
        others.push(format!("target_arch = \"{name}\""));
    }
    let none = "no bindings are checked in for this processor: see third_party/ibverbs-sys/README.md";
    includes += &format!("#[cfg(not(any({})))]\ncompile_error!(\"{none}\");\n", others.join(", "));
    Ok(real.replace(REAL_INCLUDE, &includes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_include_is_replaced_or_missed_aloud() {
        let ours = with_our_includes(&format!("#![allow(x)]\n{REAL_INCLUDE}struct A;\n")).unwrap();
        assert!(ours.starts_with(
            "#![allow(x)]\n#[cfg(target_arch = \"x86_64\")]\ninclude!(\"bindings_x86_64.rs\");\n"
        ));
        assert!(ours.ends_with("struct A;\n"));
        assert!(!ours.contains("OUT_DIR"));
        assert!(with_our_includes("struct A;\n").is_err());
    }
}
