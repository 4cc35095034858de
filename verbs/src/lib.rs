//! RDMA devices of the kernel: adapters, and software devices such as rdma_rxe.
//!
//! * [`library`]: the libraries libibverbs and librdmacm, loaded at run time, and safe types for what they have
//! * [`error`]: why a device cannot be used
//!
//! A peer never reads or writes memory here: no memory is registered for remote access.

pub mod error;
pub mod library;
