//! The arguments with which QEMU uses a controller.

use std::path::Path;

/// The arguments with which QEMU (10.1 and later) uses the controller at this socket. QEMU shares the memory of a guest
/// only if `share=on` is given.
pub(crate) fn qemu(socket: &Path) -> Vec<String> {
    let path = serde_json::Value::from(socket.to_string_lossy());
    let socket = format!("{{\"type\":\"unix\",\"path\":{path}}}");
    let device = format!("{{\"driver\":\"vfio-user-pci\",\"socket\":{socket}}}");
    vec![
        "-machine q35,memory-backend=mem".into(),
        "-object memory-backend-memfd,id=mem,size=1G,share=on".into(),
        format!("-device '{device}'"),
    ]
}
