//! The NVMe controllers of a process as sessions of the API. Several fronts have controllers.

use crate::core_set::shared::Shared;
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::negotiated::{DEPTH_MIN, ParameterView, shallow};
use lunar_nvme::{Controller, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The beginning of the IDs of controllers.
const NVME: &str = "nvme";
/// The longest time until a controller has ended, independent of its host: its commands in the store must complete
/// first.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// The ID of a controller as a session.
#[must_use]
pub fn id(controller: &Controller) -> String {
    format!("{NVME}-{}", controller.id)
}

/// A controller as a session; `targets` has the names of targets in the configuration by their NQNs.
#[must_use]
pub fn view(
    shared: &Shared,
    controller: &Controller,
    protocol: &'static str,
    targets: &BTreeMap<Arc<str>, String>,
) -> SessionView {
    let (grant, path) = (&controller.access_grant, &controller.path);
    let nqn = &grant.subsystem.nqn;
    let target = || targets.get(nqn).cloned().unwrap_or_else(|| nqn.to_string());
    SessionView {
        id: id(controller),
        protocol,
        discovery: controller.kind == Kind::Discovery,
        initiator: controller.host.nqn.to_string(),
        source: grant.source.map_or_else(|| path.address.clone(), |source| source.to_string()),
        target: (controller.kind == Kind::Io).then(target),
        group: grant.group.as_deref().map(str::to_owned),
        portal_group: (!path.memory).then_some(path.portal_ref.group),
        user: None,
        seconds: shared.host.now().since(controller.since).as_secs(),
        parameters: if controller.kind == Kind::Io { negotiated(controller) } else { Vec::new() },
        tcp: Vec::new(),
    }
}

/// The negotiated parameters of an I/O controller.
fn negotiated(controller: &Controller) -> Vec<ParameterView> {
    let queues = controller.io_queues();
    // A queue is full with one entry less than it has.
    let depth: u32 = queues.iter().map(|entries| u32::from(entries.saturating_sub(1))).sum();
    let (least, most) = (queues.iter().min().copied().unwrap_or(0), queues.iter().max().copied().unwrap_or(0));
    let entries = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let is_slow = !queues.is_empty() && depth < DEPTH_MIN;
    let size = ParameterView::new("entries of a queue", entries).costs(is_slow, shallow(depth));
    let (path, nqn) = (&controller.path, &*controller.access_grant.subsystem.nqn);
    let count = ParameterView::new("I/O queues", queues.len());
    if path.memory {
        let command = ["cat", "/sys/module/nvme/parameters/io_queue_depth"];
        return vec![count, size.mended("in the guest: shows the entries that its driver asks for", command)];
    }
    let transport = if path.is_rdma() { "rdma" } else { "tcp" };
    let connect = ["nvme", "connect", "-t", transport, "-n", nqn, "--nr-io-queues=4", "--queue-size=128"];
    let size = size
        .mended("disconnects the host", ["nvme", "disconnect", "-n", nqn])
        .mended("connects it with more and larger queues; add -a and -s", connect);
    let mut parameters = vec![count, size, ParameterView::new("bytes of in-capsule data", path.in_capsule)];
    // RDMA has no digests of its own: the invariant CRC protects each packet.
    if !path.is_rdma() {
        let (header, data) = path.digests;
        parameters.push(ParameterView::digest("header digest", header));
        parameters.push(ParameterView::digest("data digest", data));
    }
    parameters.push(ParameterView::new("keep-alive timeout in seconds", controller.keep_alive().as_secs()));
    parameters
}

/// The controller of a session ID.
#[must_use]
pub fn find(shared: &Shared, id: &str) -> Option<Arc<Controller>> {
    let number = id.strip_prefix(NVME).and_then(|rest| rest.strip_prefix('-')?.parse().ok())?;
    shared.controllers.get(number)
}

/// Waits for a bounded time until a controller has ended.
#[must_use]
pub fn until_ended(shared: &Shared, controller: Arc<Controller>) -> Later<bool> {
    let (controllers, host) = (shared.controllers.clone(), shared.host.clone());
    Box::new(move || {
        let end = host.now() + PATIENCE;
        let is_there = || controllers.get(controller.id).is_some_and(|found| Arc::ptr_eq(&found, &controller));
        while is_there() && host.now() < end {
            if host.has_threads() {
                host.pause(LOOK);
            } else {
                host.step();
            }
        }
        !is_there()
    })
}
