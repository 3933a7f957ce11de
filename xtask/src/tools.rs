//! Tools beyond the Rust toolchain, built once into the user's cache folder. Rule: before anything is fetched or built a
//! line says what, where and for how long; what is there in the right version is used again.

use crate::process;
use anyhow::Context;
use std::path::PathBuf;

/// A cargo subcommand in the one version that the checks were made with.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// About how long building it takes, for the line that announces it.
    minutes: &'static str,
}

/// Licences, bans, sources and advisories. Its build needs Rust 1.88.
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", minutes: "3 to 6 minutes" };
/// libFuzzer's driver for cargo; its targets need a nightly compiler.
pub(crate) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2", minutes: "1 to 2 minutes" };

impl Tool {
    /// The tool if it is here in the right version: on the path, or in the cache folder.
    pub(crate) fn present(&self) -> anyhow::Result<Option<PathBuf>> {
        let cached = cache_dir()?.join("tools").join("bin").join(self.name);
        let places = [PathBuf::from(self.name), cached];
        Ok(places.into_iter().find(|place| self.is_at(place)))
    }

    /// The tool, built now if it is not here; or the reason why it can't be had.
    pub(crate) fn obtain(&self) -> anyhow::Result<Result<PathBuf, String>> {
        if let Some(place) = self.present()? {
            return Ok(Ok(place));
        }
        let dir = cache_dir()?.join("tools");
        let Tool { name, version, minutes } = self;
        eprintln!("{name} {version} is not here: building it once into {} ({minutes})", dir.display());
        let mut install = process::cargo();
        install.args(["install", "--locked", "--version", version, "--root"]).arg(&dir).arg(name);
        // The tool's own build must not land in, or lock, the workspace's target folder.
        install.env_remove("CARGO_TARGET_DIR");
        if let Err(error) = process::succeed(&mut install) {
            return Ok(Err(format!("{name} {version} could not be built here ({error})")));
        }
        let place =
            self.present()?.with_context(|| format!("{name} {version} was built but does not run"))?;
        Ok(Ok(place))
    }

    fn is_at(&self, place: &PathBuf) -> bool {
        let said = process::capture(process::program(place).arg("--version"));
        said.is_ok_and(|said| said.split_whitespace().nth(1) == Some(self.version))
    }
}

/// The project's own folder in the user's cache folder.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let base =
        base.context("neither XDG_CACHE_HOME nor HOME names a folder to keep tools in; set one of them")?;
    Ok(base.join("orbit-te"))
}
