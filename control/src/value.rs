//! The types of the values of keys: how they are read, shown and described.

use crate::report::{Mark, Report};
use crate::schema::shortened;
use crate::section::{Item, Mention, Naming, Shape, Value, kind_of};
pub use crate::value_error::{AddressError, NameError, NameKind, ValueError};
use serde_json::{Value as Json, json};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::DeValue;

/// A value that is written as a string.
pub trait Textual: Sized + Clone + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// Its form in words, with an example.
    const WHAT: &'static str;
    /// Its form as a regular expression (ECMA-262).
    const PATTERN: Option<&'static str> = None;
    /// Whether a whole number may be written instead of a string.
    const NUMBERS: bool = false;

    /// Reads it.
    ///
    /// # Errors
    /// Why it is no such value.
    fn parse(text: &str) -> Result<Self, ValueError>;

    /// As it is written.
    fn text(&self) -> String;
}

impl<T: Textual> Value for T {
    fn shape() -> Shape {
        Shape::Text { what: T::WHAT, pattern: T::PATTERN, numbers: T::NUMBERS }
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let text = match item.get_ref() {
            DeValue::String(text) => &**text,
            DeValue::Integer(number) if T::NUMBERS && number.radix() == 10 => number.as_str(),
            other => {
                report.add(Mark::new(item.span()), format!("is {}; it takes {}", kind_of(other), T::WHAT));
                return None;
            }
        };
        match T::parse(text) {
            Ok(value) => Some(value),
            Err(why) => {
                report.add(Mark::new(item.span()), format!("'{}' {why}", shortened(text)));
                None
            }
        }
    }

    fn show(&self) -> Json {
        json!(self.text())
    }
}

impl Value for bool {
    fn shape() -> Shape {
        Shape::Bool
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        match item.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            other => {
                report.add(Mark::new(item.span()), format!("is {}; it takes true or false", kind_of(other)));
                None
            }
        }
    }

    fn show(&self) -> Json {
        json!(self)
    }
}

impl<V: Value> Value for Option<V> {
    const NAMING: Naming = if matches!(V::NAMING, Naming::None) { Naming::None } else { Naming::Many };
    const NESTED: bool = V::NESTED;

    fn shape() -> Shape {
        Shape::Optional(Box::new(V::shape()))
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        V::read(item, report).map(Some)
    }

    fn show(&self) -> Json {
        self.as_ref().map_or(Json::Null, Value::show)
    }

    fn mentions(&self, each: &mut Mention<'_>) {
        self.iter().for_each(|value| value.mentions(each));
    }
}

/// An ordered list.
impl<V: Value> Value for Vec<V> {
    fn shape() -> Shape {
        Shape::List(Box::new(V::shape()))
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let DeValue::Array(list) = item.get_ref() else {
            let what = format!("is {}; it takes a list", kind_of(item.get_ref()));
            report.add(Mark::new(item.span()), what);
            return None;
        };
        let mut values = Self::new();
        let mut whole = true;
        for item in list.iter() {
            match V::read(item, report) {
                Some(value) if values.contains(&value) => {
                    report.add(Mark::new(item.span()), "is in the list twice");
                    whole = false;
                }
                Some(value) => values.push(value),
                None => whole = false,
            }
            if values.len() > LIST_MAX {
                report.add(Mark::new(item.span()), format!("a list has at most {LIST_MAX} entries"));
                return None;
            }
        }
        whole.then_some(values)
    }

    fn show(&self) -> Json {
        self.iter().map(Value::show).collect()
    }
}

/// The most entries of an ordered list, such as the patterns of a group, all of which each login compares.
const LIST_MAX: usize = 256;

/// Permissions of a file, in octal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mode(pub u32);

