# Sourced by the guest's scripts: open-iscsi, as an administrator uses it.

# setting KEY VALUE: in the daemon's defaults.
setting() {
    grep -vF "$1 =" /etc/iscsi/iscsid.conf >/tmp/iscsid.conf
    echo "$1 = $2" >>/tmp/iscsid.conf
    cp /tmp/iscsid.conf /etc/iscsi/iscsid.conf
}

# daemon [PATIENCE]: with so many seconds until a session that broke gives its commands up.
daemon() {
    mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
    echo "InitiatorName=iqn.2026-01.io.lunar.conform:guest" >/etc/iscsi/initiatorname.iscsi
    # A login that fails shall say so now, not after minutes of retries; a target that does not come back costs half a minute.
    setting node.session.initial_login_retry_max 2
    setting node.session.timeo.replacement_timeout "${1:-30}"
    # QEMU's user network misses that a closed window opens again, and looks only five seconds later: never let it close.
    echo 16777216 >/proc/sys/net/core/rmem_max
    setting "node.conn[0].tcp.window_size" 16777216
    iscsid || bad "iscsid"
    eventually iscsiadm -m iface
}

# disk_of LUN: the name of a session's disk, once the kernel has it.
disk_of() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:"$1"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}

# disk_at IFACE GROUP [LUN]: the disk of the session of this interface record at this portal group.
disk_at() {
    local session found
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/ifacename") $(cat "$session/tpgt")" = "$1 $2" ] || continue
        for found in "$session"/device/target*/*:*:*:"${3:-0}"/block/*; do
            [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
        done
    done
    return 1
}

# initiator NAME: an interface record with an initiator name of its own: another node of a cluster.
initiator() {
    iscsiadm -m iface -I "$1" -o new >/dev/null
    iscsiadm -m iface -I "$1" -o update -n iface.initiatorname -v "iqn.2026-01.io.lunar.conform:$1" >/dev/null
    iscsiadm -m iface -I "$1" -o update -n iface.transport_name -v tcp >/dev/null
}
