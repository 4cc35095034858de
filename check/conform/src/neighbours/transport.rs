//! A transport as attackers and victims use it. A new front implements [`Transport`], and gets all attacks.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// The volumes: logical unit numbers. Namespace identifiers are one higher.
pub(super) mod volume {
    /// The unit of the victim.
    pub(crate) const VICTIM: u16 = 0;
    /// The unit of the attackers; its data takes memory.
    pub(crate) const SMALL: u16 = 1;
    /// A large unit of the attackers, of which no block is written with other bytes than zeroes.
    pub(crate) const LARGE: u16 = 2;
    /// The unit that attackers format and sanitize.
    pub(crate) const REWRITTEN: u16 = 3;
}

/// Blocks of the small units, of 512 bytes.
pub(super) const SMALL_BLOCKS: u32 = (64 << 20) / 512;
/// Blocks of the large unit.
pub(super) const LARGE_BLOCKS: u32 = ((64_u64 << 30) / 512) as u32;

/// Attackers run when the target and the victim do not: on the machines of a real network they take nothing from them.
pub(super) const NICE: i32 = 19;
/// The address of an attacker that is another host than the victim.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// An attacker whose connection accepts no more bytes stops to send after this time.
pub(super) const SEND_LIMIT: Duration = Duration::from_millis(200);
/// How long an attacker waits for an answer before it looks whether the attack is over.
pub(super) const RECEIVE_LIMIT: Duration = Duration::from_millis(50);

/// The address of an attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Another host than the victim.
    Other,
    /// The address of the victim: one hypervisor, or one NAT gateway.
    Same,
}

/// A request of an attacker. Each transport translates it into commands of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// A read of 1 MiB.
    LongRead,
    /// A write of 4 KiB whose data the target has to ask for.
    ShortWrite,
    /// A write of 1 MiB whose data the target has to ask for.
    LongWrite,
    /// A write whose data is announced, and is not sent.
    AnnouncedWrite,
    /// The same behind a command that is never sent.
    OutOfOrderWrite,
    /// A write of 1 MiB whose data is in the memory of the guest, or in its frame as far as that has room.
    Write,
    /// Deallocation with the most ranges, of as many blocks as allowed.
    Unmap,
    /// The longest write of one pattern, or of zeroes.
    WriteSame,
    /// The longest verification without data.
    Verify,
    /// The longest comparison.
    Compare,
    /// The longest copy inside of the target.
    Copy,
    /// A format of a whole unit.
    Format,
    /// A sanitize operation of a whole unit.
    Sanitize,
    /// COMPARE AND WRITE, or a fused Compare and Write, of always the same block.
    CompareAndWrite,
    /// Task management functions, or Abort commands.
    Abort,
    /// Commands that return data of the device: INQUIRY and REPORT LUNS, Identify, GET_ID, IDENTIFY DEVICE.
    Describe,
    /// NOP-Out, Keep Alive, GET_STATUS, or Query Config Information.
    Ping,
    /// Asynchronous Event Request.
    AsyncEvent,
    /// The registration of a reservation key, or a reservation and its end.
    Register,
    /// A flush of the write cache.
    Flush,
    /// A command that does not exist.
    Unknown,
    /// A read into the scatter list with the most pieces.
    ScatteredRead,
    /// Writes to doorbell registers, or notifications of rings without a request.
    Doorbell,
    /// A region of guest memory that is mapped and unmapped.
    Remap,
    /// A reset of the device.
    Reset,
    /// A ring that breaks, is stopped and is set up again, with a new record of requests in progress.
    SetUp,
    /// A write that is sent again and again with the same tag.
    Repeat,
    /// Writes that overlap, to a unit whose medium is slow.
    Overlap,
    /// Frames of stations that belong to no group, each with another address.
    Stranger,
    /// Commands of stations that belong to a group, each with another address.
    Newcomer,
    /// Another configuration string, or another list of allowed stations.
    Rename,
}

/// How far a connection of an attacker goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It is open, and nothing is sent.
    Open,
    /// Half of the first request is sent.
    HalfRequest,
    /// A discovery session, or a discovery controller, without authentication.
    Discovery,
    /// A session, or a controller.
    LoggedIn,
    /// A session whose host vanished without a logout.
    Vanished,
}

/// A connection that is held until it is dropped.
pub(super) type Held = Box<dyn Any + Send>;

/// A transport under attack.
pub(super) trait Transport: Sync {
    fn name(&self) -> &'static str;

    /// Whether the transport has such a request.
    fn has_request(&self, request: Request) -> bool;

    /// Whether connections of the transport have such a stage.
    fn has_stage(&self, stage: Stage) -> bool;

    /// Whether hosts have addresses, by which the target may tell them apart.
    fn has_addresses(&self) -> bool;

    /// Whether another transport of the suite has the same commands.
    fn shares_command_set(&self) -> bool {
        false
    }

    /// The most sessions of attackers at once.
    fn attackers_max(&self) -> u16;

    /// A host with a session of its own.
    fn victim(&self) -> Result<Box<dyn Victim>>;

    /// Another host, which comes from the address of the victim, reads and leaves.
    fn visit(&self) -> Result<()>;

    /// The session of an attacker, for requests of this kind.
    fn attacker(&self, from: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>>;

    /// A connection of an attacker at this stage.
    fn connection(&self, from: Source, number: u16, stage: Stage) -> Result<Held>;
}

/// A host that follows the rules and checks its data.
pub(super) trait Victim {
    fn read(&mut self) -> Result<()>;
    fn write(&mut self) -> Result<()>;
    /// A write of 1 MiB. Its data is requested where the transport has requests for data.
    fn write_long(&mut self) -> Result<()>;
}

/// The session of an attacker.
pub(super) trait Attacker: Send {
    /// Waits until it may send. All attackers of an attack have been made before, so that their logins overlap.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether the transport allows it one more request now.
    fn has_room(&self) -> bool;
    /// Sends one request without waiting for its answer.
    fn send(&mut self) -> Result<()>;
    /// Waits for an answer, at most [`RECEIVE_LIMIT`].
    fn receive(&mut self) -> Result<()>;
}

/// A connection from this address.
pub(super) fn tcp(from: Source, portal: SocketAddr) -> Result<TcpStream> {
    let stream = match from {
        Source::Same => TcpStream::connect_timeout(&portal, Duration::from_secs(5)).context("cannot connect")?,
        Source::Other => {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&socket, &SocketAddr::new(ATTACKER, 0))?;
            connect(&socket, &portal)?;
            TcpStream::from(socket)
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An attacker does not wait for a target that receives no more.
pub(super) fn impatient(stream: &TcpStream) -> Result<()> {
    Ok(stream.set_write_timeout(Some(SEND_LIMIT))?)
}