impl Textual for Mode {
    const WHAT: &'static str = "permissions in octal: `\"660\"`";
    const PATTERN: Option<&'static str> = Some("^0?[0-7]{3}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok().filter(|_| digits.len() == 3 && !digits.starts_with('+'));
        mode.map(Self).ok_or(ValueError::Permissions)
    }

    fn text(&self) -> String {
        format!("{:03o}", self.0)
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// The number, brought into the range.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        if number < MIN {
            return Self(MIN);
        }
        Self(if number > MAX { MAX } else { number })
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> Value for Whole<MIN, MAX> {
    fn shape() -> Shape {
        Shape::Whole { min: MIN, max: MAX }
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let at = Mark::new(item.span());
        match item.get_ref() {
            DeValue::Integer(number) => {
                let value = u64::from_str_radix(number.as_str(), number.radix()).ok();
                let value = value.filter(|value| (MIN..=MAX).contains(value));
                if value.is_none() {
                    report.add(at, format!("{} is out of range: {MIN} to {MAX}", shortened(number.as_str())));
                }
                value.map(Self)
            }
            other => {
                report.add(at, format!("is {}; it takes a whole number, {MIN} to {MAX}", kind_of(other)));
                None
            }
        }
    }

    fn show(&self) -> Json {
        json!(self.0)
    }
}

/// Bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// The error of a decimal unit, which some programs take for a power of 1000 and others for one of 1024.
fn decimal_unit(number: &str, unit: &str) -> Option<ValueError> {
    let letter = unit.strip_suffix(['B', 'b']).filter(|letter| !number.is_empty() && letter.len() == 1)?;
    let letter = letter.chars().next()?.to_ascii_uppercase();
    "KMGTP".contains(letter).then(|| ValueError::DecimalUnit { number: number.to_owned(), letter })
}

impl Textual for Size {
    const WHAT: &'static str = "a size in bytes, or with K, M, G, T, P (powers of 1024): `\"20G\"`";
    const PATTERN: Option<&'static str> = Some("^[0-9]+([KkMmGgTtPp](iB)?)?$");
    const NUMBERS: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit = unit.strip_suffix("iB").filter(|letter| !letter.is_empty()).unwrap_or(unit);
        let shift = match unit {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            "P" | "p" => 50,
            _ => return Err(decimal_unit(number, unit).unwrap_or(ValueError::Size)),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        // Offsets in files are signed.
        bytes.filter(|bytes| i64::try_from(*bytes).is_ok()).map(Self).ok_or(ValueError::Size)
    }

    fn text(&self) -> String {
        let units = [(50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let unit = units.iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        unit.map_or_else(|| self.0.to_string(), |(shift, letter)| format!("{}{letter}", self.0 >> shift))
    }
}

impl fmt::Display for Size {
    /// For people: `20 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        match text.strip_suffix(|c: char| c.is_ascii_uppercase()) {
            Some(number) => write!(f, "{number} {}iB", &text[number.len()..]),
            None => write!(f, "{text} bytes"),
        }
    }
}

/// A time span.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Period(pub Duration);

const PERIOD_UNITS: [(&str, u64); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];
/// A time span is at most a year: a longer one has no practical use.
const PERIOD_MICROSECONDS_MAX: u64 = 366 * 86_400_000_000;

impl Textual for Period {
    const WHAT: &'static str = "a time span with us, ms, s, m, h or d: `\"15s\"`";
    const PATTERN: Option<&'static str> = Some("^[0-9]+(us|ms|s|m|h|d)$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let scale = PERIOD_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let span = number.parse::<u64>().ok().zip(scale).and_then(|(number, scale)| number.checked_mul(scale));
        let span = span.filter(|span| *span <= PERIOD_MICROSECONDS_MAX);
        span.map(|span| Self(Duration::from_micros(span))).ok_or(ValueError::Period)
    }

    fn text(&self) -> String {
        let span = u64::try_from(self.0.as_micros()).unwrap_or(PERIOD_MICROSECONDS_MAX);
        let unit = PERIOD_UNITS.iter().find(|(_, scale)| span > 0 && span.is_multiple_of(*scale));
        unit.map_or_else(|| "0s".into(), |(name, scale)| format!("{}{name}", span / scale))
    }
}

/// An absolute path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilePath(PathBuf);

impl FilePath {
    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Bytes of a path at most, with its final zero (PATH_MAX of Linux).
const PATH_BYTES_MAX: usize = 4096;

impl Textual for FilePath {
    const WHAT: &'static str = "an absolute path: `\"/srv/disk1.img\"`";
    const PATTERN: Option<&'static str> = Some("^/");

