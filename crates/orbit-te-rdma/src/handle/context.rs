//! An open device. Rule: opened by name, asked by port number; closed when the last of what was made from it is gone.

#![allow(unsafe_code)]

use super::channel::Channel;
use super::cq::Cq;
use super::event::AsyncEvent;
use super::owner::{Owner, Ptr};
use super::pd::Pd;
use super::retention::{Raw, Retained, Retention, Swept};
use crate::device::{DeviceExtras, DeviceLimits, GidEntry, PortInfo};
use crate::error::{Errno, VerbsError};
use crate::sys::{Verbs, set_nonblocking};
use crate::verb::Verb;
use ibverbs_sys::ibv_context;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

struct Inner {
    owner: Owner<()>,
    raw: Ptr<ibv_context>,
    name: String,
}

/// An open device. Cheap to clone; the device is closed with the last clone, and the last child.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

impl Context {
    /// Opens a device by its name. Async events are read without waiting.
    ///
    /// # Errors
    /// `ENODEV` for a name that is in no list; what opening gave.
    pub fn open(verbs: &Arc<dyn Verbs>, name: &str) -> Result<Context, VerbsError> {
        let error = |errno| VerbsError::new(Verb::OpenDevice, name, errno);
        let raw = verbs.open_device(name).map_err(error)?;
        // SAFETY: the context was opened just now, for us.
        let owner = unsafe { Owner::new(Raw::Context(raw), verbs.clone(), Arc::default(), ()) };
        let context = Context { inner: Arc::new(Inner { owner, raw: Ptr(raw), name: name.to_string() }) };
        set_nonblocking(context.as_raw_fd()).map_err(error)?;
        Ok(context)
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The NUMA node of the device.
    pub fn numa_node(&self) -> Option<u32> {
        self.verbs().numa_node(self.name())
    }

    /// What the device has and takes.
    ///
    /// # Errors
    /// What the call gave.
    pub fn limits(&self) -> Result<DeviceLimits, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        let limits = unsafe { self.verbs().query_device(self.raw()) };
        limits.map(|raw| DeviceLimits::from_raw(&raw)).map_err(|errno| self.error(Verb::QueryDevice, errno))
    }

    /// What more the device says of itself; nothing where device or library do not know the question.
    ///
    /// # Errors
    /// What the call gave.
    pub fn extras(&self) -> Result<DeviceExtras, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        match unsafe { self.verbs().query_device_ex(self.raw()) } {
            Ok(raw) => Ok(DeviceExtras {
                odp: raw.odp_caps.general_caps & 1 != 0,
                cap_flags: raw.device_cap_flags_ex,
            }),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(DeviceExtras::default()),
            Err(errno) => Err(self.error(Verb::QueryDeviceEx, errno)),
        }
    }

    /// What a port is; ports count from 1.
    ///
    /// # Errors
    /// `EINVAL` for a port that is not there; what the call gave.
    pub fn port(&self, port: u8) -> Result<PortInfo, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        let info = unsafe { self.verbs().query_port(self.raw(), port) };
        let error = |errno| VerbsError::new(Verb::QueryPort, format!("{} port {port}", self.name()), errno);
        info.map(|raw| PortInfo::from_raw(&raw)).map_err(error)
    }

    /// The GIDs of all ports, as they are now.
    ///
    /// # Errors
    /// What the call gave.
    pub fn gid_table(&self) -> Result<Vec<GidEntry>, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        let table = unsafe { self.verbs().query_gid_table(self.raw()) };
        let table = table.map_err(|errno| self.error(Verb::QueryGidTable, errno))?;
        Ok(table.iter().map(GidEntry::from_raw).collect())
    }

    /// An entry of a port's P_Key table.
    ///
    /// # Errors
    /// `EINVAL` for one that is not there; what the call gave.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        let pkey = unsafe { self.verbs().query_pkey(self.raw(), port, index) };
        pkey.map_err(|errno| {
            VerbsError::new(Verb::QueryPkey, format!("{} port {port} index {index}", self.name()), errno)
        })
    }

    /// Takes the next async event, if one is there. The descriptor to wait on is [`AsFd`].
    ///
    /// # Errors
    /// What the call gave.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        match unsafe { self.verbs().get_async_event(self.raw()) } {
            Ok(mut raw) => {
                // SAFETY: the event was taken just now; it is read before it is given back, once.
                let event = unsafe {
                    let event = AsyncEvent::from_raw(&raw);
                    self.verbs().ack_async_event(&mut raw);
                    event
                };
                Ok(Some(event))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(self.error(Verb::GetAsyncEvent, errno)),
        }
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// What the call gave.
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        Pd::new(self)
    }

    /// Makes a completion channel. Its events are read without waiting.
    ///
    /// # Errors
    /// What the call gave.
    pub fn create_channel(&self) -> Result<Channel, VerbsError> {
        Channel::new(self)
    }

    /// Makes a CQ for at least `cqe` CQEs, on the completion vector `vector`.
    ///
    /// # Errors
    /// What the call gave.
    pub fn create_cq(&self, cqe: u32, channel: Option<&Channel>, vector: u32) -> Result<Cq, VerbsError> {
        Cq::new(self, cqe, channel, vector)
    }

    /// The list of what could not be freed. Outlives the context where it is kept.
    pub fn retention(&self) -> &Arc<Retention> {
        self.inner.owner.retention()
    }

    /// What could not be freed, the oldest first.
    pub fn retained(&self) -> Vec<Retained> {
        self.retention().list()
    }

    /// Tries again to free what is retained.
    pub fn sweep(&self) -> Swept {
        self.retention().sweep()
    }

    /// How many completion vectors there are.
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open as long as we have it; the number never changes.
        unsafe { (*self.raw()).num_comp_vectors }.max(0) as u32
    }

    pub(super) fn verbs(&self) -> &dyn Verbs {
        self.inner.owner.verbs()
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.inner.raw.get()
    }

    /// Takes over an object that was made from this context, with what must outlive it.
    ///
    /// # Safety
    /// As [`Owner::new`], of this context's table.
    pub(super) unsafe fn own<K: Send + Sync + 'static>(&self, raw: Raw, keep: K) -> Owner<K> {
        // SAFETY: the caller's promise.
        unsafe { Owner::new(raw, self.inner.owner.table().clone(), self.retention().clone(), keep) }
    }

    pub(super) fn error(&self, verb: Verb, errno: Errno) -> VerbsError {
        VerbsError::new(verb, self.name(), errno)
    }
}

impl AsRawFd for Context {
    /// The descriptor that becomes readable with an async event.
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the context is open as long as we have it.
        unsafe { self.verbs().async_fd(self.raw()) }
    }
}

impl AsFd for Context {
    /// The descriptor that becomes readable with an async event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, and open as long as we have that.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name()).finish_non_exhaustive()
    }
}
