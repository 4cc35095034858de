//! The contract of a transport.
