//! The pages of MODE SELECT's parameter list.

use super::{Found, HEADER_BYTES_MAX, PAGE_CODE};
use crate::change::ModeValues;
use crate::context::Context;
use crate::lu::Emulated;
use crate::sense::{Asc, Sense};

/// The pages of a parameter list. No value takes effect unless all pages are valid.
pub(crate) struct Selection<'a> {
    cx: &'a Context<'a>,
    lu: &'a Emulated,
    list: &'a [u8],
    at: usize,
    /// The values after the pages that were read so far.
    pub(crate) values: ModeValues,
}

impl<'a> Selection<'a> {
    /// The pages from byte `at` of the list on.
    pub(crate) fn new(cx: &'a Context<'a>, lu: &'a Emulated, list: &'a [u8], at: usize) -> Self {
        Self { cx, lu, list, at, values: lu.mode() }
    }

    /// Reads all pages.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, INVALID FIELD IN PARAMETER LIST.
    pub(crate) fn apply(&mut self) -> Result<(), Sense> {
        while self.at < self.list.len() {
            self.at += self.page(&self.list[self.at..])?;
        }
        Ok(())
    }

    /// Reads the page at the start of `rest`; returns its length with its header.
    fn page(&mut self, rest: &[u8]) -> Result<usize, Sense> {
        const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        let rows = self.cx.device.mode;
        let found = Found::first(rows, rest).ok_or(SHORT)?;
        let row = match found.row.filter(|row| row.is_of(self.lu)) {
            Some(row) => row,
            // The page is known and its subpage is not: the subpage code is the field in error.
            None if found.header == HEADER_BYTES_MAX && rows.iter().any(|row| row.page == rest[0] & PAGE_CODE) => {
                return Err(Sense::in_list(self.at + 1));
            }
            None => return Err(Sense::bit_in_list(self.at, 5)),
        };
        if found.length != row.length {
            return Err(Sense::in_list(self.at + found.header / 2));
        }
        let body = rest.get(found.header..found.header + found.length).ok_or(SHORT)?;
        let (now, changeable) = (row.body(self.cx, self.values), row.changeable(&self.lu.unit));
        for (at, new) in body.iter().enumerate() {
            let wrong = (new ^ now[at]) & !changeable[at];
            if let Some(bit) = wrong.checked_ilog2() {
                return Err(Sense::bit_in_list(self.at + found.header + at, bit as u8));
            }
        }
        row.take(&self.lu.unit, body, &mut self.values);
        Ok(found.header + found.length)
    }
}
