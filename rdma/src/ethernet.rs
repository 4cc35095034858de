//! RoCEv2 in Ethernet frames, without I/O: what the datagrams of an address need of IP, of neighbours and of the tools
//! of operators, on a link whose kernel does not have the address.
//!
//! From the wire upwards:
//!
//! * [`checksum`]: the checksum of the internet; [`ip`]: packets of IPv4 and IPv6; [`udp`]: datagrams
//! * [`arp`]: neighbours of IPv4; [`ndp`]: those of IPv6; [`icmp`]: messages of ICMP, which answer `ping`
//! * [`network`]: an address with the prefix of its network, and a gateway
//! * [`neighbours`]: the MAC addresses of the neighbours that datagrams are sent to
//! * [`claim`]: how a station claims its address, and notices that another one has it
//! * [`station`]: the machine: frames and time go in, datagrams and frames come out

pub mod arp;
pub mod checksum;
pub mod claim;
pub mod icmp;
pub mod ip;
pub mod limits;
pub mod ndp;
pub mod neighbours;
pub mod network;
pub mod station;
pub mod udp;
