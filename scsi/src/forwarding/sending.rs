//! A command on its way to a device server: its memory, its completion, and its abort.

use super::length::Moves;
use crate::admit::Refusal;
use crate::command::Command;
use crate::context::Call;
use crate::device_server::{
    DeviceServer, FORWARDED_BYTES_MAX, ForwardedCommand, ForwardedData, ForwardedReply, PendingReply,
};
use crate::fault;
use crate::fit::mismatch;
use crate::sense::{Asc, Sense};
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The data of one command takes this part of the memory of its core at most, so that other commands continue.
const ARENA_PART: usize = 4;

/// A command that is sent to a device server.
pub(crate) struct Sending<'a, T> {
    pub(crate) call: Call<'a>,
    pub(crate) transfer: &'a T,
    pub(crate) device: &'a dyn DeviceServer,
    /// [`ForwardedCommand::id`].
    pub(crate) id: u64,
    pub(crate) timeout: Duration,
    /// The generation of the device when the command was admitted.
    pub(crate) generation: u64,
}

impl<T: Transfer> Sending<'_, T> {
    /// The data of the command, which moves as much.
    pub(crate) async fn data(&self, moves: Option<Moves>, arena: &Arena) -> Result<ForwardedData, Refusal> {
        let Command { data_in, data_out, .. } = *self.call.command;
        if data_in > 0 && data_out > 0 {
            // Bidirectional commands are not forwarded.
            return Err(mismatch(0));
        }
        let Some(moves) = moves else { return Ok(ForwardedData::None) };
        let (Moves::In(length) | Moves::Out(length)) = moves;
        let longest = FORWARDED_BYTES_MAX.min(self.device.transfer_bytes_max()).min(arena.size() / ARENA_PART);
        if length > longest {
            return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into());
        }
        match moves {
            Moves::Out(_) => {
                let pulled = self.transfer.pull(0, length).await.map_err(fault::transfer)?;
                Ok(ForwardedData::Out(pulled))
            }
            Moves::In(_) => {
                self.transfer.room().await.map_err(fault::transfer)?;
                self.transfer.reserve(length, length).await.map_err(fault::transfer)?;
                Ok(ForwardedData::In(arena.wait_sg(length).await))
            }
        }
    }

    /// Submits the command and waits for its reply. If the command is aborted meanwhile, it is aborted at the device
    /// as well, whose reply is awaited in any case: the device may access the memory until then.
    pub(crate) async fn reply(&self, data: ForwardedData) -> Result<ForwardedReply, Fault> {
        let Command { cdb, attribute, tag, lun, .. } = *self.call.command;
        let Self { device, id, timeout, generation, .. } = *self;
        let nexus = self.call.nexus;
        let pending = PendingReply::default();
        let command =
            ForwardedCommand { id, nexus: Some(nexus.name.clone()), generation, cdb, attribute, data, timeout };
        device.submit(command, pending.duty());
        let is_aborted = nexus.tasks.until_aborted(|(t, l)| t == tag && l == lun);
        let (mut is_aborted, mut reply) = (pin!(is_aborted), pin!(pending.wait()));
        let first = poll_fn(|cx| match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => is_aborted.as_mut().poll(cx).map(|()| None),
        });
        match first.await {
            Some(reply) => reply,
            None => {
                device.abort(id);
                reply.await
            }
        }
    }
}
