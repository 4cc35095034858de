//! What a page is: mode pages, vital product data, log pages.

pub mod log;
pub mod mode;
pub mod vpd;
