//! Block devices of this machine, served from user space by the kernel module ublk_drv: a volume becomes `/dev/ublkbN`,
//! without a network and without a virtual machine.
//!
//! From the kernel upwards:
//!
//! * [`wire`]: the structures of control commands and of requests
//! * [`params`]: the parameters of a device, from the limits of its volume
//! * [`tag`]: the life of one tag: a request of the kernel in, a result out
//! * [`life`]: the control commands that make, recover, resize and remove a device, and what their failures mean
//! * [`error`]: why a disk cannot be made, served or ended
//! * [`disk`]: the state of a disk that its cores share
//! * [`schema`], [`command_line`]: the section of the configuration, and the options of `lunar serve`
//! * [`wanted`]: the disks of a configuration, and those that a change takes away
//! * [`user`]: the user of a disk, as the kernel knows it
//! * [`front`]: the front of the engine: the devices of a configuration
//! * `fuzzing`: the entry points of the fuzz target, with the feature `testing` only
//! * [`serve`]: the glue to the reactor and the block command set, and the only module with I/O

pub mod command_line;
pub mod disk;
pub mod error;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod life;
pub mod params;
pub mod schema;
pub mod serve;
pub mod tag;
pub mod user;
pub mod wanted;
pub mod wire;
