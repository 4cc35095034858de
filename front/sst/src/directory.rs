//! A port as a configuration has it: which initiators see which volumes.

use crate::schema::St;
use lunar_engine::link_ports::directory::Known;
use lunar_engine::link_ports::{Groups, View};
use lunar_engine::published_config::PublishedConfig;
use std::net::IpAddr;
use std::sync::Arc;

/// A port.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The name of its section.
    pub name: Arc<str>,
    /// The name of its target in the configuration.
    pub target: String,
    /// The name by which initiators log in to the target.
    pub device: String,
    /// Its relative target port identifier.
    pub relative: u16,
    groups: Groups,
}

impl PortView {
    /// The port of a section in a configuration that is published; `None`: its target has no name.
    #[must_use]
    pub fn of(name: &str, port: &St, published: &PublishedConfig<'_>) -> Option<Self> {
        let names = port.names(name, &published.wanted.config)?;
        let target = port.target.name();
        Some(Self {
            name: name.into(),
            target: target.to_owned(),
            relative: published.ports.named(&names.port)?,
            device: names.device,
            groups: Groups::of(target, Known::Addresses, published),
        })
    }

    /// The view of an initiator by its name in lower case and its address, which one on an Ethernet does not have;
    /// `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, initiator: &str, source: Option<IpAddr>) -> Option<View> {
        self.groups.view_of(initiator, source)
    }
}
