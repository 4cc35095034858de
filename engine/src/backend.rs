//! The contract of a kind of store.
