//! The arguments with which QEMU and Cloud Hypervisor use a device.

use crate::schema::VhostKind;
use lunar_engine::vm_sockets::Role;
use std::path::Path;

/// The arguments with which QEMU uses the device at this socket. QEMU shares the memory of a guest only if `share=on`
/// is given, and a comma in a path is written twice. Before QEMU 9.2 the option is `reconnect=1`. `role`: the end of
/// the socket that Lunar has.
pub(crate) fn qemu(socket: &Path, kind: VhostKind, role: Role) -> Vec<String> {
    let path = socket.to_string_lossy().replace(',', ",,");
    let end = match role {
        Role::Server => "reconnect-ms=1000",
        Role::Client => "server=on,wait=off",
    };
    vec![
        "-machine q35,memory-backend=mem".into(),
        "-object memory-backend-memfd,id=mem,size=1G,share=on".into(),
        format!("-chardev 'socket,id=disk,path={path},{end}'"),
        format!("-device vhost-user-{}-pci,chardev=disk", kind.word()),
    ]
}

/// The arguments with which Cloud Hypervisor uses the disk at this socket.
pub(crate) fn cloud_hypervisor(socket: &Path) -> Vec<String> {
    vec!["--memory size=1G,shared=on".into(), format!("--disk 'vhost_user=on,socket={}'", socket.to_string_lossy())]
}
