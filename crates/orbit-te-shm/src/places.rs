//! The sockets at which a process is met. Rule: what is made in the file system is for its user alone, and goes with its owner; what
//! killed processes left there is cleared away.

use crate::config::SocketFolder;
use crate::sys;
use nix::sys::stat::{Mode, lstat};
use nix::unistd::geteuid;
use orbit_te_transport::TransportError;
use orbit_te_wire::same_host::Place;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const SUFFIX: &str = "sock";

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) fd: OwnedFd,
    pub(crate) place: Place,
    /// Removed when it ends.
    path: Option<PathBuf>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Somebody may have cleared it away.
            let _ = fs::remove_file(path);
        }
    }
}

/// Listens at new places: in the abstract namespace, and in the folder if there is one. A folder that can't be used is logged; without
/// any place it is an error.
pub(crate) fn listen(folder: &SocketFolder) -> Result<Vec<Listening>, TransportError> {
    let io = |source| TransportError::Io { what: "listening for processes of this host".to_string(), source };
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|e| io(io::Error::other(e)))?;
    let name = format!("orbit-te-{:032x}", u128::from_le_bytes(random));
    let place = Place::Abstract(name.as_bytes().to_vec());
    let fd = sys::bind(&place).map_err(io)?;
    let mut all = vec![Listening { fd, place, path: None }];
    match in_folder(folder, &name) {
        Ok(Some(listening)) => all.push(listening),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, ?folder, "no socket in the folder: processes of other network namespaces use other ways")
        }
    }
    Ok(all)
}

fn in_folder(at: &SocketFolder, name: &str) -> io::Result<Option<Listening>> {
    let folder = match at {
        SocketFolder::None => return Ok(None),
        SocketFolder::At(folder) => folder.clone(),
        SocketFolder::Usual => usual()?,
    };
    clear_away(&folder);
    // Under another name until it listens: others would take it for one that was left.
    let (new, path) = (folder.join(name).with_extension("new"), folder.join(name).with_extension(SUFFIX));
    let fd = sys::bind(&place(&new))?;
    let listening = Listening { fd, place: place(&path), path: Some(path.clone()) };
    let named = fs::rename(&new, &path).and_then(|()| match matches!(at, SocketFolder::At(_)) {
        // Who comes is asked by the kernel's word for him, not by the file's rights.
        true => fs::set_permissions(&path, fs::Permissions::from_mode(0o666)),
        false => Ok(()),
    });
    if let Err(error) = named {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(Some(listening))
}

fn place(path: &Path) -> Place {
    Place::Path(path.as_os_str().as_bytes().to_vec())
}

/// The folder of this user, made when it is not there. One that is not his alone is not used: somebody else could put himself in the
/// place of his processes.
fn usual() -> io::Result<PathBuf> {
    let user = geteuid();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|runtime| Path::new(runtime).is_absolute())
    {
        Some(runtime) => Path::new(&runtime).join("orbit-te"),
        None => std::env::temp_dir().join(format!("orbit-te-{user}")),
    };
    match nix::unistd::mkdir(&folder, Mode::S_IRWXU) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let found = lstat(&folder)?;
    let mode = found.st_mode & (libc::S_IFMT | 0o777);
    if found.st_uid != user.as_raw() || mode != libc::S_IFDIR | 0o700 {
        let what = format!("{} is not a folder of this user alone", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(folder)
}

/// Removes sockets at which nobody listens any more.
fn clear_away(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let ours = path.extension().is_some_and(|e| e == SUFFIX)
            && path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"orbit-te-"));
        let dead =
            || sys::connect(&place(&path)).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if ours && dead() {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_go_with_their_owner_and_left_ones_are_cleared_away() {
        let folder = std::env::temp_dir().join(format!("orbit-te-places-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let at = SocketFolder::At(folder.clone());
        let count = || fs::read_dir(&folder).unwrap().count();
        let listening = listen(&at).unwrap();
        assert_eq!((listening.len(), count()), (2, 1));
        // As a killed process leaves it: a socket in the folder that nobody has open.
        let left = folder.join("orbit-te-left.sock");
        drop(sys::bind(&place(&left)).unwrap());
        let other = listen(&at).unwrap();
        assert_eq!((left.exists(), count()), (false, 2), "one of each that lives");
        drop((listening, other));
        assert_eq!(count(), 0);
        fs::remove_dir(&folder).unwrap();
        assert_eq!(
            listen(&SocketFolder::At(folder)).unwrap().len(),
            1,
            "without the folder, the other place is there"
        );
    }
}
