//! Queues to a vhost-user disk (virtio-blk).

use crate::options::Options;
use crate::session::{Outcome, Request, Work};
use crate::target::{Capacity, OpenSessions};
use crate::vhost::{self, ControlSocket, Device, Plan, Queue};
use anyhow::{Context, Result};
use lunar_blk::{Code, Error};
use lunar_vhost_client::blk::{Blk, DiskLane, DiskRequest};
use lunar_vhost_client::disk::{self, Shape};
use lunar_vhost_client::message;
use lunar_vhost_user::wire::Code as MessageCode;

/// A disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Bytes of a logical block.
    block_size: u64,
}

impl Device for Disk {
    type Form = Blk;

    #[inline]
    fn request(&self, command: &Request, _tag: u64) -> DiskRequest {
        let code = match command.work {
            Work::Read => Code::Read,
            Work::Write(_) => Code::Write,
            Work::Flush => Code::Flush,
        };
        DiskRequest { code, offset: command.lba * self.block_size, len: command.bytes.into(), unmap: false }
    }

    #[inline]
    fn outcome(_lane: &DiskLane, _slot: u16, end: Result<(), Error>) -> Outcome {
        match end {
            Ok(()) => Outcome::Good,
            Err(why) => Outcome::Failed(format!("{why:?}")),
        }
    }
}

/// Agrees on features; returns the disk and the number of its queues.
fn negotiate(control: &ControlSocket) -> Result<(Shape, u64)> {
    let (features, rings) = control.negotiate(|offered| disk::features(offered, true), disk::protocol_features)?;
    control.tell(MessageCode::GET_CONFIG, &message::config(), &[])?;
    let space = message::space(&control.reply(MessageCode::GET_CONFIG)?)?;
    Ok((Shape::of(features, &space)?, rings.unwrap_or(1)))
}

/// Opens all queues of a run.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Queue<Disk>>> {
    options.check_for_vhost_user().map_err(anyhow::Error::msg)?;
    let url = options.url.clone();
    let control = ControlSocket::connect(&url.host, options.timeout)?;
    let (shape, queues) = negotiate(&control).with_context(|| url.to_string())?;
    let block_size = shape.limits.block_size;
    let device = Disk { block_size: block_size.into() };
    let plan = Plan { device, first_ring: 0, queues, piece: shape.pieces.0 };
    let active = vhost::start(control, &plan, options).with_context(|| url.to_string())?;
    let capacity = Capacity { blocks: shape.limits.capacity / u64::from(block_size), block_size };
    // Limited by what a slot has room for.
    let transfer_max = u32::try_from(shape.transfer(u32::MAX as usize)).unwrap_or(u32::MAX);
    let negotiated = vhost::negotiated(&active, transfer_max);
    Ok(OpenSessions { url, active, idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}
