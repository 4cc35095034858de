# Sourced by the scripts of the tape library: lunar-tape serves a changer and two drives, which are LUNs 0 to 2 over
# iSCSI.
HERE=/test/tape
LUNAR=$HERE/lunar
TAPE=$HERE/lunar-tape
TARGET=iqn.2026-01.io.lunar.conform:tape
PORTAL=127.0.0.1:3260
LOG=/tmp/lunar.log
LIBRARY=/tmp/library
SOCKETS=/tmp/sockets

for module in "$HERE"/*.ko; do insmod "$module" 2>/dev/null; done
daemon 60

# The library, and its program.
tape() { "$TAPE" "$@"; }
start_library() {
    "$TAPE" serve $LIBRARY --sockets $SOCKETS >>/tmp/tape.log 2>&1 &
    library=$!
}
# node KIND LUN: the node of a logical unit: scsi_generic, or scsi_tape/nst0.
node() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:"$2"; do
        case $1 in
        changer) found=$(ls "$found/scsi_generic" 2>/dev/null) ;;
        *) found=$(ls "$found/scsi_tape" 2>/dev/null | grep -E '^nst[0-9]+$') ;;
        esac
        [ -n "$found" ] && [ -c "/dev/$found" ] && { echo "/dev/$found"; return 0; }
    done
    return 1
}
# all_nodes: all three logical units have their nodes.
all_nodes() { node changer 0 && node tape 1 && node tape 2; }
# status: mtx's table. Commands of others may have left a unit attention condition.
status() { mtx -f "$changer" status; }
is_online() { mt-st -f "$1" status 2>&1 | grep -q ONLINE; }

# serve_library OPTION...: makes a library with these options of `lunar-tape create`, serves it, and logs in; the nodes
# are in $changer, $first and $second.
serve_library() {
    mkdir -p $SOCKETS
    try "lunar-tape create" tape create $LIBRARY --drives 2 "$@"
    configure
    "$LUNAR" daemon --config /tmp/lunar.toml >>$LOG 2>&1 &
    target=$!
    start_library
    eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL" ||
        { tail -n 5 $LOG; bad "the daemon serves the library"; finish; }
    try "login" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login
    eventually all_nodes || { tail -n 20 $LOG /tmp/tape.log; dmesg | tail -n 20; bad "three logical units"; finish; }
    changer=$(node changer 0) first=$(node tape 1) second=$(node tape 2)
}

# end_library: logs out, and ends both programs.
end_library() {
    iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
    kill $library
    wait $library
    equal "lunar-tape ends" 0 $? || tail -n 20 /tmp/tape.log
    kill $target
    wait $target
    equal "the daemon ends" 0 $? || tail -n 20 $LOG
}

configure() {
    cat >/tmp/lunar.toml <<END
[server]
cores = 2
memory = "64M"
driver = "${DRIVER//_/-}"
state = "/tmp/state"
[volume.changer]
kind = "handler"
path = "$SOCKETS/changer.sock"
device-type = "changer"
[volume.drive0]
kind = "handler"
path = "$SOCKETS/drive0.sock"
device-type = "tape"
[volume.drive1]
kind = "handler"
path = "$SOCKETS/drive1.sock"
device-type = "tape"
$(one_target "$TARGET" "$PORTAL" '0 = "changer", 1 = "drive0", 2 = "drive1"')
END
}
