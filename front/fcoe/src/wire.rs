//! Formats. A struct can express anything that a peer may send; the state machines decide what is valid.
//!
//! * [`names`]: N_Port_Names and addresses
//! * [`frame`]: frames of a Fibre Channel, and their encapsulation in Ethernet frames
//! * [`fip`]: the FCoE Initialization Protocol
//! * [`els`]: extended and basic link services
//! * [`services`]: Common Transport to the name server of a fabric, and registration of state changes
//! * [`fcp`]: information units of the Fibre Channel Protocol for SCSI

pub mod els;
pub mod fcp;
pub mod fip;
pub mod frame;
#[cfg(test)]
mod golden;
pub mod names;
pub mod services;
