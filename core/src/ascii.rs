//! Short ASCII texts, stored in place: a target with thousands of volumes has many of them.

use std::fmt;
use std::ops::Deref;

/// A field of ASCII text in SCSI (SPC-6 4.3.1): printable characters, at most as many as the field is wide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ascii<const WIDTH: usize> {
    /// The text, then zeroes, so that the order of values is that of their texts.
    bytes: [u8; WIDTH],
    length: u8,
}

impl<const WIDTH: usize> Ascii<WIDTH> {
    /// A text, cut to the width and without characters that are not printable.
    #[must_use]
    pub fn cut(text: &str) -> Self {
        const { assert!(WIDTH <= u8::MAX as usize, "the length has one byte") };
        let (mut bytes, mut length) = ([0; WIDTH], 0);
        let printable = text.bytes().filter(|byte| byte.is_ascii_graphic() || *byte == b' ');
        for (to, from) in bytes.iter_mut().zip(printable) {
            *to = from;
            length += 1;
        }
        Self { bytes, length }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = self.bytes.get(..self.length.into()).and_then(|text| str::from_utf8(text).ok());
        text.expect("it is ASCII within the width")
    }
}

impl<const WIDTH: usize> Default for Ascii<WIDTH> {
    fn default() -> Self {
        Self { bytes: [0; WIDTH], length: 0 }
    }
}

impl<const WIDTH: usize> From<&str> for Ascii<WIDTH> {
    fn from(text: &str) -> Self {
        Self::cut(text)
    }
}

impl<const WIDTH: usize> Deref for Ascii<WIDTH> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<const WIDTH: usize> fmt::Display for Ascii<WIDTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl<const WIDTH: usize> fmt::Debug for Ascii<WIDTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_printable_characters_that_fit() {
        assert_eq!(Ascii::<8>::cut("LUNAR").as_str(), "LUNAR");
        assert_eq!(Ascii::<4>::cut("0.10.3").as_str(), "0.10");
        assert_eq!(Ascii::<8>::cut("a\u{e9}\u{1f600}\n b\u{7f}").as_str(), "a b");
        assert_eq!((Ascii::<8>::default().as_str(), Ascii::<0>::cut("a").as_str()), ("", ""));
    }

    #[test]
    fn texts_are_ordered_and_shown_as_strings() {
        assert!(Ascii::<8>::cut("a") < Ascii::cut("ab") && Ascii::<8>::cut("ab") < Ascii::cut("b"));
        assert_eq!(format!("{0} {0:?} {0:>4}", Ascii::<8>::from("a b")), "a b \"a b\"  a b");
    }
}
