//! The links of the sections of a configuration, as a front opens, replaces and closes them.

use std::collections::BTreeMap;

/// A link that is open, with settings of this type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundLink<C> {
    /// Its number in the process.
    pub number: u64,
    /// Its core.
    pub core: usize,
    /// Its settings.
    pub config: C,
    /// Links of the same group have the same core.
    pub group: Option<u16>,
}

/// The links of a process, by the names of their sections.
#[derive(Debug)]
pub struct LinkTable<C> {
    last: u64,
    links: BTreeMap<String, BoundLink<C>>,
    /// Links that a change has opened, and that replace those in use when it is published.
    prepared: BTreeMap<String, BoundLink<C>>,
}

impl<C> Default for LinkTable<C> {
    fn default() -> Self {
        Self { last: 0, links: BTreeMap::new(), prepared: BTreeMap::new() }
    }
}

impl<C: PartialEq> LinkTable<C> {
    /// The link to open for a section; `None`: it is open already, with these settings.
    pub fn wanted(&mut self, name: &str, config: C, group: Option<u16>, cores: usize) -> Option<BoundLink<C>> {
        if self.get(name).is_some_and(|link| link.config == config && link.group == group) {
            return None;
        }
        self.last += 1;
        Some(BoundLink { number: self.last, core: self.core_for(group, cores), config, group })
    }

    /// The core that serves a link of this group: that of its other links, otherwise the one with the fewest links.
    fn core_for(&self, group: Option<u16>, cores: usize) -> usize {
        let all = || self.links.values().chain(self.prepared.values());
        let same = all().find(|link| group.is_some() && link.group == group).map(|link| link.core);
        let load = |core: &usize| all().filter(|link| link.core == *core).count();
        same.unwrap_or_else(|| (0..cores).min_by_key(load).unwrap_or(0))
    }

    /// Takes a link that was opened for a change.
    pub fn prepare(&mut self, name: String, link: BoundLink<C>) {
        self.prepared.insert(name, link);
    }

    /// Removes a link whose change was rolled back. The caller closes it.
    pub fn roll_back(&mut self, name: &str) {
        self.prepared.remove(name);
    }

    /// Puts the prepared links in the places of those in use, and removes those of sections that are gone. The caller
    /// closes the result.
    #[must_use]
    pub fn publish(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<BoundLink<C>> {
        let prepared = std::mem::take(&mut self.prepared);
        let replaced = prepared.into_iter().filter_map(|(name, link)| self.links.insert(name, link));
        let mut gone: Vec<BoundLink<C>> = replaced.collect();
        let unwanted: Vec<String> = self.links.keys().filter(|name| !is_wanted(name)).cloned().collect();
        gone.extend(unwanted.iter().filter_map(|name| self.links.remove(name)));
        gone
    }

    /// The link in use of a section.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&BoundLink<C>> {
        self.links.get(name)
    }

    /// The links in use.
    #[must_use]
    pub fn links(&self) -> &BTreeMap<String, BoundLink<C>> {
        &self.links
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn links_of_a_group_have_one_core_and_others_are_spread() {
        let grouped = [(Some(5), 0), (Some(6), 1), (Some(5), 0), (Some(7), 1)];
        let others = [(None, 0), (None, 1), (None, 0)];
        for groups in [&grouped[..], &others] {
            let mut table = LinkTable::default();
            for (at, (group, core)) in groups.iter().enumerate() {
                let name = at.to_string();
                let link = table.wanted(&name, "eth0", *group, 2).expect("a new one");
                assert_eq!((link.number, link.core), (at as u64 + 1, *core), "{name}");
                table.prepare(name, link);
            }
        }
    }

    #[test]
    fn a_change_replaces_links_that_differ_and_closes_those_that_are_gone() {
        let mut table = LinkTable::default();
        for name in ["a", "b"] {
            let link = table.wanted(name, "eth0", None, 1).expect("a new one");
            table.prepare(name.into(), link);
        }
        assert!(table.get("a").is_none(), "not yet published");
        assert!(table.publish(|_| true).is_empty());
        assert_eq!(table.wanted("a", "eth0", None, 1), None);
        let other = table.wanted("a", "eth1", None, 1).expect("it differs");
        assert!(table.wanted("a", "eth0", Some(1), 1).is_some(), "so does its group");
        table.prepare("a".into(), other.clone());
        table.roll_back("a");
        assert!(table.publish(|_| true).is_empty(), "it was rolled back");
        table.prepare("a".into(), other.clone());
        let gone: Vec<u64> = table.publish(|name| name == "a").iter().map(|link| link.number).collect();
        assert_eq!((gone, table.get("a"), table.links().len()), (vec![1, 2], Some(&other), 1));
    }
}
