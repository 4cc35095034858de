//! References from one resource to others, by name.

use crate::report::{Mark, Report};
use crate::section::{Item, Json, Mention, Naming, Resource, Shape, Value, kind_of};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use toml::de::DeValue;

/// A reference to a resource `S`.
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

impl<S: Resource> Value for To<S> {
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

/// References to any number of resources `S`, without an order.
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

impl<S: Resource> Value for Links<S> {
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
