//! LUN maps: the logical unit numbers of a group and their volumes.

use crate::common_sections::{Lun, Volume};
use crate::links::To;
use crate::report::{Mark, Report};
use crate::section::{Item, Json, Marks, OwnKeys, Section, Shape, Value, kind_of, show};
use serde_json::Map;
use std::collections::BTreeMap;
use toml::de::DeValue;

/// The highest logical unit number: flat space addressing has 14 bits (SAM-5 4.7.7).
pub const LUN_MAX: u16 = (1 << 14) - 1;

/// The LUN map of a group: the volume of each logical unit number.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Luns(pub BTreeMap<u16, Lun>);

impl Value for Luns {
    const NESTED: bool = true;

    fn shape() -> Shape {
        Shape::Luns
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let DeValue::Table(table) = item.get_ref() else {
            let what = format!("is {}; it takes a table: luns.0 = \"disk1\"", kind_of(item.get_ref()));
            report.add(Mark::new(item.span()), what);
            return None;
        };
        let mut luns = BTreeMap::new();
        let mut whole = true;
        for (key, value) in table.iter() {
            let at = Mark::new(key.span());
            let lun = report.within(key.get_ref(), |report| {
                let number = lun_number(key.get_ref());
                if number.is_none() {
                    report.add(at, format!("is not a logical unit number: 0 to {LUN_MAX}, without zeroes in front"));
                }
                number.zip(read_lun(value, at, report))
            });
            whole &= lun.is_some();
            luns.extend(lun);
        }
        whole.then_some(Self(luns))
    }

    fn show(&self) -> Json {
        let one = |(number, lun): (&u16, &Lun)| (number.to_string(), show(lun));
        Json::Object(self.0.iter().map(one).collect::<Map<_, _>>())
    }
}

/// Parses a logical unit number. There is one way to write it, so that none is in the table twice.
pub(crate) fn lun_number(text: &str) -> Option<u16> {
    let number = text.parse::<u16>().ok().filter(|number| *number <= LUN_MAX)?;
    (number.to_string() == text).then_some(number)
}

/// `"disk1"`, or `{ volume = "disk1", read-only = true }`.
fn read_lun(item: &Item<'_>, at: Mark, report: &mut Report) -> Option<Lun> {
    match item.get_ref() {
        DeValue::Table(table) => Lun::read(table, at, report),
        DeValue::String(_) => {
            let volume = To::<Volume>::read(item, report)?;
            let marks = Marks { whole: at, keys: vec![("volume", Mark::new(item.span()))] };
            Some(Lun { marks, own: OwnKeys::default(), volume, read_only: false, namespace: None, metadata: false })
        }
        other => {
            let at = Mark::new(item.span());
            report.add(at, format!("is {}; it takes the name of a volume, or {{ volume = ... }}", kind_of(other)));
            None
        }
    }
}
