//! The names of the calls. Rule: one for each method of [`crate::sys::Verbs`], spelled as in libibverbs.

use std::fmt;

macro_rules! verbs {
    ($($variant:ident = $name:literal,)*) => {
        /// A call of verbs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Verb {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Verb {
            /// All of them.
            pub const ALL: &[Verb] = &[$(Verb::$variant,)*];

            /// Its name in libibverbs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Verb::$variant => $name,)*
                }
            }
        }
    };
}

verbs! {
    GetDeviceList = "ibv_get_device_list",
    OpenDevice = "ibv_open_device",
    CloseDevice = "ibv_close_device",
    QueryDevice = "ibv_query_device",
    QueryDeviceEx = "ibv_query_device_ex",
    QueryPort = "ibv_query_port",
    QueryGidTable = "ibv_query_gid_table",
    QueryPkey = "ibv_query_pkey",
    GetAsyncEvent = "ibv_get_async_event",
    AllocPd = "ibv_alloc_pd",
    DeallocPd = "ibv_dealloc_pd",
    RegMr = "ibv_reg_mr",
    RegDmabufMr = "ibv_reg_dmabuf_mr",
    DeregMr = "ibv_dereg_mr",
    AllocMw = "ibv_alloc_mw",
    DeallocMw = "ibv_dealloc_mw",
    BindMw = "ibv_bind_mw",
    CreateCompChannel = "ibv_create_comp_channel",
    DestroyCompChannel = "ibv_destroy_comp_channel",
    CreateCq = "ibv_create_cq",
    DestroyCq = "ibv_destroy_cq",
    ReqNotifyCq = "ibv_req_notify_cq",
    GetCqEvent = "ibv_get_cq_event",
    PollCq = "ibv_poll_cq",
    CreateQp = "ibv_create_qp",
    ModifyQp = "ibv_modify_qp",
    QueryQp = "ibv_query_qp",
    DestroyQp = "ibv_destroy_qp",
    PostSend = "ibv_post_send",
    PostRecv = "ibv_post_recv",
    CreateSrq = "ibv_create_srq",
    DestroySrq = "ibv_destroy_srq",
    PostSrqRecv = "ibv_post_srq_recv",
}

impl Verb {
    /// Whether it frees what another call made. Such calls must work when all else fails.
    pub const fn frees(self) -> bool {
        matches!(
            self,
            Verb::CloseDevice
                | Verb::DeallocPd
                | Verb::DeregMr
                | Verb::DeallocMw
                | Verb::DestroyCompChannel
                | Verb::DestroyCq
                | Verb::DestroyQp
                | Verb::DestroySrq
        )
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
