//! A port as a configuration has it: which initiators see which volumes.

use crate::names::PortId;
use crate::schema::Srp;
use lunar_engine::link_ports::directory::Known;
use lunar_engine::link_ports::{Groups, View};
use lunar_engine::published_config::PublishedConfig;
use std::sync::Arc;

/// A port.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The name of its section.
    pub name: Arc<str>,
    /// The name of its target in the configuration.
    pub target: String,
    /// Its relative target port identifier.
    pub relative: u16,
    /// Its identifier.
    pub id: PortId,
    /// Its GUID.
    pub guid: u64,
    groups: Groups,
}

impl PortView {
    /// The port of a section in a configuration that is published; `None`: its target has no name.
    #[must_use]
    pub fn of(name: &str, port: &Srp, published: &PublishedConfig<'_>) -> Option<Self> {
        let names = port.names(name, &published.wanted.config)?;
        let target = port.target.name();
        Some(Self {
            name: name.into(),
            target: target.to_owned(),
            relative: published.ports.named(&names.port.scsi())?,
            id: names.port,
            guid: names.guid,
            groups: Groups::of(target, Known::Names, published),
        })
    }

    /// The view of an initiator; `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, initiator: PortId) -> Option<View> {
        self.groups.view_of(&initiator.to_string(), None)
    }
}
