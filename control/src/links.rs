//! How one thing in the configuration names others.

use crate::model::{Lun, Volume};
use crate::report::{Mark, Report};
use crate::section::{Marks, Section};
use crate::value::{Item, Mention, Naming, Shape, Value, kind_of};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use toml::de::DeValue;

/// The name of an `S`.
pub struct To<S> {
    name: String,
    at: Mark,
    kind: PhantomData<fn() -> S>,
}

impl<S> To<S> {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<S> Clone for To<S> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), at: self.at, kind: PhantomData }
    }
}

impl<S> PartialEq for To<S> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<S> fmt::Debug for To<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.name, f)
    }
}

impl<S: Section> Value for To<S> {
    const NAMING: Naming = Naming::One;

    fn shape() -> Shape {
        Shape::Name(S::KIND.section())
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let at = Mark::new(item.span());
        let section = S::KIND.section();
        match item.get_ref() {
            DeValue::String(text) => Some(Self { name: text.clone().into_owned(), at, kind: PhantomData }),
            other => {
                report.add(at, format!("is {}; it takes the name of a {section}", kind_of(other)));
                None
            }
        }
    }

    fn show(&self) -> Json {
        json!(self.name)
    }

    fn mentions(&self, each: &mut Mention<'_>) {
        each(S::KIND, &self.name, self.at);
    }
}

/// The names of any number of `S`, in no order.
pub struct Links<S> {
    names: BTreeMap<String, Mark>,
    kind: PhantomData<fn() -> S>,
}

impl<S> Links<S> {
    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Whether the name is among them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl<S> Default for Links<S> {
    fn default() -> Self {
        Self { names: BTreeMap::new(), kind: PhantomData }
    }
}

impl<S> Clone for Links<S> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), kind: PhantomData }
    }
}

impl<S> PartialEq for Links<S> {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl<S> fmt::Debug for Links<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names.keys()).finish()
    }
}

impl<S: Section> Value for Links<S> {
    const NAMING: Naming = Naming::Many;

    fn shape() -> Shape {
        Shape::List(Box::new(Shape::Name(S::KIND.section())))
    }

    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
        let DeValue::Array(list) = item.get_ref() else {
            let what = format!("is {}; it takes a list of names", kind_of(item.get_ref()));
            report.add(Mark::new(item.span()), what);
            return None;
        };
        let mut names = BTreeMap::new();
        let mut whole = true;
        for item in list.iter() {
            let Some(To { name, at, .. }) = To::<S>::read(item, report) else {
                whole = false;
                continue;
            };
            if names.contains_key(&name) {
                report.add(at, format!("names {name} twice"));
                whole = false;
            }
            names.insert(name, at);
        }
        whole.then_some(Self { names, kind: PhantomData })
    }

    fn show(&self) -> Json {
        self.names().collect()
    }

    fn mentions(&self, each: &mut Mention<'_>) {
        self.names.iter().for_each(|(name, at)| each(S::KIND, name, *at));
    }
}

/// The highest logical unit number: flat space addressing has 14 bits (SAM-5 4.7.7).
pub const LUN_MAX: u16 = (1 << 14) - 1;

/// What logical unit numbers mean.
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
                    report.add(at, format!("is no logical unit number: 0 to {LUN_MAX}, without zeroes in front"));
                }
                number.zip(read_lun(value, at, report))
            });
            whole &= lun.is_some();
            luns.extend(lun);
        }
        whole.then_some(Self(luns))
    }

    fn show(&self) -> Json {
        let one = |(number, lun): (&u16, &Lun)| (number.to_string(), crate::config::show(lun));
        Json::Object(self.0.iter().map(one).collect::<Map<_, _>>())
    }
}

/// A logical unit number as it is written: in one way only, so that none is there twice.
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
            Some(Lun { marks, volume, read_only: false, namespace: None, metadata: false })
        }
        other => {
            let at = Mark::new(item.span());
            report.add(at, format!("is {}; it takes the name of a volume, or {{ volume = ... }}", kind_of(other)));
            None
        }
    }
}
