//! The structures of the headers of libibverbs (IBVERBS_1.1) and librdmacm (RDMACM_1.0), as far as they are used. Their
//! layouts are part of the ABI of both libraries.

use std::ffi::{c_char, c_int, c_void};

/// Declares types that only the libraries look into.
macro_rules! opaque {
    ($($(#[$about:meta])* $name:ident;)*) => {
        $($(#[$about])*
        #[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque! {
    /// `struct ibv_pd`.
    ProtectionDomain;
    /// `struct ibv_qp`.
    Pair;
}

/// `RDMA_PS_TCP`: services have the numbers of TCP ports.
pub(super) const PORTS_TCP: u32 = 0x106;
/// `IBV_QPT_RC`.
pub(super) const RELIABLE: u32 = 2;
/// `IBV_ACCESS_LOCAL_WRITE`: without a right of peers.
pub(super) const LOCAL_WRITE: c_int = 1;
/// `IBV_TRANSPORT_IB`, which RoCE has, too.
pub(super) const TRANSPORT_IB: c_int = 0;

/// `enum ibv_wr_opcode`.
pub(super) const WRITE: u32 = 0;
pub(super) const SEND: u32 = 2;
pub(super) const READ: u32 = 4;
pub(super) const SEND_WITH_INVALIDATE: u32 = 9;
/// `enum ibv_send_flags`.
pub(super) const SIGNALED: u32 = 2;
pub(super) const INLINE: u32 = 8;

/// `enum ibv_device_cap_flags`: SEND with Invalidate.
pub(super) const MEM_MGT_EXTENSIONS: u32 = 1 << 21;

/// `enum rdma_cm_event_type`.
pub(super) const CONNECT_REQUEST: u32 = 4;
pub(super) const CONNECT_ERROR: u32 = 6;
pub(super) const UNREACHABLE: u32 = 7;
pub(super) const REJECTED: u32 = 8;
pub(super) const ESTABLISHED: u32 = 9;
pub(super) const DISCONNECTED: u32 = 10;
pub(super) const DEVICE_REMOVAL: u32 = 11;
pub(super) const ADDR_CHANGE: u32 = 14;
pub(super) const TIMEWAIT_EXIT: u32 = 15;

/// `struct ibv_device`: its first members.
#[repr(C)]
pub(super) struct RawDevice {
    functions: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport: c_int,
    pub(super) name: [c_char; 64],
}

type PollQueue = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int;
type RequestNotification = unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int;
pub(super) type PostSend = unsafe extern "C" fn(*mut Pair, *mut SendRequest, *mut *mut SendRequest) -> c_int;
type PostReceive = unsafe extern "C" fn(*mut Pair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;

/// `struct ibv_context_ops`: the functions of the data path, which the headers call inline.
#[repr(C)]
pub(super) struct Operations {
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<PollQueue>,
    pub(super) req_notify_cq: Option<RequestNotification>,
    between: [*mut c_void; 12],
    pub(super) post_send: Option<PostSend>,
    pub(super) post_recv: Option<PostReceive>,
    after: [*mut c_void; 5],
}

/// `struct ibv_context`: its first members.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut RawDevice,
    pub(super) operations: Operations,
    command_fd: c_int,
    event_fd: c_int,
    pub(super) vectors: c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(super) struct DeviceAttributes {
    firmware: [c_char; 64],
    guids: [u64; 2],
    pub(super) max_mr_size: u64,
    page_sizes: u64,
    identity: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) capabilities: u32,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    rest: [u32; 18],
}

/// `struct ibv_mr`: its first members.
#[repr(C)]
pub(super) struct MemoryRegion {
    owners: [*mut c_void; 2],
    address: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) fd: c_int,
    references: c_int,
}

/// `struct ibv_cq`: its first members.
#[repr(C)]
pub(super) struct CompletionQueue {
    pub(super) context: *mut Context,
    channel: *mut Channel,
    cq_context: *mut c_void,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct WorkCompletion {
    pub(super) id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor: u32,
    pub(super) len: u32,
    immediate: u32,
    pub(super) qp: u32,
    source: u32,
    pub(super) flags: u32,
    datagram: [u32; 2],
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, whose unions have the members of RDMA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub(super) id: u64,
    pub(super) next: *mut Self,
    pub(super) pieces: *mut Piece,
    pub(super) count: c_int,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    /// The immediate data, or the key to invalidate.
    pub(super) invalidates: u32,
    pub(super) remote: u64,
    pub(super) key: u32,
    rest: [u64; 9],
}

impl SendRequest {
    pub(super) fn new(id: u64, opcode: u32) -> Self {
        Self {
            id,
            next: std::ptr::null_mut(),
            pieces: std::ptr::null_mut(),
            count: 0,
            opcode,
            flags: 0,
            invalidates: 0,
            remote: 0,
            key: 0,
            rest: [0; 9],
        }
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct ReceiveRequest {
    pub(super) id: u64,
    pub(super) next: *mut Self,
    pub(super) pieces: *mut Piece,
    pub(super) count: c_int,
}

/// `struct ibv_qp_init_attr`, with its `struct ibv_qp_cap`.
#[repr(C)]
pub(super) struct PairAttributes {
    pub(super) context: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) receive_cq: *mut CompletionQueue,
    pub(super) shared: *mut c_void,
    pub(super) max_sends: u32,
    pub(super) max_receives: u32,
    pub(super) max_send_pieces: u32,
    pub(super) max_receive_pieces: u32,
    pub(super) max_inline: u32,
    pub(super) kind: u32,
    pub(super) signals_all: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct EventQueue {
    pub(super) fd: c_int,
}

/// `struct rdma_cm_id`: its first members, with those of `struct rdma_addr`.
#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut Context,
    channel: *mut EventQueue,
    context: *mut c_void,
    pub(super) pair: *mut Pair,
    pub(super) source: SocketAddress,
    pub(super) destination: SocketAddress,
}

/// `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct SocketAddress(pub(super) [u8; 128]);

/// `struct rdma_cm_event`, whose union has the parameters of a connection.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) listener: *mut CmId,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) connection: ConnectionParam,
}

/// `struct rdma_conn_param`.
#[repr(C)]
pub(super) struct ConnectionParam {
    pub(super) private: *const c_void,
    pub(super) private_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retries: u8,
    pub(super) not_ready_retries: u8,
    pub(super) is_shared: u8,
    pub(super) qp: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are those that a C compiler computes from the headers of rdma-core 44 for 64 bits.
    #[test]
    fn structures_have_the_layout_of_the_libraries() {
        assert_eq!([offset_of!(RawDevice, node_type), offset_of!(RawDevice, transport)], [16, 20]);
        assert_eq!(offset_of!(RawDevice, name), 24);
        assert_eq!(size_of::<Operations>(), 256);
        assert_eq!([offset_of!(Operations, poll_cq), offset_of!(Operations, req_notify_cq)], [88, 96]);
        assert_eq!([offset_of!(Operations, post_send), offset_of!(Operations, post_recv)], [200, 208]);
        assert_eq!([offset_of!(Context, operations), offset_of!(Context, vectors)], [8, 272]);
        assert_eq!(size_of::<DeviceAttributes>(), 232);
        assert_eq!([offset_of!(DeviceAttributes, max_mr_size), offset_of!(DeviceAttributes, max_qp)], [80, 108]);
        assert_eq!([offset_of!(DeviceAttributes, max_qp_wr), offset_of!(DeviceAttributes, max_sge)], [112, 120]);
        assert_eq!([offset_of!(DeviceAttributes, max_sge_rd), offset_of!(DeviceAttributes, max_cqe)], [124, 132]);
        assert_eq!(offset_of!(DeviceAttributes, max_qp_rd_atom), 144);
        assert_eq!(offset_of!(DeviceAttributes, max_qp_init_rd_atom), 156);
        assert_eq!([offset_of!(MemoryRegion, lkey), offset_of!(MemoryRegion, rkey)], [36, 40]);
        assert_eq!((size_of::<Channel>(), offset_of!(Channel, fd)), (16, 8));
        assert_eq!(offset_of!(CompletionQueue, cq_context), 16);
    }

    #[test]
    fn work_has_the_layout_of_the_libraries() {
        assert_eq!(size_of::<WorkCompletion>(), 48);
        assert_eq!([offset_of!(WorkCompletion, status), offset_of!(WorkCompletion, len)], [8, 20]);
        assert_eq!([offset_of!(WorkCompletion, qp), offset_of!(WorkCompletion, flags)], [28, 36]);
        assert_eq!((size_of::<Piece>(), offset_of!(Piece, lkey)), (16, 12));
        assert_eq!(size_of::<SendRequest>(), 128);
        assert_eq!([offset_of!(SendRequest, pieces), offset_of!(SendRequest, count)], [16, 24]);
        assert_eq!([offset_of!(SendRequest, opcode), offset_of!(SendRequest, flags)], [28, 32]);
        assert_eq!([offset_of!(SendRequest, invalidates), offset_of!(SendRequest, remote)], [36, 40]);
        assert_eq!(offset_of!(SendRequest, key), 48);
        assert_eq!((size_of::<ReceiveRequest>(), offset_of!(ReceiveRequest, count)), (32, 24));
        assert_eq!(size_of::<PairAttributes>(), 64);
        assert_eq!([offset_of!(PairAttributes, max_sends), offset_of!(PairAttributes, max_inline)], [32, 48]);
        assert_eq!([offset_of!(PairAttributes, kind), offset_of!(PairAttributes, signals_all)], [52, 56]);
    }

    #[test]
    fn the_connection_manager_has_the_layout_of_its_library() {
        assert_eq!([offset_of!(CmId, pair), offset_of!(CmId, source), offset_of!(CmId, destination)], [24, 32, 160]);
        assert_eq!([offset_of!(CmEvent, event), offset_of!(CmEvent, connection)], [16, 24]);
        assert_eq!(size_of::<ConnectionParam>(), 24);
        assert_eq!([offset_of!(ConnectionParam, private_len), offset_of!(ConnectionParam, qp)], [8, 16]);
        assert_eq!([offset_of!(ConnectionParam, initiator_depth), offset_of!(ConnectionParam, is_shared)], [10, 14]);
    }
}
