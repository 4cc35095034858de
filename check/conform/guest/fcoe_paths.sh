# Sourced by fcoe.sh: dm-multipath over two ports of the channel, and over a port and iSCSI, to one volume. The path with
# the higher priority is gone for a while during verified writes.
. /test/two_paths.sh

no_path() { ! path_is "^${1##*/} "; }

take_link() { ip link set "$lan2" down; }
give_link() { ip link set "$lan2" up; }
take_network() { ip link set eth0 down; }
give_network() {
    ip link set eth0 up
    ip route add default via 10.0.2.2 2>/dev/null
}
end_session() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null; }
begin_session() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login >/dev/null; }

# long_paths_test CHANNEL: takes both paths at once, changes the access state, and ends the session.
long_paths_test() {
    load_start "$map"
    restart_in 2
    load_end "verified writes over a kill -9 of the target with both paths: no error"
    settled "$one" "$1"
    load_start "$map"
    try "set the preferred path to standby" set_state 1 2 "$1"
    nap 3
    try "set it to optimized" set_state 1 0 "$1"
    load_end "verified writes over changes of the access state: no error"
    settled "$one" "$1"
    load_start "$map"
    end_session
    try "the path of a session that has ended is removed" eventually no_path "$one"
    begin_session
    try "the session is back" eventually iscsi_disk
    one=$(iscsi_disk)
    load_end "verified writes over the end of a session: no error"
    settled "$one" "$1"
}

# paths_test NAME: with the port of this name on the first link.
paths_test() {
    local map one channel
    try "the kernel finds the disk for multipath" eventually unit "$1" 0 || return
    channel=$(unit "$1" 0)
    connect 2500 "$lan2"
    try "the second port of the target is online" eventually rport "$SECOND"
    try "the kernel finds the disk at the second port" eventually unit "$SECOND" 0 || { dmesg | tail -n 20; return; }
    one=$(unit "$SECOND" 0)
    different "$one" "$channel"
    # A path whose port is gone fails its commands after this time.
    multipath_start "fast_io_fail_tmo 2" || return
    one_map "$one" "$channel" || return
    without "two ports, link down" "$one" take_link give_link
    optimized "$channel"
    settled "$one" "$channel"
    same_bytes "$one" "$channel"
    if [ -n "${LONG:-}" ]; then with_iscsi_test "$channel"; else disconnect "$lan2"; fi
    multipath_stop
}

# with_iscsi_test CHANNEL: the map has this path and that of the second port, which is replaced by one over iSCSI.
with_iscsi_test() {
    local channel=$1
    disconnect "$lan2"
    try "the path of a port that is gone is removed" eventually no_path "$one"
    iscsiadm -m node -T "$TARGET" -p "$PORTAL" -o update -n "node.conn[0].timeo.noop_out_interval" -v 2
    iscsiadm -m node -T "$TARGET" -p "$PORTAL" -o update -n "node.conn[0].timeo.noop_out_timeout" -v 6
    iscsi_relogin "login for multipath over iSCSI" || return
    one=$other
    different "$one" "$channel"
    one_map "$one" "$channel" || return
    without "a port and iSCSI, session lost" "$one" take_network give_network
    optimized "$channel"
    settled "$one" "$channel"
    same_bytes "$one" "$channel"
    long_paths_test "$channel"
    iscsi_logout
}
