# Sourced by the guest's scripts: configuration of open-iscsi.

# setting KEY VALUE: sets a default in iscsid.conf.
setting() {
    grep -vF "$1 =" /etc/iscsi/iscsid.conf >/tmp/iscsid.conf
    echo "$1 = $2" >>/tmp/iscsid.conf
    cp /tmp/iscsid.conf /etc/iscsi/iscsid.conf
}

# daemon [SECONDS]: starts iscsid; a session whose connection is lost fails its commands after so many seconds.
daemon() {
    mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
    echo "InitiatorName=iqn.2026-01.io.lunar.conform:guest" >/etc/iscsi/initiatorname.iscsi
    # Report failed logins at once instead of after minutes of retries, and commands to a lost target after half a
    # minute.
    setting node.session.initial_login_retry_max 2
    setting node.session.timeo.replacement_timeout "${1:-30}"
    # QEMU's user network does not notice when a closed TCP window opens again, and looks only after five seconds: use a
    # window that never closes.
    echo 16777216 >/proc/sys/net/core/rmem_max
    setting "node.conn[0].tcp.window_size" 16777216
    iscsid || bad "iscsid"
    eventually iscsiadm -m iface
}

# disk_of LUN: the disk of a session, once the kernel has created it.
disk_of() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:"$1"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}

# disk_at IFACE GROUP [LUN]: the disk of the session of this interface record in this portal group.
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

# initiator NAME: creates an interface record with its own initiator name, for another node of a cluster.
initiator() {
    iscsiadm -m iface -I "$1" -o new >/dev/null
    iscsiadm -m iface -I "$1" -o update -n iface.initiatorname -v "iqn.2026-01.io.lunar.conform:$1" >/dev/null
    iscsiadm -m iface -I "$1" -o update -n iface.transport_name -v tcp >/dev/null
}
