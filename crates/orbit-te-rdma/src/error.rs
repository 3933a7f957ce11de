//! What verbs say when they fail. Rule: an error names the call, what it was for, the errno, and where there is one the remedy.

use crate::verb::Verb;
use std::fmt;
use std::io;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Errno = Errno(libc::$name);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos!(EPERM EIO EAGAIN ENOMEM EACCES EFAULT EBUSY ENODEV EINVAL EMFILE ENOSPC ENOSYS EOPNOTSUPP ETIMEDOUT ENETUNREACH ENOENT ENXIO);

impl Errno {
    /// That of the call which just failed in this thread; `EIO` for one that forgot to say.
    pub fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().filter(|errno| *errno > 0).unwrap_or(libc::EIO))
    }

    /// Of a call that gives 0 or an errno, or -1 with the errno aside.
    pub fn check(returned: i32) -> Result<(), Errno> {
        match returned {
            0 => Ok(()),
            -1 => Err(Errno::last()),
            errno => Err(Errno(errno.abs())),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = io::Error::from_raw_os_error(self.0).to_string();
        let said = said.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{name}: {said}"),
            None => write!(f, "errno {}: {said}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct VerbsError {
    /// The call.
    pub verb: Verb,
    /// What it was for: a device, a size, a state.
    pub on: String,
    /// What it gave.
    pub errno: Errno,
    /// What to do about it, where that is known.
    pub remedy: Option<String>,
}

impl VerbsError {
    pub(crate) fn new(verb: Verb, on: impl Into<String>, errno: Errno) -> VerbsError {
        VerbsError { verb, on: on.into(), errno, remedy: None }
    }

    pub(crate) fn with_remedy(mut self, remedy: Option<String>) -> VerbsError {
        self.remedy = remedy;
        self
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) failed: {}", self.verb, self.on, self.errno)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// Why there are no verbs on this machine. Shown, it is the cause, and after a semicolon the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The library can't be opened.
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// The library is too old.
    NoSymbol {
        /// What is missing.
        symbol: &'static str,
    },
    /// The kernel has no RDMA.
    NoKernelSupport {
        /// What the list of devices gave.
        errno: Errno,
    },
    /// The list of devices can't be had.
    NoList {
        /// What it gave.
        errno: Errno,
    },
    /// There is no device.
    NoDevice,
    /// The kernel has devices, and the library has no driver for any of them.
    NoProvider {
        /// The kernel's names of them.
        devices: String,
    },
    /// The devices may not be opened.
    NoPermission {
        /// The character device.
        path: String,
        /// What opening it would give.
        errno: Errno,
    },
}

impl Unavailable {
    /// What is missing.
    pub fn cause(&self) -> String {
        match self {
            Unavailable::NoLibrary { reason } => format!("libibverbs.so.1 is not installed: {reason}"),
            Unavailable::NoSymbol { symbol } => format!("libibverbs.so.1 has no {symbol}: it is too old"),
            Unavailable::NoKernelSupport { errno } => format!("the kernel has no RDMA support ({errno})"),
            Unavailable::NoList { errno } => format!("the list of RDMA devices can't be had: {errno}"),
            Unavailable::NoDevice => "no RDMA device".to_string(),
            Unavailable::NoProvider { devices } => format!("no provider for {devices}"),
            Unavailable::NoPermission { path, errno } => format!("no permission on {path} ({errno})"),
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        let words = match self {
            Unavailable::NoLibrary { .. } => {
                "`apt-get install libibverbs1 ibverbs-providers` (or rdma-core) gives it"
            }
            Unavailable::NoSymbol { .. } => "rdma-core 33 or later has it",
            Unavailable::NoKernelSupport { .. } => {
                "`modprobe ib_uverbs` and the device's driver (mlx5_ib, rdma_rxe) give it"
            }
            Unavailable::NoList { .. } => "`ibv_devices` tells the same; see the kernel's log",
            Unavailable::NoDevice => {
                "`rdma link` shows what there is, `rdma link add rxe0 type rxe netdev eth0` makes one of a network card"
            }
            Unavailable::NoProvider { .. } => {
                "`apt-get install ibverbs-providers` (or the vendor's packages) gives it"
            }
            Unavailable::NoPermission { path, .. } => {
                return format!(
                    "give the user (or the container: `--device={path}`) read and write access to it"
                );
            }
        };
        words.to_string()
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause(), self.remedy())
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_of_both_conventions_are_understood() {
        assert_eq!(Errno::check(0), Ok(()));
        assert_eq!(Errno::check(libc::EBUSY), Err(Errno::EBUSY));
        assert_eq!(Errno::check(-libc::EINVAL), Err(Errno::EINVAL));
    }

    #[test]
    fn an_error_says_what_to_do() {
        let error = VerbsError::new(Verb::RegMr, "4096 bytes", Errno::ENOMEM);
        assert_eq!(error.to_string(), "ibv_reg_mr (4096 bytes) failed: ENOMEM: Cannot allocate memory");
        let error = error.with_remedy(Some("raise it".to_string()));
        assert!(error.to_string().ends_with("; raise it"));
        assert_eq!(format!("{:?}", Errno(9999)), "Errno(9999)");
    }
}
