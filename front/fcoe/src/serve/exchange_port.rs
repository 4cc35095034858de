//! The contract between a port and the Fibre Channel Protocol above it, at the level of exchanges.
//!
//! A port takes frames apart itself, and tells the protocol of logins, commands, data that has arrived, and aborts.
//! The port on an Ethernet link is one. A host bus adapter whose firmware has exchanges, in target mode, can be another
//! one: it would map each operation to a request of its firmware, and each notification of the firmware to a call of
//! the protocol. See `docs/fcoe.md`.

use crate::directory::PortView;
use crate::port::exchange::{ExchangeKey, Requested};
use crate::wire::fcp::ResponseBytes;
use crate::wire::names::PortId;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::Share;
use std::pin::Pin;
use std::rc::Rc;

/// A port at which initiators have exchanges.
pub trait ExchangePort {
    /// Requests data of the initiator for `memory`, from this offset on. At most one request of an exchange is
    /// outstanding. Returns false when the exchange has ended.
    fn request(&self, key: ExchangeKey, offset: u32, memory: SgMut) -> bool;

    /// Takes requested data.
    fn take(&self, key: ExchangeKey) -> Requested;

    /// Sends data from this offset on. Returns false when the exchange has ended.
    fn send(&self, key: ExchangeKey, offset: u32, data: Sg) -> bool;

    /// Ends an exchange with a response, which follows all data. An exchange that was aborted gets none.
    fn respond(&self, key: ExchangeKey, response: &ResponseBytes);

    /// Answers a command for which there was no exchange.
    fn refuse(&self, peer: PortId, ox_id: u16, response: &ResponseBytes);

    /// Ends an exchange without a response.
    fn release(&self, key: ExchangeKey);

    /// The command of an aborted exchange has ended: the abort is answered.
    fn aborted(&self, key: ExchangeKey);

    /// An initiator has logged in: what waits to be sent to it is counted in this share.
    fn open(&self, peer: PortId, share: Share);

    /// An initiator has logged out.
    fn shut(&self, peer: PortId);

    /// The port as it is configured now; `None`: it has not been published, or is closed.
    fn view(&self) -> Option<Rc<PortView>>;

    /// Logs an initiator out.
    fn log_out(&self, peer: PortId);

    /// Bytes that wait to be sent to an initiator.
    fn queued(&self, peer: PortId) -> usize;

    /// Waits until fewer bytes than [`crate::limits::SEND_QUEUE_MAX`] wait to be sent to an initiator.
    fn room(&self, peer: PortId) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}
