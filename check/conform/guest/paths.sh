# Two paths to one volume: asymmetric access, multipath with path failures, clusters with fencing, and tools of
# administrators that iscsi.sh does not run.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # PORTAL1 PORTAL2 TARGET
. /test/access.sh
. /test/cluster.sh
. /test/multipath.sh
. /test/tools.sh

# log_in_at NAME IFACE GROUP PORTAL
log_in_at() {
    iscsiadm -m node -o new -T "$TARGET" -p "$4,$3" -I "$2" >/dev/null
    try "login, $1" iscsiadm -m node -T "$TARGET" -p "$4" -I "$2" --login || finish
    eventually disk_at "$2" "$3" || { bad "$1: no disk"; finish; }
}

# conflict NAME DISK: a case that passes if a write ends with RESERVATION CONFLICT, as sg_raw prints it.
conflict() {
    local output
    output=$(sg_raw --send=512 --infile=/dev/zero "$2" 2a 00 00 00 00 64 00 00 01 00 2>&1)
    says "$1" "Reservation Conflict" echo "$output"
}

writes() { try "$1" sg_raw --send=512 --infile=/dev/zero "$2" 2a 00 00 00 00 64 00 00 01 00; }
reads() { try "$1" sg_raw --request=512 --outfile=/dev/null "$2" 28 00 00 00 00 64 00 00 01 00; }

daemon 2
# Detect a failed path soon, but allow for the delays of a busy machine.
setting "node.conn[0].timeo.noop_out_interval" 2
setting "node.conn[0].timeo.noop_out_timeout" 6
found=$(iscsiadm -m discovery -t sendtargets -p "$PORTAL1")
says "discovery reports the first portal" "^$PORTAL1,1 $TARGET" echo "$found"
says "discovery reports the second portal" "^$PORTAL2,2 $TARGET" echo "$found"
iscsiadm -m node -o delete >/dev/null 2>&1
log_in_at "first path" default 1 "$PORTAL1"
log_in_at "second path" default 2 "$PORTAL2"
one=$(disk_at default 1) two=$(disk_at default 2)

access_test
cluster_test
tools_test
multipath_test
finish
