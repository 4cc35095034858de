//! `lunar ublk-server`: a process of its own that serves a volume as a disk of this machine (Linux ublk). It is the
//! front-end of a disk that Lunar serves over vhost-user (`[vhost.NAME]`): the kernel copies the data of a request into
//! memory that this process shares with Lunar, whose store uses it in place.
//!
//! A process of its own may be killed, and have privileges, without Lunar. As an ordinary user it serves a disk that
//! ends with it.
//!
//! * [`options`]: the command line
//! * [`session`]: a connection to Lunar: its messages, in their order
//! * [`traffic`]: requests of the kernel on their way to Lunar and back
//! * [`link`]: the connection while the disk is served: its loss and its return; [`size`]: the size of the volume
//! * [`serve`]: the disk from its start to its end
//! * [`error`]: why there is no disk

pub mod error;
pub mod link;
pub mod options;
pub mod serve;
pub mod session;
pub mod size;
pub mod traffic;

pub use error::ServerError;
pub use options::Options;
pub use serve::run;
