# Sourced by fcoe.sh: dm-multipath over two ports of the channel, and over a port and iSCSI, to one volume. The path with
# the higher priority is gone for a while during verified writes.
. /test/access.sh
. /test/multipath.sh

# names DISK: the NAA identifier of the volume, the relative identifier of the port, and its target port group.
names() {
    sg_vpd -p di "$1" >/tmp/names
    sed -n 's/.*\(0x6[0-9a-f]\{31\}\).*/\1/p; s/.*\(Relative target port: .*\)/\1/p; s/.*\(Target port group: .*\)/\1/p' /tmp/names
}

# shown: the paths of the map, each behind the priority of its group, as multipath -ll shows them.
shown() {
    multipath -ll "${map##*/}" | awk '
        match($0, /prio=[0-9]+/) { priority = substr($0, RSTART + 5, RLENGTH - 5) }
        match($0, /[0-9]+:[0-9]+:[0-9]+:[0-9]+ +sd[a-z]+/) {
            split(substr($0, RSTART, RLENGTH), words, / +/)
            printf "%s%s %s", separator, priority, words[2]
            separator = ", "
        }'
}
shows() { [ "$(shown)" = "$1" ]; }

# one_map BETTER OTHER: both disks are paths of one map; the first one has the priority of an optimized port.
one_map() {
    local better=${1##*/} other=${2##*/}
    local wanted="50 $better, 10 $other"
    try "multipathd: $better is active" eventually path_is "^$better active"
    try "multipathd: $other is active" eventually path_is "^$other active"
    try "multipathd has a map" eventually find_map "$1" || { multipathd show paths; return 1; }
    find_map "$1"
    eventually shows "$wanted"
    equal "multipath -ll shows both paths with their priorities" "$wanted" "$(shown)" || multipath -ll
    says "the kernel follows ALUA" "hwhandler='1 alua'" multipath -ll "${map##*/}"
    equal "the map has the WWID of both" "mpath-$(wwid "$1") mpath-$(wwid "$2")" "$(map_uuid) $(map_uuid)"
}
map_uuid() { dmsetup info -c --noheadings -o uuid "$map"; }
wwid() { multipathd show paths format "%d %w" | awk -v disk="${1##*/}" '$1 == disk { print $2 }'; }

# optimized OTHER: the port of the other path, whose target port group is 2.
optimized() {
    says "the initiator has made the other port optimized" "access state : 0x00" sh -c "sg_rtpg $1 | grep -A1 'id : 0x2'"
}

# settled BETTER OTHER: on a failover, the initiator has made the other port optimized by SET TARGET PORT GROUPS, which
# holds until it is undone. It does so again while a group of the map has both paths.
settled() {
    try "the other port is non-optimized again" eventually undone "$1" "$2"
    one_map "$1" "$2"
}
undone() {
    set_state 2 1 "$2"
    nap 3
    shows "50 ${1##*/}, 10 ${2##*/}"
}

no_path() { ! path_is "^${1##*/} "; }

# different BETTER OTHER: the identification pages differ in the port only.
different() {
    names "$1" >/tmp/better
    names "$2" >/tmp/other
    equal "both identify one volume" "$(grep '^0x6' /tmp/better)" "$(grep '^0x6' /tmp/other)"
    equal "the relative port identifiers differ" 2 "$(grep -h Relative /tmp/better /tmp/other | sort -u | wc -l)"
    equal "the target port groups differ" 2 "$(grep -h group /tmp/better /tmp/other | sort -u | wc -l)"
}

# without NAME DISK TAKE GIVE: verified writes to the map while its path with the highest priority is taken and given.
without() {
    dmesg -C
    load_start "$map"
    "$3"
    try "$1: the path fails" eventually path_is "^${2##*/} failed"
    nap 1
    "$4"
    try "$1: the path is active again" eventually path_is "^${2##*/} active"
    load_end "$1: verified writes without an error"
    equal "$1: no I/O error of the map" "" "$(dmesg | grep 'I/O error, dev dm-')"
}

take_link() { ip link set "$lan2" down; }
give_link() { ip link set "$lan2" up; }
take_network() { ip link set eth0 down; }
give_network() {
    ip link set eth0 up
    ip route add default via 10.0.2.2 2>/dev/null
}
end_session() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null; }
begin_session() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login >/dev/null; }

# same_bytes DISK DISK
same_bytes() { equal "both paths read the same bytes" "$(read_sum "$1" count=8)" "$(read_sum "$2" count=8)"; }

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
