//! The workers that a run can start: ours, and the other engines' of a folder that the caller names. Rule: another
//! engine's worker is started with the command and the environment that its own driver uses.

use super::pair::Launch;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Engines that are part of this program, in the order of the tables.
pub(super) const OWN: [&str; 2] = ["raw", "orbit-te"];

const UCX_TCP: [(&str, &str); 2] = [("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")];

/// The launch of one of our own workers, with a buffer of so many bytes: this program again.
pub(super) fn own(name: &str, bytes: usize) -> anyhow::Result<Launch> {
    let args = ["bench-worker", "--engine", name, "--bytes", &bytes.to_string()];
    Ok(Launch {
        name: name.into(),
        transport: "tcp".into(),
        program: std::env::current_exe().context("this program's own path")?,
        args: args.map(String::from).into(),
        env: Vec::new(),
    })
}

/// The launch of the pair that moves bytes within this host.
pub(super) fn same_host() -> anyhow::Result<Launch> {
    Ok(Launch { transport: "shm".into(), ..own("same-host", super::lists::POOL_BYTES)? })
}

/// The launch of TENT's worker with shared memory, which a folder of peers may have.
pub(super) fn tent(scripts: &Path, root: &Path) -> anyhow::Result<Launch> {
    let (program, script) = (root.join("tent/bin/python"), scripts.join("tent_peer.py"));
    if !program.exists() || !script.exists() {
        bail!("no build of it is there (tent/bin/python, tent_peer.py); Mooncake's wheels have none");
    }
    Ok(Launch {
        name: "tent shm".into(),
        transport: "shm".into(),
        program,
        args: vec![script.display().to_string()],
        env: vec![("PYTHONDONTWRITEBYTECODE", "1")],
    })
}

/// The launches of the other engines' workers: scripts in `scripts`, environments under `root`.
pub(super) fn others(scripts: &Path, root: &Path) -> Vec<Launch> {
    let python = |name: &str, transport: &str, env: &[(&'static str, &'static str)]| Launch {
        name: name.into(),
        transport: transport.into(),
        program: root.join(name).join("bin/python"),
        args: vec![scripts.join(format!("{name}_peer.py")).display().to_string()],
        env: [&[("PYTHONDONTWRITEBYTECODE", "1")], env].concat(),
    };
    vec![python("mooncake", "tcp", &[]), python("nixl", "ucx:tcp", &UCX_TCP), python("dlslime", "tcp", &[])]
}

/// The folder for the other engines unless the caller names one.
pub(super) fn default_root() -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(cache
        .context("neither XDG_CACHE_HOME nor HOME is set; name a folder with --peers-root")?
        .join("orbit-te/peers"))
}

/// Runs the peers' own `setup.sh` unless everything it installs is there.
pub(super) fn install(scripts: &Path, root: &Path) -> anyhow::Result<()> {
    let missing: Vec<&str> = ["mooncake", "nixl", "dlslime", "ucx"]
        .into_iter()
        .filter(|name| !root.join(name).join("bin/python").exists())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let setup = scripts.join("setup.sh");
    eprintln!("bench: {} installs {} into {}, once", setup.display(), missing.join(", "), root.display());
    std::fs::create_dir_all(root).with_context(|| root.display().to_string())?;
    let status = Command::new(&setup)
        .arg(root)
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("{} can't be started", setup.display()))?;
    if !status.success() {
        bail!("{} failed: {status}", setup.display());
    }
    Ok(())
}
