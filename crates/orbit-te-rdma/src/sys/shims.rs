//! The symbols of libibverbs that this crate and `ibverbs` call, defined here and looked up in the library when first called. Rule: a
//! missing library or symbol is a value: the call fails with `ENOSYS`, and [`library`] says why.

use ibverbs_sys::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const LIBRARY: &CStr = c"libibverbs.so.1";

/// The library, open for as long as the process lives.
struct Library(*mut c_void);

// SAFETY: what `dlopen` gives may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

fn open() -> &'static Result<Library, String> {
    static OPEN: OnceLock<Result<Library, String>> = OnceLock::new();
    OPEN.get_or_init(|| {
        // SAFETY: the name ends with a zero. The library's constructors are those of the system's libibverbs, which programs commonly run.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(why()) } else { Ok(Library(handle)) }
    })
}

/// What the loader says of its last failure in this thread.
fn why() -> String {
    // SAFETY: gives null or a string that lives until the next call of the loader in this thread.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return "the loader gives no reason".to_string();
    }
    // SAFETY: not null, so a string that ends with a zero; it is copied at once.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}

/// Whether the library can be opened, or why not.
pub(super) fn library() -> Result<(), String> {
    open().as_ref().map(|_| ()).map_err(String::clone)
}

/// The address of a symbol, or null.
fn symbol(name: &CStr) -> *mut c_void {
    match open() {
        // SAFETY: the library is open for ever; the name ends with a zero.
        Ok(library) => unsafe { libc::dlsym(library.0, name.as_ptr()) },
        Err(_) => std::ptr::null_mut(),
    }
}

fn not_there() {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

macro_rules! shims {
    ($( fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $absent:expr; )*) => {
        /// The first symbol that the library lacks.
        pub(super) fn missing() -> Option<&'static str> {
            const NAMES: &[&CStr] = &[$(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) { Ok(name) => name, Err(_) => c"" }
            ),*];
            NAMES.iter().find(|name| symbol(name).is_null()).and_then(|name| name.to_str().ok())
        }

        $(
            /// As in libibverbs.
            ///
            /// # Safety
            /// As in libibverbs.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                static FOUND: OnceLock<Option<Function>> = OnceLock::new();
                let found = FOUND.get_or_init(|| {
                    let address = symbol(CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok()?);
                    // SAFETY: the library's function of this name has this type: both come from its header. Null is `None`.
                    unsafe { std::mem::transmute::<*mut c_void, Option<Function>>(address) }
                });
                match found {
                    // SAFETY: the caller's promise, handed on.
                    Some(function) => unsafe { function($($arg),*) },
                    None => {
                        not_there();
                        $absent
                    }
                }
            }
        )*
    };
}

const NULL: *mut c_void = std::ptr::null_mut();

shims! {
    fn ibv_get_device_list(n: *mut c_int) -> *mut *mut ibv_device = NULL.cast();
    fn ibv_free_device_list(list: *mut *mut ibv_device) -> () = ();
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char = NULL.cast();
    fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 = 0;
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int = -1;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context = NULL.cast();
    fn ibv_close_device(context: *mut ibv_context) -> c_int = libc::ENOSYS;
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int = libc::ENOSYS;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int = libc::ENOSYS;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16) -> c_int = libc::ENOSYS;
    fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, most: usize, flags: u32, size: usize) -> isize = -(libc::ENOSYS as isize);
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int = -1;
    fn ibv_ack_async_event(event: *mut ibv_async_event) -> () = ();
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd = NULL.cast();
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int = libc::ENOSYS;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr = NULL.cast();
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr = NULL.cast();
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr = NULL.cast();
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int = libc::ENOSYS;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel = NULL.cast();
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int = libc::ENOSYS;
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cookie: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq = NULL.cast();
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int = libc::ENOSYS;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cookie: *mut *mut c_void) -> c_int = -1;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) -> () = ();
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp = NULL.cast();
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int = libc::ENOSYS;
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int = libc::ENOSYS;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int = libc::ENOSYS;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq = NULL.cast();
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int = libc::ENOSYS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_the_library_is_an_error_and_no_crash() {
        if library().is_ok() {
            assert_eq!(missing(), None);
            return;
        }
        assert!(missing().is_some());
        let mut n = 0;
        // SAFETY: the number is ours.
        let list = unsafe { ibv_get_device_list(&mut n) };
        assert!(list.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS));
    }

    #[test]
    fn a_symbol_that_is_nowhere_is_null() {
        assert!(symbol(c"ibv_no_such_call").is_null());
    }
}
