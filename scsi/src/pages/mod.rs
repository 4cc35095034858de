//! The tables of pages: mode pages, vital product data, log pages.

pub mod log;
pub mod mode;
pub mod vpd;