    fn parse(text: &str) -> Result<Self, ValueError> {
        if !text.starts_with('/') {
            return Err(ValueError::RelativePath);
        }
        if text.len() >= PATH_BYTES_MAX || text.contains('\0') {
            return Err(ValueError::Path { most: PATH_BYTES_MAX - 1 });
        }
        // One spelling for one path: double slashes, dots and a slash at the end are dropped.
        Ok(Self(Path::new(text).components().collect()))
    }

    fn text(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

/// One line of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line<const MAX: usize>(String);

impl<const MAX: usize> Line<MAX> {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> Textual for Line<MAX> {
    const WHAT: &'static str = "one line of text";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() || text.len() > MAX || text.chars().any(char::is_control) {
            return Err(ValueError::Line { most: MAX });
        }
        Ok(Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// Declares a value that is one of some words: each word once, with its meaning.
#[macro_export]
macro_rules! choices {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident { $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)+ }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
            pub enum $name { $($(#[doc = $word_doc])+ $variant,)+ }

            impl $name {
                const WORDS: &'static [(&'static str, &'static str)] =
                    &[$(($word, concat!($($word_doc),+).trim_ascii())),+];

                /// The word for it.
                #[must_use]
                pub fn word(self) -> &'static str {
                    match self { $(Self::$variant => $word,)+ }
                }
            }

            impl $crate::section::Value for $name {
                fn shape() -> $crate::section::Shape {
                    $crate::section::Shape::Choice(Self::WORDS.to_vec())
                }

                fn read(item: &$crate::section::Item<'_>, report: &mut $crate::report::Report) -> Option<Self> {
                    $crate::schema::read_choice(item, report, &[$(($word, Self::$variant)),+])
                }

                fn show(&self) -> $crate::section::Json {
                    $crate::section::Json::from(self.word())
                }
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_binary() {
        let sizes = [("0", 0), ("512", 512), ("4k", 4096), ("1M", 1 << 20), ("20GiB", 20 << 30), ("7P", 7 << 50)];
        for (text, bytes) in sizes {
            assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "20GB", "1iB", "1 G", "1KK", "8192P", "18446744073709551616", "٣G", "+1"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
        // Some programs take these for powers of 1000, others for powers of 1024.
        for (text, number, letter) in [("20GB", "20", 'G'), ("5mb", "5", 'M'), ("1kB", "1", 'K')] {
            let number = number.to_owned();
            assert_eq!(Size::parse(text), Err(ValueError::DecimalUnit { number, letter }), "{text}");
        }
        let why = Size::parse("20GB").expect_err("a decimal unit").to_string();
        assert_eq!(why, "is not a size: write 20G, in powers of 1024 (20 GiB)");
        assert_eq!(Size::parse("1.5G"), Err(ValueError::Size));
        assert_eq!((Size(20 << 30).to_string(), Size(513).to_string()), ("20 GiB".into(), "513 bytes".into()));
    }

    #[test]
    fn periods_have_units() {
        let spans = [("15s", 15_000_000), ("250ms", 250_000), ("2h", 7_200_000_000), ("0s", 0), ("100us", 100)];
        for (text, span) in spans {
            assert_eq!(Period::parse(text), Ok(Period(Duration::from_micros(span))), "{text}");
            assert_eq!(Period(Duration::from_micros(span)).text(), text);
        }
        for text in ["", "15", "s", "1.5s", "15 s", "-1s", "367d", "99999999999999999999d", "1y"] {
            assert_eq!(Period::parse(text), Err(ValueError::Period), "{text}");
        }
    }

    #[test]
    fn paths_have_one_spelling() {
        assert_eq!(FilePath::parse("/a//b/./c/").map(|path| path.text()).as_deref(), Ok("/a/b/c"));
        for text in ["", "a/b", "./a"] {
            assert_eq!(FilePath::parse(text), Err(ValueError::RelativePath), "{text}");
        }
        for text in ["/a\0b", &"/a".repeat(2048)] {
            assert_eq!(FilePath::parse(text), Err(ValueError::Path { most: 4095 }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(bytes in 0..=i64::MAX as u64, micros in 0..=PERIOD_MICROSECONDS_MAX) {
            prop_assert_eq!(Size::parse(&Size(bytes).text()), Ok(Size(bytes)));
            let period = Period(Duration::from_micros(micros));
            prop_assert_eq!(Period::parse(&period.text()), Ok(period));
        }
    }
}
